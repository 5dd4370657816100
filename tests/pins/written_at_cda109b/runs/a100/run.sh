#!/usr/bin/env bash
# a100-llama7b-int8: huggyllama/llama-7b on a100-sxm4-80gb
# global batch 128 = micro 16 x accumulation 8 x 1 device(s)
#
# MODEL       model id or folder
# DATA        training rows, one JSON object a line
# EVAL_DATA   evaluation rows; none: skip evaluation
# OUTPUT_DIR  where checkpoints and the result go
# MAX_STEPS   stop after that many optimizer steps (a smoke run)
# RESUME      1: go on from the last checkpoint in OUTPUT_DIR
# USE_CPU     1: a smoke run without accelerator: fp32, no quantisation, one process
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
export MODEL=${MODEL:-huggyllama/llama-7b}
export DATA="${DATA:?set DATA to a file with one JSON object a line}"
OUTPUT_DIR=${OUTPUT_DIR:-output}
case "$OUTPUT_DIR" in /*) ;; *) OUTPUT_DIR="$here/$OUTPUT_DIR" ;; esac
export OUTPUT_DIR
export RESUME="${RESUME:-0}"

# more visible devices than these would change the global batch
export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES:-0}"
export TOKENIZERS_PARALLELISM=false  # tokenizer threads and forks deadlock
# segments that grow leave fewer gaps: with what it caches, the allocator is expected to hold 79.4 GiB, where 77.0 GiB are usable
export PYTORCH_ALLOC_CONF="${PYTORCH_ALLOC_CONF:-expandable_segments:True}"

mkdir -p "$OUTPUT_DIR"
# 2 checkpoints are kept while one more is written
need_bytes=$(( 3 * 825306368 ))
free_bytes=$(( $(df -Pk "$OUTPUT_DIR" | awk 'NR == 2 { print $4 }') * 1024 ))
if (( free_bytes < need_bytes )); then
  echo "checkpoints need $need_bytes bytes in $OUTPUT_DIR, but $free_bytes are free: free some space or set OUTPUT_DIR" >&2
  exit 1
fi

if [[ "${USE_CPU:-0}" == 1 ]]; then
  CUDA_VISIBLE_DEVICES="" exec python "$here/train.py"
fi
exec accelerate launch --config_file "$here/accelerate.yaml" "$here/train.py"
