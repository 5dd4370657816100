#!/usr/bin/env bash
# h100-38h: meta-llama/Llama-3.1-8B on h100-sxm
# global batch 8 = micro 4 x accumulation 2 x 1 device(s)
#
# MODEL       model id or folder
# TOKENIZER   tokenizer, if it is not the model's
# DATA        training rows, one JSON object a line
# EVAL_DATA   evaluation rows; left out or none: no evaluation
# OUTPUT_DIR  where checkpoints and the result go
# LOCAL_DIR   a folder on the machine's own disk, for copied and tokenised rows
# STAGE       1: copy the rows there first; 0: read them where they lie
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

# whether a path leads to nothing; a word without a leading / or . is a name on the hub
lost() { case "$1" in /* | ./* | ../*) [[ ! -e "$1" ]] ;; *) false ;; esac; }
export MODEL=${MODEL:-meta-llama/Llama-3.1-8B}
if lost "$MODEL"; then stop "there is no $MODEL: set MODEL to a model's folder or its id on the hub"; fi
export TOKENIZER="${TOKENIZER:-$MODEL}"
[[ -n "${DATA:-}" ]] || stop "DATA is not set, and the job names no data file: set DATA to a file with one JSON object a line"
export DATA
[[ -e "$DATA" ]] || stop "there is no $DATA: set DATA to a file with one JSON object a line"
export EVAL_DATA="${EVAL_DATA:-}"
if [[ -z "$EVAL_DATA" ]]; then
  EVAL_DATA=none
  echo "run.sh: EVAL_DATA is not set: training without the evaluation that the plan counts (500 rows every 2000 steps)" >&2
fi
[[ "$EVAL_DATA" == none || -e "$EVAL_DATA" ]] || stop "there is no $EVAL_DATA: set EVAL_DATA to a file with one JSON object a line, or to none"

OUTPUT_DIR=${OUTPUT_DIR:-output}
case "$OUTPUT_DIR" in /*) ;; *) OUTPUT_DIR="$here/$OUTPUT_DIR" ;; esac
export OUTPUT_DIR
own="${TMPDIR:-/tmp}/autotune-$(id -u)" LOCAL_DIR="${LOCAL_DIR:-}"
if [[ -z "$LOCAL_DIR" ]]; then
  (umask 077 && mkdir -p -- "$own")
  [[ -O "$own" && ! -L "$own" ]] || stop "$own is not a folder of yours: set LOCAL_DIR"
  chmod 700 -- "$own"  # rows that are copied there are nobody else's
  LOCAL_DIR="$own/h100-38h-$(cksum <<< "$here" | cut -d" " -f1)"
fi
export RESUME="${RESUME:-0}"

# a Python that has what training imports: of PATH, else the one that planned the run
needed="torch transformers peft accelerate datasets"
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
export TOKENIZERS_PARALLELISM=false  # tokenizer threads and forks deadlock
export TORCH_CUDNN_SDPA_DEPRIORITIZED="${TORCH_CUDNN_SDPA_DEPRIORITIZED:-1}"  # else cuDNN's attention builds a plan for every new length of a batch

mkdir -p "$OUTPUT_DIR"
# at once: 6 checkpoints of 1.9 GiB
need_bytes=12144158400
written_kb=$({ du -skc "$OUTPUT_DIR"/checkpoint-* "$OUTPUT_DIR/final" 2>/dev/null || true; } | awk 'END { print $1 + 0 }')
free_kb=$(df -Pk "$OUTPUT_DIR" | awk 'NR == 2 { print $4 }')
room_bytes=$(( (free_kb + written_kb) * 1024 ))  # with what an earlier start wrote
if (( room_bytes < need_bytes )); then
  stop "6 checkpoints of 1.9 GiB take $need_bytes bytes of $OUTPUT_DIR, and there is room for $room_bytes: free some or set OUTPUT_DIR"
fi

# the rows lie on the network: one copy onto this machine's disk, as it was counted
if [[ "${STAGE:-1}" == 1 && -e "$DATA" ]]; then
  mkdir -p "$LOCAL_DIR"
  staged="$LOCAL_DIR/$(printf %s "$DATA" | cksum | cut -d" " -f1)-$(basename -- "$DATA")"
  if [[ ! -e "$staged" || "$DATA" -nt "$staged" ]]; then
    need_kb="$(du -skL -- "$DATA" | cut -f1)"
    free_kb="$(df -Pk "$LOCAL_DIR" | awk 'NR == 2 { print $4 }')"
    if (( free_kb < need_kb )); then
      stop "$DATA takes $need_kb KiB in $LOCAL_DIR, but $free_kb are free: set LOCAL_DIR, or STAGE=0"
    fi
    echo "copying $DATA to $LOCAL_DIR" >&2
    rm -rf -- "$staged" "$staged.part"
    cp -RL -- "$DATA" "$staged.part"
    touch -- "$staged.part"
    mv -- "$staged.part" "$staged"
  fi
  export DATA="$staged"
fi

# every row is tokenised once, before the first step, as it was counted
if [[ "${PREPARE:-1}" != 0 ]]; then
  mkdir -p "$LOCAL_DIR"
  export PREPARE_BEGAN="${EPOCHREALTIME:-}"
  CUDA_VISIBLE_DEVICES="" PREPARED="$LOCAL_DIR" "$PYTHON" "$here/prepare.py"
  export PREPARE_ENDED="${EPOCHREALTIME:-}"
  if [[ "${PREPARE:-1}" == only ]]; then exit 0; fi
  export DATA="$LOCAL_DIR/train"
  if [[ "$EVAL_DATA" != none ]]; then export EVAL_DATA="$LOCAL_DIR/eval"; fi
fi

if [[ "${USE_CPU:-0}" == 1 ]]; then
  CUDA_VISIBLE_DEVICES="" exec "$PYTHON" "$here/train.py"
fi
# accelerate launch, in that Python
launch='import sys; sys.path = [p for p in sys.path if p];'
launch+=' from accelerate.commands.launch import main; main()'
exec "$PYTHON" -c "$launch" --config_file "$here/accelerate.yaml" "$here/train.py"
