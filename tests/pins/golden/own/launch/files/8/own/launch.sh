#!/bin/bash
set -e
export A=1
accelerate launch --num_processes 2 --mixed_precision bf16 train.py \
    --model_name_or_path meta-llama/Llama-3.1-8B --use_peft --lora_r 16 --lora_alpha=32 \
    --per_device_train_batch_size 8 --gradient_accumulation_steps=1 \
    --learning_rate 2e-4 --bf16 True --max_seq_length 1024 \
    --output_dir "my out" --gradient_checkpointing False --save_steps 1875 --save_total_limit 2
echo done
