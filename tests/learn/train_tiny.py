"""A tiny random Llama, trained by the real Trainer; what it writes is read by `autotune learn`."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

ROWS, LENGTH = 160, 32


class Rows(torch.utils.data.Dataset):  # type: ignore[misc]
    """Equal rows."""

    def __len__(self) -> int:
        """How many."""
        return ROWS

    def __getitem__(self, index: int) -> dict[str, Any]:
        """One of them."""
        ids = torch.arange(LENGTH) % 256
        return {"input_ids": ids, "labels": ids}


def main() -> None:
    """Train, and save what a script usually saves."""
    torch.manual_seed(0)
    shape = json.loads(sys.argv[1])
    loggers = sys.argv[2].split(",")
    model = LlamaForCausalLM(LlamaConfig(**shape))
    arguments = TrainingArguments(
        "out", per_device_train_batch_size=4, gradient_accumulation_steps=2, num_train_epochs=3,
        save_steps=20, eval_strategy="steps", eval_steps=20, logging_steps=5, report_to=loggers,
        use_cpu=True, optim="adamw_torch", learning_rate=1e-4,
    )  # fmt: skip
    rows = Rows()
    trainer = Trainer(
        model=model, args=arguments, train_dataset=rows,
        eval_dataset=torch.utils.data.Subset(rows, range(8)),
    )  # fmt: skip
    metrics = trainer.train().metrics
    trainer.save_metrics("train", metrics)
    trainer.save_state()
    trainer.save_model()
    sys.stdout.write(f"{metrics}\n")


main()
