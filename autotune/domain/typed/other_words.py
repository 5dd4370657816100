"""What do people type for something that has another name here, and what should they type?"""

from __future__ import annotations

import re

# Names in lower case with underscores: options of trainers, and words of their users. A number in
# what to type is an example, and gives way to the one that was typed.
_HERE = {
    "--set method.rank=16": ("rank", "r", "lora_rank", "lora_r"),
    "--set method.alpha=16": ("alpha", "lora_alpha"),
    "--set micro_batch_size=1": (
        "batch_size", "micro_batch", "micro_batch_size", "per_device_batch_size",
        "per_device_train_batch_size", "bs",
    ),
    "--global-batch 16": ("train_batch_size", "total_batch_size", "effective_batch_size"),
    "--set gradient_accumulation_steps=8": (
        "accumulation", "grad_accum", "gradient_accumulation", "gradient_accumulation_steps",
    ),
    "--set train.steps=100": ("steps", "max_steps"),
    "--set precision=bf16": ("bf16", "precision", "dtype"),
    "--set activation_checkpointing=full": (
        "checkpointing", "gradient_checkpointing", "activation_checkpointing",
    ),
    "--allow packing --set software.flash_attn=2.8.3": ("pack", "packing", "sample_packing"),
    "--allow length_grouping": ("group_by_length",),
    "--allow optimizer": (
        "8bit", "8bit_adam", "8bit_optimizer", "adamw_8bit", "paged_adamw_8bit", "adam8bit",
        "optim", "optimizer",
    ),
    "--allow offload": ("offload", "cpu_offload"),
    "--set software.flash_attn=2.8.3": (
        "flash", "flash_attn", "flash_attention", "flash_attention_2", "fa2",
    ),
    "--allow kernels --set software.liger_kernel=0.8.5": ("liger", "liger_kernel", "use_liger"),
    "--method qlora": ("4bit", "load_in_4bit", "nf4", "quantize", "quantization"),
    "--method lora --set method.base=int8": ("load_in_8bit", "int8", "lora_int8", "llm_int8"),
    "--gpu 2xNAME": ("num_gpus", "gpus", "n_gpus", "gpu_count", "nproc_per_node"),
    "--gpu 2xNAME --set sharding=zero3": ("deepspeed", "zero", "zero3", "zero_stage"),
    "--gpu 2xNAME --set sharding=fsdp": ("fsdp", "fsdp2"),
    "--set data.lengths.mean=350 --rows 20k": ("tokens", "num_tokens", "total_tokens"),
    "--data FILE": ("dataset", "train_file", "data_file", "data_path", "file"),
    "--max-length 512": (
        "seq_len", "seq_length", "cutoff_len", "max_seq_length", "sequence_len", "block_size",
        "max_seq_len", "context_length", "max_len",
    ),
    "--set data.lengths.mean=350": (
        "mean_length", "avg_length", "average_length", "mean_tokens", "avg_tokens",
        "average_tokens", "tokens_per_row", "tokens_per_sample",
    ),
    '--gpu "NAME spot"': ("spot", "preemptible", "interruptible"),
    "--variant dora": ("dora", "use_dora"),
    "--variant rslora": ("rslora", "use_rslora"),
    "--method full": ("fft", "full_ft", "full_finetune", "full_finetuning", "full_fine_tuning"),
    "--method lora": ("peft", "adapter", "adapters"),
    "--objective dpo": ("dpo", "ipo", "simpo"),
    "--objective kto": ("kto",),
    "--objective orpo": ("orpo",),
}  # fmt: skip
WORDS = {word: here for here, words in _HERE.items() for word in words}
_KEY_OF = {  # of a job file, for what is typed
    "--max-length 512": "data.max_length", "--data FILE": "data.dataset",
    "--gpu 2xNAME": "hardware.count",
}  # fmt: skip
_KEYS = {  # keys of a job file's sections, and what else people write there
    "hardware.gpu": ("device", "devices", "name", "type", "gpu_type", "gpu_name", "accelerator"),
    "hardware.count": ("num_devices",),
    "hardware.price": ("usd_per_hour", "price_per_hour", "hourly", "cost"),
    "method.kind": ("type", "name", "method", "peft_type"),
    "method.targets": ("target_modules", "lora_target", "modules"),
    "method.modules_to_save": ("additional_target", "lora_modules_to_save", "save_modules"),
    "data.dataset": ("path", "files", "name"),
    "data.lengths": ("length", "row_lengths", "token_lengths"),
    "data.rows": ("samples", "num_rows", "num_samples", "examples", "size"),
    "train.global_batch_size": ("batch", "bs", "effective_batch_size"),
    "train.epochs": ("num_train_epochs",),
    "limits.deadline": ("max_hours", "hours", "time"),
    "limits.budget": ("max_cost", "max_usd", "usd", "cost"),
}
_EXAMPLE = re.compile(r"(?<=[= ])[0-9]+(?=xNAME$|$)")
LEFT_OUT = "leave it out: it changes neither time nor memory"
UNPRICED = ("learning_rate", "lr", "seed", "warmup", "warmup_ratio", "warmup_steps", "scheduler",
            "lr_scheduler", "lr_scheduler_type", "weight_decay")  # fmt: skip


def typed_here(word: str, value: str = "") -> str:
    """What to type for a word of another program: "--allow packing"; empty where none is known.

    value: what was typed with it; a whole number takes the place of the example's.
    """
    here = WORDS.get(word.strip("-").casefold().replace("-", "_"), "")
    return _EXAMPLE.sub(value, here) if value.isdigit() else here


def key_meant(section: str, word: str) -> str:
    """The key of a job file's section that a word stands for; empty where none is known.

    section: "hardware"; word: a key that this section does not have.
    """
    here = typed_here(word)
    found = [_KEY_OF.get(here, here.removeprefix("--set ").partition("=")[0])]
    found += [key for key, words in _KEYS.items() if word.casefold() in words]
    return next((key for key in found if key.startswith(f"{section}.")), "")
