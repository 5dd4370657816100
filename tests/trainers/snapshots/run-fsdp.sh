#!/usr/bin/env bash
# test job: tiny-llama on 2x h100-sxm
# global batch 8 = micro 4 x accumulation 1 x 2 device(s)
#
# MODEL       model id or folder
# TOKENIZER   tokenizer, if it is not the model's
# DATA        training rows, one JSON object a line
# EVAL_DATA   evaluation rows; left out or none: no evaluation
# OUTPUT_DIR  where checkpoints and the result go
# LOCAL_DIR   a folder on the machine's own disk, for copied and tokenised rows
# PREPARE     1: tokenise first; only: stop after that (needs no GPU); 0: do not
# MAX_STEPS   stop after that many optimizer steps (a smoke run)
# RESUME      1: go on from the last checkpoint in OUTPUT_DIR
# USE_CPU     1: a smoke run without accelerator: fp32, no quantisation, one process
# PYTHON      the interpreter
set -euo pipefail
export RUN_BEGAN="${EPOCHREALTIME:-}"  # [s] train.py records what passes before a step

stop() { echo "run.sh: $*" >&2; exit 1; }
self="$(readlink -f -- "${BASH_SOURCE[0]:-$0}" 2>/dev/null || echo "${BASH_SOURCE[0]:-$0}")"
here="$(CDPATH="" cd -- "$(dirname -- "$self")" && pwd)"
for name in training_args.json train.py accelerate.yaml prepare.py; do
  [[ -f "$here/$name" ]] || stop "$name is not in $here: start run.sh in its run folder, or take the whole folder along"
done

# a path where the run was planned; where it is absent, what lies beside this script
found() { if [[ ! -e "$1" && -e "$here/$2" ]]; then echo "$here/$2"; else echo "$1"; fi; }
# whether a path leads to nothing; a word without a leading / or . is a name on the hub
lost() { case "$1" in /* | ./* | ../*) [[ ! -e "$1" ]] ;; *) false ;; esac; }
export MODEL=${MODEL:-tiny-llama}
if lost "$MODEL"; then stop "there is no $MODEL: set MODEL to a model's folder or its id on the hub"; fi
export TOKENIZER="${TOKENIZER:-$MODEL}"
export DATA="${DATA:-}"
[[ -n "$DATA" ]] || DATA="$(found data.jsonl data.jsonl)"
[[ -e "$DATA" ]] || stop "there is no $DATA: set DATA to a file with one JSON object a line, or put it beside run.sh"

OUTPUT_DIR=${OUTPUT_DIR:-output}
case "$OUTPUT_DIR" in /*) ;; *) OUTPUT_DIR="$here/$OUTPUT_DIR" ;; esac
export OUTPUT_DIR
LOCAL_DIR="${LOCAL_DIR:-$here/tokens}"
export RESUME="${RESUME:-0}"

# a Python that has what training imports: of PATH, else the one that planned the run
needed="torch transformers peft accelerate datasets"
lacks='import sys; sys.path = [p for p in sys.path if p]; from importlib import util;'
lacks+=' print(*(n for n in sys.argv[1].split() if util.find_spec(n) is None))'
missing_in() { "$1" -c "$lacks" "$needed" 2>/dev/null || echo "$needed"; }
if [[ -z "${PYTHON:-}" ]]; then
  for PYTHON in python python3 python; do
    [[ -n "$(missing_in "$PYTHON")" ]] || break
  done
fi
command -v "$PYTHON" > /dev/null || stop "there is no $PYTHON: set PYTHON to another"
missing="$(missing_in "$PYTHON")"
[[ -z "$missing" ]] || stop "$PYTHON lacks $missing: $PYTHON -m pip install $missing, or set PYTHON to one that has them"

# more visible devices than these would change the global batch
export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES:-0,1}"
# segments that grow leave fewer gaps: the probability that it fits is 0.93
export PYTORCH_ALLOC_CONF="${PYTORCH_ALLOC_CONF:-expandable_segments:True}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-8}"

mkdir -p "$OUTPUT_DIR"
# at once: 2 checkpoints of 2.3 GiB and the final model of 953.7 MiB
need_bytes=6000000000
written_kb=$({ du -skc "$OUTPUT_DIR"/checkpoint-* "$OUTPUT_DIR/final" 2>/dev/null || true; } | awk 'END { print $1 + 0 }')
free_kb=$(df -Pk "$OUTPUT_DIR" | awk 'NR == 2 { print $4 }')
room_bytes=$(( (free_kb + written_kb) * 1024 ))  # with what an earlier start wrote
if (( room_bytes < need_bytes )); then
  stop "2 checkpoints of 2.3 GiB and the final model of 953.7 MiB take $need_bytes bytes of $OUTPUT_DIR, and there is room for $room_bytes: free some or set OUTPUT_DIR"
fi

# every row is tokenised once, before the first step, as it was counted
if [[ "${PREPARE:-1}" != 0 ]]; then
  mkdir -p "$LOCAL_DIR"
  export PREPARE_BEGAN="${EPOCHREALTIME:-}"
  CUDA_VISIBLE_DEVICES="" PREPARED="$LOCAL_DIR" "$PYTHON" "$here/prepare.py"
  export PREPARE_ENDED="${EPOCHREALTIME:-}"
  if [[ "${PREPARE:-1}" == only ]]; then exit 0; fi
  export DATA="$LOCAL_DIR/train"
fi

if [[ "${USE_CPU:-0}" == 1 ]]; then
  CUDA_VISIBLE_DEVICES="" exec "$PYTHON" "$here/train.py"
fi
# accelerate launch, in that Python
launch='import sys; sys.path = [p for p in sys.path if p];'
launch+=' from accelerate.commands.launch import main; main()'
exec "$PYTHON" -c "$launch" --config_file "$here/accelerate.yaml" "$here/train.py"
