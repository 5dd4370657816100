#!/usr/bin/env bash
# launch: meta-llama/Llama-3.1-8B on 2x h100-sxm
# global batch 16 = micro 8 x accumulation 1 x 2 device(s)
set -euo pipefail

stop() { echo "run.sh: $*" >&2; exit 1; }
self="$(readlink -f -- "${BASH_SOURCE[0]:-$0}" 2>/dev/null || echo "${BASH_SOURCE[0]:-$0}")"
here="$(CDPATH="" cd -- "$(dirname -- "$self")" && pwd)"
name=own/launch.sh
[[ -f "$here/$name" ]] || stop "$name is not in $here: start run.sh in its run folder, or take the whole folder along"
if [[ -d /folder/of/this/case............................ ]]; then cd -- /folder/of/this/case............................; fi  # where relative paths start

# more visible devices than these would change the global batch
export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES:-0,1}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-16}"

exec bash "$here"/own/launch.sh
