#!/usr/bin/env bash
# litgpt: meta-llama/Llama-3.1-8B on h100-sxm
# global batch 8 = micro 8 x accumulation 1 x 1 device(s)
set -euo pipefail

stop() { echo "run.sh: $*" >&2; exit 1; }
self="$(readlink -f -- "${BASH_SOURCE[0]:-$0}" 2>/dev/null || echo "${BASH_SOURCE[0]:-$0}")"
here="$(CDPATH="" cd -- "$(dirname -- "$self")" && pwd)"
name=own/litgpt.yaml
[[ -f "$here/$name" ]] || stop "$name is not in $here: start run.sh in its run folder, or take the whole folder along"

# more visible devices than these would change the global batch
export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES:-0}"
export TOKENIZERS_PARALLELISM=false  # tokenizer threads and forks deadlock
export TORCH_CUDNN_SDPA_DEPRIORITIZED="${TORCH_CUDNN_SDPA_DEPRIORITIZED:-1}"  # else cuDNN's attention builds a plan for every new length of a batch

exec litgpt finetune_lora --config "$here"/own/litgpt.yaml
