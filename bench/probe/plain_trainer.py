"""`plain_trainer.py`: the same training without autotune, for comparison.

A request as a line of JSON on stdin is answered with a line on stdout, one after another.

transformers' Trainer as a user would call it, with the arguments written out here a second time,
and one callback that looks at two clocks when a step ends. Nothing of autotune is imported. Rows
are those of a request without a data set. Covers what runs on one device without quantisation.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import tempfile
import time
import warnings
from typing import Any

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "tf32": "float32"}
FIRST = 10  # steps that are not counted: the worker's longest rows and its way to steady ones


def rows(request: dict[str, Any], count: int) -> list[dict[str, list[int]]]:
    """Rows of random tokens with the request's lengths, in its order."""
    vocabulary = range(int(request["model"]["vocab_size"]))
    lengths = [min(int(n), request["max_length"]) for n in request["lengths"]]
    draw = random.Random(0)  # noqa: S311 - no secret
    made = [draw.choices(vocabulary, k=n) for n in lengths]
    return [{"input_ids": made[i % len(made)]} for i in range(count)]


def collate(request: dict[str, Any], batch: list[dict[str, list[int]]]) -> dict[str, Any]:
    """Rows padded on the right."""
    import torch

    width = max(len(row["input_ids"]) for row in batch)
    if request["padding"] == "max_length":
        width = request["max_length"]
    ids = [row["input_ids"] for row in batch]
    return {
        "input_ids": torch.tensor([i + [0] * (width - len(i)) for i in ids]),
        "attention_mask": torch.tensor([[1] * len(i) + [0] * (width - len(i)) for i in ids]),
        "labels": torch.tensor([i + [-100] * (width - len(i)) for i in ids]),
    }


def model_of(request: dict[str, Any]) -> Any:  # noqa: ANN401 - a module
    """The model with random weights, and adapters where they are asked for."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = {**request["model"], "num_hidden_layers": request["num_layers"], "use_cache": False}
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    wide = request["method"]["base"] == "32bit"
    dtype = getattr(torch, "float32" if wide else DTYPES[request["precision"]])
    model = AutoModelForCausalLM.from_config(
        config, attn_implementation=request["attention"], dtype=dtype
    )
    if request["method"]["kind"] != "lora":
        return model
    from peft import LoraConfig, get_peft_model

    method = request["method"]
    lora = LoraConfig(
        task_type="CAUSAL_LM", r=method["rank"], lora_alpha=method["alpha"],
        lora_dropout=method["dropout"], target_modules=method["targets"],
    )  # fmt: skip
    return get_peft_model(model, lora)


def train(request: dict[str, Any], folder: str) -> dict[str, Any]:
    """Train for as many steps as the request measures; [s] of each step."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    marks: list[tuple[float, float]] = []

    class Ends(TrainerCallback):  # type: ignore[misc, unused-ignore]  # typed where it is installed
        """When each step ended, by the wall and by the processor."""

        def on_step_end(self, *_: Any, **__: Any) -> None:  # noqa: ANN401 - Trainer's signature
            marks.append((time.perf_counter(), time.process_time()))

    plan = request["steps"]
    steps = FIRST + int(plan["measured"])
    micro, accumulation = request["micro_batch_size"], request["gradient_accumulation_steps"]
    arguments = TrainingArguments(
        output_dir=folder, max_steps=steps, per_device_train_batch_size=micro,
        gradient_accumulation_steps=accumulation, optim=request["optimizer"],
        dataloader_num_workers=request["num_dataloader_workers"],
        dataloader_pin_memory=request["pin_memory"],
        gradient_checkpointing=request["activation_checkpointing"] == "full",
        bf16=request["precision"] == "bf16", fp16=request["precision"] == "fp16",
        torch_compile=request["compile"] != "off", use_cpu=request["device"] == "cpu",
        logging_steps=10, save_strategy="no", report_to="none", disable_tqdm=True,
    )  # fmt: skip
    Trainer(
        model=model_of(request), args=arguments,
        train_dataset=rows(request, steps * micro * accumulation),
        data_collator=lambda batch: collate(request, batch), callbacks=[Ends()],
    ).train()  # fmt: skip
    pairs = list(zip(marks[FIRST - 1 :], marks[FIRST:], strict=False))
    return {
        "step_s": statistics.median(after[0] - before[0] for before, after in pairs),
        "cpu_s": statistics.median(after[1] - before[1] for before, after in pairs),
        "steps": len(pairs),
    }


def main() -> None:
    """Run as a program."""
    warnings.simplefilter("ignore")
    answers, sys.stdout = sys.stdout, sys.stderr  # the Trainer prints
    for line in sys.stdin:
        with tempfile.TemporaryDirectory() as folder:
            found = train(json.loads(line), folder)
        print(json.dumps(found), file=answers, flush=True)


if __name__ == "__main__":
    main()
