# Two cards, adapters on a base in 4 bits.
nproc_per_node=2

CUDA_VISIBLE_DEVICES=0,1 \
NPROC_PER_NODE=$nproc_per_node \
swift sft \
    --model Qwen/Qwen2.5-7B-Instruct \
    --tuner_type lora \
    --dataset 'own/answers#3000' \
              'own/chats#1000' \
    --split_dataset_ratio 0.01 \
    --torch_dtype bfloat16 \
    --quant_method bnb --quant_bits 4 \
    --num_train_epochs 2 \
    --per_device_train_batch_size 2 \
    --gradient_accumulation_steps $(expr 16 / $nproc_per_node / 2) \
    --lora_rank 16 \
    --lora_alpha 32 \
    --target_modules all-linear \
    --attn_impl flash_attn \
    --max_length 4096 \
    --save_steps 50 --save_total_limit 2 \
    --dataloader_num_workers 4 \
    --deepspeed zero2 \
    --model_author own --model_name helper \
    --output_dir output
