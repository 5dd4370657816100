#!/usr/bin/env bash
# axolotl: meta-llama/Meta-Llama-3-8B on h100-sxm
# global batch 8 = micro 8 x accumulation 1 x 1 device(s)
set -euo pipefail

stop() { echo "run.sh: $*" >&2; exit 1; }
self="$(readlink -f -- "${BASH_SOURCE[0]:-$0}" 2>/dev/null || echo "${BASH_SOURCE[0]:-$0}")"
here="$(CDPATH="" cd -- "$(dirname -- "$self")" && pwd)"
name=own/axolotl.yml
[[ -f "$here/$name" ]] || stop "$name is not in $here: start run.sh in its run folder, or take the whole folder along"

# more visible devices than these would change the global batch
export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES:-0}"
# segments that grow leave fewer gaps: with what it caches, the allocator is expected to hold 79.0 GiB, where 76.6 GiB are usable
export PYTORCH_ALLOC_CONF="${PYTORCH_ALLOC_CONF:-expandable_segments:True}"

CUDA_VISIBLE_DEVICES="" axolotl preprocess "$here"/own/axolotl.yml
exec axolotl train "$here"/own/axolotl.yml
