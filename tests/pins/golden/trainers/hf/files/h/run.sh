#!/usr/bin/env bash
# training_args: Qwen/Qwen2.5-1.5B on 2x a100-sxm4-80gb
# global batch 16 = micro 8 x accumulation 1 x 2 device(s)
set -euo pipefail

stop() { echo "run.sh: $*" >&2; exit 1; }
self="$(readlink -f -- "${BASH_SOURCE[0]:-$0}" 2>/dev/null || echo "${BASH_SOURCE[0]:-$0}")"
here="$(CDPATH="" cd -- "$(dirname -- "$self")" && pwd)"
for name in own/training_args.json own/accelerate.yaml; do
  [[ -f "$here/$name" ]] || stop "$name is not in $here: start run.sh in its run folder, or take the whole folder along"
done
if [[ -d /folder/of/this/case............................/jobs/trainers ]]; then cd -- /folder/of/this/case............................/jobs/trainers; fi  # where relative paths start

# more visible devices than these would change the global batch
export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES:-0,1}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-16}"

exec accelerate launch --config_file "$here"/own/accelerate.yaml "${SCRIPT:?set SCRIPT to your training script, which reads this file}" "$here"/own/training_args.json
