#!/usr/bin/env bash
# tiny-cpu: data/tiny_model on cpu
# global batch 8 = micro 8 x accumulation 1 x 1 device(s)
#
# MODEL       model id or folder
# DATA        training rows, one JSON object a line
# EVAL_DATA   evaluation rows; none: skip evaluation
# OUTPUT_DIR  where checkpoints and the result go
# LOCAL_DIR   a folder on the machine's own disk, for copied and tokenised rows
# PREPARE     1: tokenise first; only: stop after that (needs no GPU); 0: do not
# MAX_STEPS   stop after that many optimizer steps (a smoke run)
# RESUME      1: go on from the last checkpoint in OUTPUT_DIR
# USE_CPU     1: a smoke run without accelerator: fp32, no quantisation, one process
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
export MODEL=${MODEL:-jobs/data/tiny_model}
export DATA=${DATA:-jobs/data/tiny.jsonl}
export EVAL_DATA="${EVAL_DATA:?set EVAL_DATA to the evaluation rows, or to none to skip evaluation}"
OUTPUT_DIR=${OUTPUT_DIR:-output}
case "$OUTPUT_DIR" in /*) ;; *) OUTPUT_DIR="$here/$OUTPUT_DIR" ;; esac
export OUTPUT_DIR
LOCAL_DIR="${LOCAL_DIR:-${TMPDIR:-/tmp}/autotune-$(id -u)/tiny-cpu}"
export RESUME="${RESUME:-0}"

mkdir -p "$OUTPUT_DIR"
# all 1 checkpoints of the run are kept
need_bytes=$(( 1 * 20215040 ))
free_bytes=$(( $(df -Pk "$OUTPUT_DIR" | awk 'NR == 2 { print $4 }') * 1024 ))
if (( free_bytes < need_bytes )); then
  echo "checkpoints need $need_bytes bytes in $OUTPUT_DIR, but $free_bytes are free: free some space or set OUTPUT_DIR" >&2
  exit 1
fi

# every row is tokenised once, before the first step, as it was counted
if [[ "${PREPARE:-1}" != 0 ]]; then
  mkdir -p "$LOCAL_DIR"
  CUDA_VISIBLE_DEVICES="" PREPARED="$LOCAL_DIR" python "$here/prepare.py"
  if [[ "${PREPARE:-1}" == only ]]; then exit 0; fi
  export DATA="$LOCAL_DIR/train"
  if [[ "$EVAL_DATA" != none ]]; then export EVAL_DATA="$LOCAL_DIR/eval"; fi
fi

if [[ "${USE_CPU:-0}" == 1 ]]; then
  CUDA_VISIBLE_DEVICES="" exec python "$here/train.py"
fi
exec accelerate launch --config_file "$here/accelerate.yaml" "$here/train.py"
