#!/usr/bin/env bash
# sft_config: Qwen/Qwen2.5-7B on 2x h100-sxm
# global batch 64 = micro 1 x accumulation 32 x 2 device(s)
set -euo pipefail

stop() { echo "run.sh: $*" >&2; exit 1; }
self="$(readlink -f -- "${BASH_SOURCE[0]:-$0}" 2>/dev/null || echo "${BASH_SOURCE[0]:-$0}")"
here="$(CDPATH="" cd -- "$(dirname -- "$self")" && pwd)"
for name in own/sft_config.yaml own/accelerate_fsdp.yaml; do
  [[ -f "$here/$name" ]] || stop "$name is not in $here: start run.sh in its run folder, or take the whole folder along"
done

# more visible devices than these would change the global batch
export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES:-0,1}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-16}"

exec trl sft --accelerate_config "$here"/own/accelerate_fsdp.yaml --config "$here"/own/sft_config.yaml
