#!/usr/bin/env bash
# unsloth_script: unsloth/llama-3-8b on h100-sxm
# global batch 8 = micro 8 x accumulation 1 x 1 device(s)
set -euo pipefail

stop() { echo "run.sh: $*" >&2; exit 1; }
self="$(readlink -f -- "${BASH_SOURCE[0]:-$0}" 2>/dev/null || echo "${BASH_SOURCE[0]:-$0}")"
here="$(CDPATH="" cd -- "$(dirname -- "$self")" && pwd)"
name=own/unsloth_script.py
[[ -f "$here/$name" ]] || stop "$name is not in $here: start run.sh in its run folder, or take the whole folder along"

# more visible devices than these would change the global batch
export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES:-0}"

export PYTHONPATH=/folder/of/this/case............................/own:"$PWD${PYTHONPATH:+:$PYTHONPATH}"  # modules beside your script
exec python "$here"/own/unsloth_script.py
