"""litgpt and torchtune run code of their own, and their files are priced as such."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from autotune.app.job.load import load_jobs
from autotune.catalog.software import find_software
from autotune.cost.columns import tabulate
from autotune.cost.memory.component import COMPONENT
from autotune.cost.memory.states import quantised
from autotune.domain.candidates import Candidates
from autotune.domain.job import Lengths
from autotune.domain.typed.overrides import Overrides
from tests.strangers import warnings

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
    devices: int = 1, adapters: str = LORA, set_values: dict[str, str] | None = None,
) -> Job:  # fmt: skip
    path = folder / "c.yaml"
    path.write_text(
        LITGPT.format(model=model, precision=precision, devices=devices, adapters=adapters)
    )
    return load_jobs(path, Overrides(
        gpus=("a10g",), stated={"data.rows": 800}, set_values=set_values or {}
    ))[0].job  # fmt: skip


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
    assert today.activation_checkpointing == recomputes
    assert today.sharding == ("fsdp" if devices > 1 else "none")


def test_full_litgpt_on_several_devices_may_take_a_quarter_more(tmp_path: Path) -> None:
    """Three published peaks of its shards are 4 to 24 % above what is counted."""
    one, four = (litgpt(tmp_path, devices=n, adapters="optimizer: AdamW") for n in (1, 4))
    widened = four.uncounted_sd[1] ** 2 - one.uncounted_sd[1] ** 2
    assert np.sqrt(widened) * 1.2816 == pytest.approx(np.log(1.24), rel=0.06)
    assert four.today.optimizer == "adamw_torch"


def test_litgpt_quantises_the_class_of_linears_that_transformers_leaves(tmp_path: Path) -> None:
    job = litgpt(tmp_path, model="tiiuae/falcon-7b", adapters=f"quantize: bnb.nf4\n{LORA}")
    assert quantised(job)


# [GB] live at the peak of a second micro-batch of 512 tokens a row, counted storage by storage in
# litgpt 0.5.13's own classes on the meta device: rows, rank, all matrices and head or queries and
# values; bitsandbytes' products stood in for, keeping what they read (0.42).
ALL = "\n".join(
    f"lora_{name}: true" for name in ("query", "key", "value", "projection", "mlp", "head")
)
QUERIES_VALUES = "lora_query: true\nlora_value: true"
COUNTED = [
    ("microsoft/phi-2", 4, 8, ALL, 0.05, 13.94, 14.16),
    ("tiiuae/falcon-7b", 1, 32, QUERIES_VALUES, 0.05, 16.58, 9.36),
    ("google/gemma-2b", 2, 8, ALL, 0.1, 12.56, 11.5),
    ("meta-llama/Llama-3.2-3B", 1, 32, QUERIES_VALUES, 0.05, 9.67, None),
    ("meta-llama/Llama-3.2-3B", 2, 32, QUERIES_VALUES, 0.05, None, 10.25),
    ("mistralai/Mistral-7B-v0.1", 2, 32, QUERIES_VALUES, 0.05, 20.65, 13.97),
]


@pytest.mark.parametrize("case", COUNTED, ids=lambda case: f"{case[0]}-{case[1]}")
def test_peaks_are_those_of_litgpts_own_classes(tmp_path: Path, case: tuple[Any, ...]) -> None:
    model, rows, rank, switches, dropout, plain, quantised_peak = case
    own = f"lora_r: {rank}\nlora_dropout: {dropout}\n{switches}"
    if plain:
        assert peak_gb(litgpt(tmp_path, model=model, adapters=own), rows) == pytest.approx(
            plain, rel=0.03
        )
    if quantised_peak:
        job = litgpt(
            tmp_path, model=model, adapters=f"quantize: bnb.nf4\n{own}",
            set_values={"software.bitsandbytes": "0.42.0"},
        )  # fmt: skip
        assert peak_gb(job, rows) == pytest.approx(quantised_peak, rel=0.12)


def peak_gb(job: Job, rows: int) -> float:
    """[GB, 10^9 bytes] allocated, at so many rows of 512 tokens."""
    config = job.today.with_knobs(micro_batch_size=rows)
    full = Lengths((512.0, 512.0), 512.0, 512, known=True)
    table = tabulate(
        COMPONENT, replace(job, lengths=full), Candidates.of([(job.offers[0], config)])
    )
    return float(table.gather("allocated")[0]) / 1e9


def test_litgpt_s_quantised_run_of_an_unknown_version_says_so(tmp_path: Path) -> None:
    own = f"quantize: bnb.nf4\n{LORA}"
    unknown = litgpt(tmp_path, adapters=own)
    known = litgpt(tmp_path, adapters=own, set_values={"software.bitsandbytes": "0.45.2"})
    assert unknown.uncounted_sd[1] > 0.15 > known.uncounted_sd[1]
    assert [item.key for item in unknown.origin.uncounted] == ["software.bitsandbytes"]


def test_scales_are_quantised_where_litgpt_s_file_says_so(tmp_path: Path) -> None:
    found = [
        litgpt(tmp_path, adapters=f"quantize: {word}\n{LORA}").method.double_quant
        for word in ("bnb.nf4", "bnb.nf4-dq")
    ]
    assert found == [False, True]


def test_torchtunes_files_run_its_own_code_sharded_and_may_have_dora(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(TORCHTUNE)
    stated = {"data.rows": 800}
    job = load_jobs(path, Overrides(gpus=("2xh100",), stated=stated))[0].job
    assert (job.software.own_model, job.software.stack) == (True, "torchtune")
    assert job.method.is_dora
    assert (job.today.sharding, job.today.adapter_dtype) == ("fsdp", "bf16")


FACTORY = """
model_name_or_path: Qwen/Qwen2.5-0.5B
stage: sft
finetuning_type: lora
cutoff_len: 512
"""


@pytest.mark.parametrize(("text", "dtype"), [
    (TORCHTUNE, "bf16"), (TORCHTUNE.replace("dtype: bf16", "dtype: fp32"), None),
    (LITGPT.format(model="pythia-160m", precision="bf16-true", devices=1, adapters=LORA), "bf16"),
    (LITGPT.format(model="pythia-160m", precision="bf16-mixed", devices=1, adapters=LORA), None),
    (LITGPT.format(model="pythia-160m", precision="bf16-true", devices=1, adapters=""), None),
    (f"{FACTORY}pure_bf16: true\n", "bf16"), (f"{FACTORY}bf16: true\n", None),
])  # fmt: skip
def test_adapters_are_searched_in_the_dtype_that_the_trainer_has_them_in(
    tmp_path: Path, text: str, dtype: str | None
) -> None:
    """A pick in another would be of a run that the file cannot state."""
    path = tmp_path / "c.yaml"
    path.write_text(text)
    job = load_jobs(path, Overrides(gpus=("h100",), stated={"data.rows": 800}))[0].job
    assert job.lock.get("adapter_dtype") == dtype
    assert job.today.adapter_dtype == (dtype or "fp32")


def test_a_job_file_names_a_trainer_with_code_of_its_own() -> None:
    found = find_software({"trainer": "litgpt", "loss": "upcast", "autocast": "true"})
    assert (found.own_model, found.loss, found.autocast) == (True, "upcast", True)
    assert not find_software({"trainer": "trl"}).own_model


def torchtune(folder: Path, more: str = "", *, compiled: bool = False) -> Job:
    path = folder / "t.yaml"
    own = f"compile: {str(compiled).lower()}\nenable_activation_checkpointing: true\n{more}"
    path.write_text(f"{TORCHTUNE.replace(', use_dora: true', '')}{own}\n")
    return load_jobs(path, Overrides(gpus=("h100",), stated={"data.rows": 800}))[0].job


def test_torchtune_s_loss_is_the_one_its_file_names(tmp_path: Path) -> None:
    whole = torchtune(tmp_path, "loss: {_component_: torch.nn.CrossEntropyLoss}")
    chunked = torchtune(
        tmp_path, "loss: {_component_: torchtune.modules.loss.CEWithChunkedOutputLoss}"
    )
    assert (whole.software.loss, chunked.software.loss) == ("upcast", "chunked")


def test_torchtune_s_compiled_chunks_keep_16_bit_logits_alone(tmp_path: Path) -> None:
    job = torchtune(tmp_path, compiled=True)
    logits = 2 * 2048 * job.model.vocab_size
    assert part(job, "logits") == pytest.approx(2.25 * logits)
    assert part(torchtune(tmp_path), "logits") == pytest.approx(7.0 * logits)


def test_torchtune_s_compiled_layers_keep_less(tmp_path: Path) -> None:
    without = {"activation_checkpointing": "none"}
    plain, fused = (
        part(torchtune(tmp_path, compiled=on), "activations", **without) for on in (False, True)
    )
    assert 0.6 < fused / plain < 0.9


def test_torchtune_s_offloaded_activations_are_priced(tmp_path: Path) -> None:
    job = torchtune(tmp_path, "enable_activation_offloading: true")
    assert job.today.offload == "activations"


def test_torchtune_evaluates_the_whole_of_its_other_rows_every_so_many_steps(
    tmp_path: Path,
) -> None:
    often, rows = "run_val_every_n_steps: 50", "dataset_val: {_component_: mine.rows}"
    found = torchtune(tmp_path, f"{often}\n{rows}\nbatch_size_val: 8")
    assert (found.evaluation.every_steps, found.evaluation.batch_size) == (50, 8)
    assert torchtune(tmp_path, f"{often}\n{rows}").evaluation.batch_size == 2  # as it trains
    assert torchtune(tmp_path, rows).evaluation is None


def test_a_loss_of_somebodys_own_in_torchtunes_file_is_said(tmp_path: Path) -> None:
    own, theirs = (
        warnings(torchtune(tmp_path, f"loss: {{_component_: {loss}}}"))
        for loss in ("mine.RankLoss", "torchtune.modules.loss.LinearCrossEntropyLoss")
    )
    assert "mine.RankLoss: no loss of torchtune's" in own
    assert "no loss of torchtune's" not in theirs


def part(job: Job, name: str, **knobs: Any) -> float:
    """[bytes] of one part of the peak of today's run, rows filled."""
    full = Lengths((2048.0, 2048.0), 2048.0, 2048, known=True)
    pair = (job.offers[0], job.today.with_knobs(**knobs))
    table = tabulate(COMPONENT, replace(job, lengths=full), Candidates.of([pair]))
    return float(table.gather(name)[0])
