#!/usr/bin/env bash
# axolotl: meta-llama/Meta-Llama-3-8B on h100-sxm
# global batch 8 = micro 2 x accumulation 4 x 1 device(s)
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

# more visible devices than these would change the global batch
export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES:-0}"
export TOKENIZERS_PARALLELISM=false  # tokenizer threads and forks deadlock

CUDA_VISIBLE_DEVICES="" axolotl preprocess "$here"/own/axolotl.yml
exec axolotl train "$here"/own/axolotl.yml
