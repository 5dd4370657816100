#!/usr/bin/env bash
# training_args: Qwen/Qwen2.5-7B on h100-sxm
# global batch 16 = micro 4 x accumulation 4 x 1 device(s)
set -euo pipefail

stop() { echo "run.sh: $*" >&2; exit 1; }
self="$(readlink -f -- "${BASH_SOURCE[0]:-$0}" 2>/dev/null || echo "${BASH_SOURCE[0]:-$0}")"
here="$(CDPATH="" cd -- "$(dirname -- "$self")" && pwd)"
name=own/training_args.json
[[ -f "$here/$name" ]] || stop "$name is not in $here: start run.sh in its run folder, or take the whole folder along"

# more visible devices than these would change the global batch
export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES:-0}"
export TOKENIZERS_PARALLELISM=false  # tokenizer threads and forks deadlock

exec accelerate launch "${SCRIPT:?set SCRIPT to your training script, which reads this file}" "$here"/own/training_args.json
