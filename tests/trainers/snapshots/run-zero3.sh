#!/usr/bin/env bash
# test job: tiny-llama on 2x h100-sxm
# global batch 8 = micro 4 x accumulation 1 x 2 device(s)
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
export MODEL=${MODEL:-tiny-llama}
export DATA=${DATA:-data.jsonl}
OUTPUT_DIR=${OUTPUT_DIR:-output}
case "$OUTPUT_DIR" in /*) ;; *) OUTPUT_DIR="$here/$OUTPUT_DIR" ;; esac
export OUTPUT_DIR
LOCAL_DIR="${LOCAL_DIR:-${TMPDIR:-/tmp}/autotune-$(id -u)/test-job}"
export RESUME="${RESUME:-0}"

# more visible devices than these would change the global batch
export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES:-0,1}"
# segments that grow leave fewer gaps: the probability that it fits is 0.93
export PYTORCH_ALLOC_CONF="${PYTORCH_ALLOC_CONF:-expandable_segments:True}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-8}"

mkdir -p "$OUTPUT_DIR"
# 2 checkpoints are kept while one more is written
need_bytes=$(( 3 * 2500000000 ))
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
fi

if [[ "${USE_CPU:-0}" == 1 ]]; then
  CUDA_VISIBLE_DEVICES="" exec python "$here/train.py"
fi
exec accelerate launch --config_file "$here/accelerate.yaml" "$here/train.py"
