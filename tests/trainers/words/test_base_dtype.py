"""Weights that a file loads in one 16-bit dtype while it computes in the other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from exportcases import LORA, config, job, offer

from autotune.app.runs.export import export
from autotune.domain.errors import InputError
from tests.strangers import file

if TYPE_CHECKING:
    from pathlib import Path

QWEN = "Qwen/Qwen2.5-0.5B"
SCRIPT = f"""\
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("{QWEN}", torch_dtype=torch.%s)
model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj"]))
rows = rows.map(lambda row: tokenizer(row["text"], truncation=True, max_length=256))
args = TrainingArguments("out", per_device_train_batch_size=2, num_train_epochs=1, %s=True)
Trainer(model=model, args=args, train_dataset=rows).train()
"""
TRL = f"""\
model_name_or_path: {QWEN}
dtype: %s
%s: true
use_peft: true
lora_r: 8
per_device_train_batch_size: 2
num_train_epochs: 1
max_length: 256
"""


@pytest.mark.parametrize("text", [SCRIPT, TRL])
@pytest.mark.parametrize(
    ("stored", "computed", "kept"),
    [
        ("float16", "bf16", "fp16"),
        ("bfloat16", "fp16", "bf16"),
        ("float16", "fp16", ""),
        ("bfloat16", "bf16", ""),
        ("float32", "bf16", ""),
    ],
)
def test_only_the_other_16_bits_are_kept(
    tmp_path: Path, text: str, stored: str, computed: str, kept: str
) -> None:
    found = file(tmp_path / ("a.py" if text is SCRIPT else "a.yaml"), text % (stored, computed))
    assert found.software.base_dtype == kept
    told = [item.why for item in found.assumed if item.key == "software.base_dtype"]
    assert bool(told) is bool(kept)


def test_what_is_written_loads_the_weights_as_the_file_did() -> None:
    stated = replace(job(LORA).software, base_dtype="fp16")
    files = export("trl", replace(job(LORA), software=stated), offer(), config()).files
    assert any("float16" in text and "dtype" in text for text in files.values())


def test_a_job_file_says_it_in_two_words(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="software base_dtype"):
        file(tmp_path / "a.yaml", TRL % ("float16", "bf16"), **{"software.base_dtype": "fp8"})
