"""A checkpoint that stores quantised weights is trained on as stored, or refused by name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from autotune.app.estimate import estimate
from autotune.app.job.load import load_job
from autotune.app.tune.tune import Options, tune
from autotune.catalog.models.hf_config import stored_as
from autotune.domain.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.domain.job import Job

PLAIN = {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632,
    "num_attention_heads": 32, "num_key_value_heads": 4, "num_hidden_layers": 22,
    "vocab_size": 32000, "max_position_embeddings": 2048,
}  # fmt: skip
NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
INT8 = {"load_in_8bit": True}


def job_of(folder: Path, stored: dict[str, Any] | None, method: str) -> Job:
    config = PLAIN if stored is None else {**PLAIN, "quantization_config": stored}
    (folder / "m").mkdir()
    (folder / "m" / "config.json").write_text(json.dumps(config))
    path = folder / "job.yaml"
    path.write_text(
        f"model: m\nmethod: {method}\ndata: {{rows: 10, max_length: 64}}\nhardware: l4\n"
    )
    return load_job(path)


@pytest.mark.parametrize(
    ("stored", "method", "base"),
    [
        (None, "lora", "16bit"),
        (NF4, "lora", "nf4"),
        (NF4, "qlora", "nf4"),
        (NF4, "{kind: lora, base: nf4}", "nf4"),
        (INT8, "lora", "int8"),
        ({"quant_method": "fp8"}, "lora", "16bit"),
        ({"quant_method": "mxfp4"}, "qlora", "nf4"),
    ],
)
def test_the_base_is_what_the_checkpoint_holds_unless_it_can_be_unpacked(
    tmp_path: Path, stored: dict[str, Any] | None, method: str, base: str
) -> None:
    job = job_of(tmp_path, stored, method)
    assert job.method.base == base
    assert "quantization_config" not in job.model.hf_config
    said = [item.why for item in job.assumed if item.key == "method.base"]
    assert len(said) == (method == "lora")
    if stored and said:
        assert "checkpoint" in said[0] or "stores" in said[0]


@pytest.mark.parametrize(
    ("stored", "method", "why"),
    [
        ({"quant_method": "gptq", "bits": 4}, "lora", "quantised by gptq"),
        ({"bits": 4}, "lora", "quantised by unnamed"),
        ({"load_in_4bit": True}, "lora", "quantised by fp4"),
        (NF4, "full", "full fine-tuning cannot train them"),
        (NF4, "{kind: lora, base: 16bit}", "base is 16bit"),
        (INT8, "qlora", "base is nf4"),
    ],
)
def test_what_cannot_be_trained_as_it_is_stored_is_refused(
    tmp_path: Path, stored: dict[str, Any], method: str, why: str
) -> None:
    with pytest.raises(InputError, match=why):
        job_of(tmp_path, stored, method)


def test_a_config_without_the_key_or_with_nonsense_in_it_is_plain() -> None:
    assert stored_as({}) == stored_as({"quantization_config": "4bit"}) == ""


@pytest.mark.parametrize(
    ("transformers", "says"),
    [("5.23.0", "keeps a layer's experts as one parameter"), ("4.57.0", "")],
)
def test_experts_that_a_quantised_base_leaves_in_16_bit_are_named(
    tmp_path: Path, transformers: str, says: str
) -> None:
    job = {
        "model": "mistralai/Mixtral-8x7B-v0.1", "method": "qlora", "software":
        {"transformers": transformers}, "data": {"rows": 100, "max_length": 512},
        "hardware": ["2x a100-sxm4-80gb@4USD/h"],
    }  # fmt: skip
    path = tmp_path / "job.json"
    path.write_text(json.dumps(job))
    loaded = load_job(path)
    answer = tune(loaded, Options(dry_run=True, fidelity="formula", trials=1))
    told = [text for text in answer.warnings if "experts" in text]
    assert bool(told) == bool(says)
    assert all(says in text and "84.0 GiB" in text for text in told)
    assert [
        text for text in estimate(loaded, fidelity="formula").warnings if "experts" in text
    ] == told
