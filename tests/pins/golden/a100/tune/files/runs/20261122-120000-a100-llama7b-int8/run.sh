#!/usr/bin/env bash
# a100-llama7b-int8: huggyllama/llama-7b on a100-sxm4-80gb
# global batch 128 = micro 16 x accumulation 8 x 1 device(s)
#
# MODEL       model id or folder
# TOKENIZER   tokenizer, if it is not the model's
# DATA        training rows, one JSON object a line
# EVAL_DATA   evaluation rows; left out or none: no evaluation
# OUTPUT_DIR  where checkpoints and the result go
# MAX_STEPS   stop after that many optimizer steps (a smoke run)
# RESUME      1: go on from the last checkpoint in OUTPUT_DIR
# USE_CPU     1: a smoke run without accelerator: fp32, no quantisation, one process
# PYTHON      the interpreter
set -euo pipefail
export RUN_BEGAN="${EPOCHREALTIME:-}"  # [s] train.py records what passes before a step

stop() { echo "run.sh: $*" >&2; exit 1; }
self="$(readlink -f -- "${BASH_SOURCE[0]:-$0}" 2>/dev/null || echo "${BASH_SOURCE[0]:-$0}")"
here="$(CDPATH="" cd -- "$(dirname -- "$self")" && pwd)"
for name in training_args.json train.py accelerate.yaml; do
  [[ -f "$here/$name" ]] || stop "$name is not in $here: start run.sh in its run folder, or take the whole folder along"
done

# whether a path leads to nothing; a word without a leading / or . is a name on the hub
lost() { case "$1" in /* | ./* | ../*) [[ ! -e "$1" ]] ;; *) false ;; esac; }
export MODEL=${MODEL:-huggyllama/llama-7b}
if lost "$MODEL"; then stop "there is no $MODEL: set MODEL to a model's folder or its id on the hub"; fi
export TOKENIZER="${TOKENIZER:-$MODEL}"
[[ -n "${DATA:-}" ]] || stop "DATA is not set, and the job names no data file: set DATA to a file with one JSON object a line"
export DATA
[[ -e "$DATA" ]] || stop "there is no $DATA: set DATA to a file with one JSON object a line"

OUTPUT_DIR=${OUTPUT_DIR:-output}
case "$OUTPUT_DIR" in /*) ;; *) OUTPUT_DIR="$here/$OUTPUT_DIR" ;; esac
export OUTPUT_DIR
export RESUME="${RESUME:-0}"

# a Python that has what training imports: of PATH, else the one that planned the run
needed="torch transformers peft accelerate"
[[ "${USE_CPU:-0}" == 1 ]] || needed+=" bitsandbytes"
lacks='import sys; sys.path = [p for p in sys.path if p]; from importlib import util;'
lacks+=' print(*(n for n in sys.argv[1].split() if util.find_spec(n) is None))'
missing_in() { "$1" -c "$lacks" "$needed" 2>/dev/null || echo "$needed"; }
if [[ -z "${PYTHON:-}" ]]; then
  for PYTHON in python python3 /the/python python; do
    [[ -n "$(missing_in "$PYTHON")" ]] || break
  done
fi
command -v "$PYTHON" > /dev/null || stop "there is no $PYTHON: set PYTHON to another"
missing="$(missing_in "$PYTHON")"
[[ -z "$missing" ]] || stop "$PYTHON lacks $missing: $PYTHON -m pip install $missing, or set PYTHON to one that has them"

# more visible devices than these would change the global batch
export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES:-0}"
# segments that grow leave fewer gaps: with what it caches, the allocator is expected to hold 79.4 GiB, where 77.0 GiB are usable
export PYTORCH_ALLOC_CONF="${PYTORCH_ALLOC_CONF:-expandable_segments:True}"

mkdir -p "$OUTPUT_DIR"
# at once: 11 checkpoints of 770.9 MiB
need_bytes=8892030048
written_kb=$({ du -skc "$OUTPUT_DIR"/checkpoint-* "$OUTPUT_DIR/final" 2>/dev/null || true; } | awk 'END { print $1 + 0 }')
free_kb=$(df -Pk "$OUTPUT_DIR" | awk 'NR == 2 { print $4 }')
room_bytes=$(( (free_kb + written_kb) * 1024 ))  # with what an earlier start wrote
if (( room_bytes < need_bytes )); then
  stop "11 checkpoints of 770.9 MiB take $need_bytes bytes of $OUTPUT_DIR, and there is room for $room_bytes: free some or set OUTPUT_DIR"
fi

if [[ "${USE_CPU:-0}" == 1 ]]; then
  CUDA_VISIBLE_DEVICES="" exec "$PYTHON" "$here/train.py"
fi
# accelerate launch, in that Python
launch='import sys; sys.path = [p for p in sys.path if p];'
launch+=' from accelerate.commands.launch import main; main()'
exec "$PYTHON" -c "$launch" --config_file "$here/accelerate.yaml" "$here/train.py"
