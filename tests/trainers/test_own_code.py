"""litgpt and torchtune run code of their own, and their files are priced as such."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from autotune.app.job.load import load_jobs
from autotune.app.job.overrides import Overrides
from autotune.catalog.software import find_software
from autotune.cost.memory.states import quantised

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.domain.job import Job

LITGPT = """
checkpoint_dir: checkpoints/{model}
precision: {precision}
devices: {devices}
{adapters}
train: {{micro_batch_size: 2, global_batch_size: 8, max_seq_length: 512, epochs: 1}}
"""
LORA = "lora_r: 8\nlora_query: true"
TORCHTUNE = """
model: {_component_: torchtune.models.llama3_1.lora_llama3_1_8b, lora_attn_modules: [q_proj],
        lora_rank: 8, lora_alpha: 16, use_dora: true}
checkpointer: {checkpoint_dir: /tmp/Meta-Llama-3.1-8B-Instruct}
tokenizer: {max_seq_len: 2048}
dtype: bf16
batch_size: 2
"""


def litgpt(
    folder: Path, *, model: str = "meta-llama/Llama-2-7b-hf", precision: str = "bf16-true",
    devices: int = 1, adapters: str = LORA,
) -> Job:  # fmt: skip
    path = folder / "c.yaml"
    path.write_text(
        LITGPT.format(model=model, precision=precision, devices=devices, adapters=adapters)
    )
    return load_jobs(path, Overrides(gpus=("a10g",), stated={"data.rows": 800}))[0].job


def test_a_file_of_litgpt_is_priced_as_litgpts_own_code(tmp_path: Path) -> None:
    software = litgpt(tmp_path).software
    assert (software.own_model, software.stack, software.loss) == (True, "litgpt", "chunked")
    assert not software.autocast


def test_litgpts_mixed_precision_computes_under_autocast(tmp_path: Path) -> None:
    assert litgpt(tmp_path, precision="bf16-mixed").software.autocast


@pytest.mark.parametrize(("devices", "recomputes"), [(1, "none"), (4, "full")])
def test_litgpt_shards_and_recomputes_on_several_devices(
    tmp_path: Path, devices: int, recomputes: str
) -> None:
    today = litgpt(tmp_path, devices=devices).today
    assert today is not None
    assert today.activation_checkpointing == recomputes
    assert today.sharding == ("fsdp" if devices > 1 else "none")


def test_full_litgpt_on_several_devices_may_take_twice_its_states(tmp_path: Path) -> None:
    one, four = (litgpt(tmp_path, devices=n, adapters="optimizer: AdamW") for n in (1, 4))
    widened = four.uncounted_sd[1] ** 2 - one.uncounted_sd[1] ** 2
    assert np.sqrt(widened) * 1.2816 == pytest.approx(np.log(2.0), rel=0.01)


def test_litgpt_quantises_the_class_of_linears_that_transformers_leaves(tmp_path: Path) -> None:
    job = litgpt(tmp_path, model="tiiuae/falcon-7b", adapters=f"quantize: bnb.nf4\n{LORA}")
    assert quantised(job)


def test_torchtunes_files_run_its_own_code_sharded_and_may_have_dora(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(TORCHTUNE)
    stated = {"data.rows": 800}
    job = load_jobs(path, Overrides(gpus=("2xh100",), stated=stated))[0].job
    assert (job.software.own_model, job.software.stack) == (True, "torchtune")
    assert job.method.is_dora
    assert job.today is not None
    assert (job.today.sharding, job.today.adapter_dtype) == ("fsdp", "bf16")


def test_a_job_file_names_a_trainer_with_code_of_its_own() -> None:
    found = find_software({"trainer": "litgpt", "loss": "upcast", "autocast": "true"})
    assert (found.own_model, found.loss, found.autocast) == (True, "upcast", True)
    assert not find_software({"trainer": "trl"}).own_model
