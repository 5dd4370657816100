#!/usr/bin/env bash
# axolotl: meta-llama/Meta-Llama-3-8B on h100-sxm
# global batch 8 = micro 2 x accumulation 4 x 1 device(s)
set -euo pipefail

stop() { echo "run.sh: $*" >&2; exit 1; }
self="$(readlink -f -- "${BASH_SOURCE[0]:-$0}" 2>/dev/null || echo "${BASH_SOURCE[0]:-$0}")"
here="$(CDPATH="" cd -- "$(dirname -- "$self")" && pwd)"
name=own/axolotl.yml
[[ -f "$here/$name" ]] || stop "$name is not in $here: start run.sh in its run folder, or take the whole folder along"

# more visible devices than these would change the global batch
export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES:-0}"
export TOKENIZERS_PARALLELISM=false  # tokenizer threads and forks deadlock

CUDA_VISIBLE_DEVICES="" axolotl preprocess "$here"/own/axolotl.yml
exec axolotl train "$here"/own/axolotl.yml
