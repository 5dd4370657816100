"""Real-looking files of every trainer that is read, and how a test reads them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from autotune.app.job.trainer_file import parsed_again, values_beside
from autotune.domain.job import Beside, Origin

if TYPE_CHECKING:
    from typing import Any

    from autotune.trainers.parsed import Parsed

FOLDER = Path(__file__).parent / "own"
FILES = {  # file -> (trainer, syntax); scripts carry .txt so that no tool formats them
    "training_args.json": ("hf", "json"),
    "sft_config.yaml": ("trl", "yaml"),
    "sft_script.txt": ("trl", "python"),
    "launch.sh": ("trl", "shell"),
    "axolotl.yml": ("axolotl", "yaml"),
    "axolotl_2024.yml": ("axolotl", "yaml"),
    "llamafactory.yaml": ("llamafactory", "yaml"),
    "unsloth_script.txt": ("unsloth", "python"),
    "torchtune.yaml": ("torchtune", "yaml"),
    "litgpt.yaml": ("litgpt", "yaml"),
    "swift.sh": ("swift", "shell"),
}
BESIDE = {  # configs of accelerate and DeepSpeed -> syntax
    "beside/zero3.json": "json",
    "beside/accelerate_zero2.yaml": "yaml",
    "beside/accelerate_fsdp.yaml": "yaml",
}


def origin(name: str, text: str | None = None) -> Origin:
    trainer, syntax = FILES[name]
    found = text if text is not None else (FOLDER / name).read_text(encoding="utf-8")
    return Origin(trainer, syntax, name, found)


def read(name: str, text: str | None = None) -> tuple[Parsed, dict[str, Any]]:
    return parsed_again(origin(name, text))


def syntax_of(name: str) -> str:
    return BESIDE[name] if name in BESIDE else FILES[name][1]


def values_of(name: str) -> dict[str, Any]:
    """The mapping that a file is."""
    return values_beside(beside(name)) if name in BESIDE else read(name)[1]


def beside(name: str) -> Beside:
    return Beside(name, BESIDE[name], (FOLDER / name).read_text(encoding="utf-8"))


# The least that a file of each says, as its mapping.
AXOLOTL = {
    "base_model": "meta-llama/Llama-3.1-8B", "adapter": "lora", "lora_r": 16, "lora_alpha": 32,
    "lora_target_linear": True, "micro_batch_size": 2, "gradient_accumulation_steps": 4,
    "sequence_len": 2048, "num_epochs": 1, "bf16": True, "datasets": [{"path": "x"}],
}  # fmt: skip
FACTORY = {
    "model_name_or_path": "meta-llama/Llama-3.1-8B", "stage": "sft", "finetuning_type": "lora",
    "lora_rank": 16, "lora_target": "all", "cutoff_len": 2048, "bf16": True, "dataset": "x",
    "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "num_train_epochs": 1.0,
}  # fmt: skip
