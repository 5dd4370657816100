"""Code that comes with a model runs only when the user has said so."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from builders import PATIENT_S

from autotune.catalog.models.models import find_model
from autotune.trace.client import Traced, TraceFailed, Tracer
from autotune.trace.request import StepRequest, code_folder

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = {
    "model_type": "owncode", "architectures": ["OwnForCausalLM"], "vocab_size": 512,
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 6,
    "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6, "hidden_act": "silu",
    "auto_map": {
        "AutoConfig": "configuration_own.OwnConfig",
        "AutoModelForCausalLM": "modeling_own.OwnForCausalLM",
    },
}  # fmt: skip
OWN_CONFIG = "from .configuration_own import OwnConfig as config_class"
CODE = """
import pathlib
pathlib.Path({marker!r}).touch()
from transformers import Llama{base}
class Own{name}(Llama{base}):
    {body}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model with code of its own, which leaves a mark when it runs."""
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    made = tmp_path / "own-model"
    made.mkdir()
    (made / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    marker = str(tmp_path / "it ran")
    for file, name, base, body in (
        ("configuration_own", "Config", "Config", "model_type = 'owncode'"),
        ("modeling_own", "ForCausalLM", "ForCausalLM", OWN_CONFIG),
    ):
        text = CODE.format(marker=marker, name=name, base=base, body=body)
        (made / f"{file}.py").write_text(text, encoding="utf-8")
    return made


def request_of(folder: Path) -> StepRequest:
    model = find_model(str(folder))
    return StepRequest(
        model=json.loads(model.hf_config), num_layers=model.num_layers, micro_batch_size=1,
        seq_len=16, precision="bf16", base="16bit", attention="eager",
        activation_checkpointing="none", optimizer="adamw_torch_fused", rank=0,
    )  # fmt: skip


def test_the_folder_of_a_models_code_is_where_its_config_was_read(folder: Path) -> None:
    assert code_folder(find_model(str(folder))) == str(folder.resolve())
    assert code_folder(find_model("Qwen/Qwen-7B")) == "Qwen/Qwen-7B"


@pytest.mark.slow
def test_it_runs_only_when_it_is_trusted(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("peft")
    marker = tmp_path / "it ran"
    request = request_of(folder)
    with Tracer(cache=tmp_path / "cache", limit_s=PATIENT_S) as tracer:
        refused = tracer.trace(request)
        assert isinstance(refused, TraceFailed)
        assert refused.kind == "unsupported"
        assert "--trust-remote-code" in refused.message
        assert not marker.exists()
        trusted = tracer.trace(replace(request, remote=str(folder)))
    assert isinstance(trusted, Traced), trusted
    assert marker.exists()
