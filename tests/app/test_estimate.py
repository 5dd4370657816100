"""`estimate` prices what the user states, and refuses what cannot run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import autotune
from autotune.app.estimate import estimate
from autotune.app.job.load import load_job
from autotune.domain.errors import NOTHING_FEASIBLE, InputError
from tests.commandline import typed

if TYPE_CHECKING:
    from autotune.domain.job import Job

JOB = """\
model: {model}
method: lora
data: {{rows: 64, max_length: 64, padding: max_length}}
train: {{global_batch_size: 8}}
hardware: [{{gpu: l4, count: {count}, price: 1 USD/h, host: {{cores: 8}}}}]
{rest}
"""


def job_of(folder: Path, *, model: str = "Qwen/Qwen2-0.5B", count: int = 1, rest: str = "") -> Job:
    path = folder / "job.yaml"
    path.write_text(JOB.format(model=model, count=count, rest=rest))
    return load_job(path)


@pytest.mark.parametrize(
    ("model", "count", "knob", "value", "why"),
    [
        ("google/gemma-2-2b", 1, "attention", "sdpa", "does not have the kernel"),
        ("Qwen/Qwen2-0.5B", 1, "precision", "fp32", "need base 32bit"),
        ("Qwen/Qwen2-0.5B", 1, "sharding", "fsdp", "one device is not sharded"),
        ("Qwen/Qwen2-0.5B", 4, "sharding", "none", "several always are"),
        ("Qwen/Qwen2-0.5B", 1, "num_dataloader_workers", 1000, "than the host has cores"),
    ],
)
def test_a_value_that_cannot_run_is_refused(
    tmp_path: Path, model: str, count: int, knob: str, value: object, why: str
) -> None:
    job = job_of(tmp_path, model=model, count=count)
    with pytest.raises(InputError, match=why) as caught:
        autotune.estimate(job, **{knob: value})
    assert f"{knob} {value}" in caught.value.message


@pytest.mark.parametrize(
    ("knob", "value"), [("precision", "fp16"), ("packing", "on"), ("adapter_dtype", "bf16")]
)
def test_a_value_that_the_search_only_passes_over_is_priced(
    tmp_path: Path, knob: str, value: str
) -> None:
    assert autotune.estimate(job_of(tmp_path), **{knob: value}).config.as_dict()[knob] == value


def test_a_config_of_today_that_cannot_run_is_priced_and_doubted(tmp_path: Path) -> None:
    found = estimate(job_of(tmp_path, rest="evidence: [{today: true, config: {precision: fp32}}]"))
    assert found.row.config.precision == "fp32"
    assert any("cannot run as it stands" in note for note in found.warnings)


def test_an_evaluation_has_one_batch_and_saves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "model: Qwen/Qwen2-0.5B\nmethod: lora\ntrain: none\nhardware: l4\n"
        "data: {rows: 64, max_length: 64}\nevaluation: {rows: 64, batch_size: 12}\n"
    )
    answer = autotune.tune(load_job(path), fidelity="formula")
    config = answer.best.config
    assert (config.micro_batch_size, config.gradient_accumulation_steps) == (12, 1)
    assert answer.reasons["checkpoint_every_steps"].startswith("nothing is saved")


def test_reasons_of_saves_say_what_decided(tmp_path: Path) -> None:
    short = autotune.tune(job_of(tmp_path), fidelity="formula")
    assert short.reasons["checkpoint_every_steps"].startswith("one save, at the end")
    locked = autotune.tune(job_of(tmp_path, rest="lock: {save_total_limit: 1}"), fidelity="formula")
    assert locked.reasons["save_total_limit"] == "locked by the job"


def test_a_stock_samplers_pick_is_not_called_a_tie_with_what_it_never_tried() -> None:
    job = load_job(Path(__file__).parents[2] / "jobs" / "h100_38h.yaml")
    answer = autotune.tune(job, fidelity="formula", sampler="random", trials=3, seed=1)
    assert answer.best is not None
    assert any("by the formula; nobody measured it" in why for why in answer.reasons.values())


OPEN = {
    "attention", "activation_checkpointing", "micro_batch_size", "method.targets", "software",
    "method.base",
}  # fmt: skip


def test_a_run_that_stands_as_it_is_may_have_settings_that_nobody_stated(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    text = JOB.format(model="Qwen/Qwen2-0.5B", count=1, rest="")
    text = text.replace("padding: max_length", "lengths: {p50: 20, p95: 50}")
    path.write_text(text.replace("rows: 64", "rows: 50000"))
    job = load_job(path)
    found = estimate(job)
    assert set(found.job.unsaid) == OPEN
    listed = {item.key: item for item in found.job.assumed}
    assert listed["lock.attention"].value == found.row.config.attention == "sdpa"
    assert any("if one more thing were said" in text for text in found.warnings)
    said = {"attention": "sdpa", "activation_checkpointing": "none", "micro_batch_size": 8}
    told = autotune.estimate(job, **said)
    assert told.duration_s.p50 == pytest.approx(found.row.duration_s.p50)
    assert told.duration_s.p90 < found.row.duration_s.p90
    assert told.duration_s.p10 >= found.row.duration_s.p10


def test_what_a_search_picks_and_what_a_trainers_file_says_is_said(tmp_path: Path) -> None:
    assert not autotune.tune(job_of(tmp_path)).job.unsaid
    own = tmp_path / "train.sh"
    own.write_text(
        "torchrun train.py --model_name_or_path Qwen/Qwen2-0.5B --dataset_name tatsu-lab/alpaca "
        "--per_device_train_batch_size 4 --num_train_epochs 1 --output_dir out\n"
    )
    read = load_job(own, gpus=["l4@1USD/h"], set_values={"method.kind": "lora"})
    assert estimate(read).job.unsaid == ("method.base",)  # which the script loads, not its flags
    own.write_text(own.read_text().replace("--output_dir", "--torch_dtype bfloat16 --output_dir"))
    told = load_job(own, gpus=["l4@1USD/h"], set_values={"method.kind": "lora"})
    assert not estimate(told).job.unsaid
    today = job_of(tmp_path, rest="evidence: [{today: true, config: {precision: bf16}}]")
    assert not estimate(today).job.unsaid


TRLS_SCRIPT = """\
from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

args = SFTConfig(output_dir="out", max_length=4096, per_device_train_batch_size=8{more})
data = load_dataset("tatsu-lab/alpaca", split="train")
SFTTrainer(model="Qwen/Qwen2-0.5B", args=args, train_dataset=data).train()
"""


def test_a_script_of_trls_leaves_its_defaults_to_a_release_that_nobody_said(tmp_path: Path) -> None:
    """Older ones compute in fp32, keep all activations and hold all logits: 12 GiB or 160."""
    own, rows = tmp_path / "train.py", {"data.rows": "20000"}
    own.write_text(TRLS_SCRIPT.format(more=""))
    found = estimate(load_job(own, gpus=["l4@1USD/h"], set_values=rows))
    by_release = {each.value: each for each in found.fits_if if each.fact == "software"}
    assert by_release["default"].fits_probability >= 0.9 > found.row.fits_probability
    assert by_release["2025-08"].fits_probability < 0.05
    assert {"2025-02", "2024-05"}.isdisjoint(by_release)  # SFTConfig has max_length since 0.16
    for old in (
        {"software": "2025-08"},
        {"software.trl": "0.21.0", "software.transformers": "4.55.4", "software.torch": "2.8.0"},
    ):
        said = estimate(load_job(own, gpus=["l4@1USD/h"], set_values=old | rows))
        assert by_release["2025-08"].required_bytes == pytest.approx(said.row.memory_bytes.total)
    new = load_job(own, gpus=["l4@1USD/h"], set_values={"software.trl": "1.16.0"} | rows)
    assert estimate(new).row.fits_probability >= 0.9
    profile = load_job(own, gpus=["l4@1USD/h"], set_values={"software": "default"} | rows)
    assert estimate(profile).row == estimate(new).row  # the trainer's loss stays with a profile

    told = TRLS_SCRIPT.format(more=", bf16=True, gradient_checkpointing=True")
    own.write_text(told.replace("batch_size=8", "batch_size=1"))
    assert estimate(load_job(own, gpus=["l4@1USD/h"], set_values=rows)).row.fits_probability >= 0.9


def test_releases_that_cannot_run_a_script_are_no_doubt_of_it(tmp_path: Path) -> None:
    """SFTConfig is of TRL 0.9 and Qwen3 of transformers 4.51; what is left weighs by its age."""
    own, rows = tmp_path / "train.py", {"data.rows": "20000"}
    for model, releases in (
        ("Qwen/Qwen2-0.5B", {"default", "2025-08", "2025-02"}),
        ("Qwen/Qwen3-0.6B", {"default", "2025-08"}),
    ):
        text = TRLS_SCRIPT.format(more="").replace(" max_length=4096,", "")
        own.write_text(text.replace("Qwen/Qwen2-0.5B", model))
        found = estimate(load_job(own, gpus=["l4@1USD/h"], set_values=rows))
        listed = {x.value: x.fits_probability for x in found.fits_if if x.fact == "software"}
        assert listed.keys() == releases
        weights = {"default": 1.0, "2025-08": 0.5, "2025-02": 0.25}
        of_all = sum(weights[name] * listed[name] for name in listed)
        assert found.row.fits_probability == pytest.approx(
            of_all / sum(weights[name] for name in listed)
        )


def test_a_release_without_the_models_class_is_a_warning(tmp_path: Path) -> None:
    own = tmp_path / "train.py"
    own.write_text(TRLS_SCRIPT.format(more="").replace("Qwen/Qwen2-0.5B", "Qwen/Qwen3-0.6B"))
    old, new = (
        estimate(load_job(own, gpus=["h100"], set_values={"data.rows": "9", "software": name}))
        for name in ("2025-02", "2025-08")
    )
    told = "transformers 4.48.3 cannot load Qwen/Qwen3-0.6B: its class (qwen3) came with 4.51"
    assert told in old.warnings
    assert not any("cannot load" in text for text in new.warnings)


SILENT = """\
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2-7B"{dtype})
args = TrainingArguments(output_dir="out", per_device_train_batch_size=1, bf16=True)
Trainer(model=model, args=args, train_dataset=rows).train()
"""


def test_weights_that_a_script_gives_no_dtype_are_of_the_release_that_loads_them(
    tmp_path: Path,
) -> None:
    """Before transformers 5 in fp32: 28 GiB of a 7B, where its file alone takes 14."""
    own = tmp_path / "train.py"
    asked = {"data.rows": "9", "method.kind": "lora", "data.max_length": "512"}
    told = "train.py gives the weights no dtype: transformers before 5 loads fp32, 14.2 GiB more"

    def job(dtype: str = "", **software: str) -> Job:
        own.write_text(SILENT.format(dtype=dtype))
        return load_job(own, gpus=["rtx-4090"], set_values=asked | software)

    found, old = estimate(job()), estimate(job(software="2025-08"))
    by_release = {each.value: each for each in found.fits_if if each.fact == "software"}
    assert by_release["default"].fits_probability >= 0.9 > found.row.fits_probability
    assert by_release["2025-08"].required_bytes == pytest.approx(old.row.memory_bytes.total)
    assert old.row.memory_bytes.weights > 1.9 * found.row.memory_bytes.weights
    assert not estimate(job(", torch_dtype=torch.bfloat16")).fits_if
    assert not estimate(job(software="default")).fits_if

    assert sum(text.startswith(told) for text in autotune.tune(job()).warnings) == 1
    for each in (job(", dtype=torch.bfloat16"), job(software="default")):
        assert not any("no dtype" in text for text in autotune.tune(each).warnings)


LOCKED = "lock: {micro_batch_size: 8, activation_checkpointing: full}"


def test_pairs_under_an_older_trl_hold_all_of_their_logits(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    text = JOB.format(model="Qwen/Qwen2-0.5B", count=1, rest=LOCKED)
    text = text.replace("max_length: 64", "max_length: 2048").replace(
        "method: lora", "method: full"
    )
    path.write_text(text.replace("train: {", "train: {objective: dpo, "))
    found = estimate(load_job(path))
    by_release = {each.value: each for each in found.fits_if if each.fact == "software"}
    assert by_release["2025-02"].required_bytes > 3 * by_release["default"].required_bytes
    assert found.fits_as_listed is not None
    assert found.fits_as_listed >= 0.9 > found.row.fits_probability


def test_an_estimate_says_on_what_it_turns_whether_the_run_fits(tmp_path: Path) -> None:
    """A command that does not say how weights are held, under a transformers that loads fp32."""
    own = tmp_path / "train.sh"
    own.write_text(
        "python train.py --model_name_or_path Qwen/Qwen2-7B --dataset_name tatsu-lab/alpaca --bf16 "
        "--per_device_train_batch_size 1 --num_train_epochs 1 --output_dir out "
        "--gradient_checkpointing\n"
    )
    old = {"method.kind": "lora", "software.transformers": "4.44.0"}
    job = load_job(own, gpus=["l4@1USD/h"], set_values=old)
    found = estimate(job)
    by_value = {own.value: own for own in found.fits_if}
    assert {own.fact for own in found.fits_if} == {"method.base"}
    assert by_value["16bit"].assumed
    assert by_value["16bit"].fits_probability == found.fits_as_listed >= 0.9
    assert by_value["32bit"].fits_probability < 0.05
    grown = by_value["32bit"].required_bytes - by_value["16bit"].required_bytes
    assert grown == pytest.approx(2.0 * 7.6e9, rel=0.2)  # two bytes more a weight
    assert found.row.fits_probability == pytest.approx(
        (by_value["16bit"].fits_probability + by_value["32bit"].fits_probability) / 2.0
    )
    assert found.row.verdict == "at_risk"
    assert "the dtype that weights are loaded in, which nobody said" in found.warnings[0]
    assert not found.relaxations  # nothing but words is short
    said = load_job(own, gpus=["l4@1USD/h"], set_values={**old, "method.base": "16bit"})
    assert estimate(said).row.verdict == "fits"
    assert not estimate(said).fits_if
    new = load_job(own, gpus=["l4@1USD/h"], set_values={"method.kind": "lora"})
    assert estimate(new).row.fits_probability >= 0.9  # loads weights as they are stored


def test_the_screen_and_the_json_name_what_nobody_said(tmp_path: Path) -> None:
    job_of(tmp_path, model="Qwen/Qwen2-1.5B", rest="lock: {micro_batch_size: 8}")
    text = (tmp_path / "job.yaml").read_text().replace("max_length: 64", "max_length: 1024")
    (tmp_path / "job.yaml").write_text(text)
    done = typed("estimate", "job.yaml", home=tmp_path, cwd=tmp_path)
    assert done.returncode == NOTHING_FEASIBLE
    assert "P(fits) by what nobody said" in done.stdout
    told = typed("estimate", "job.yaml", "--format", "json", home=tmp_path, cwd=tmp_path).json
    own = {x["value"]: x for x in told["fits_if"] if x["fact"] == "activation_checkpointing"}
    assert own["none"]["assumed"]
    assert own["none"]["fits_probability"] < own["full"]["fits_probability"]
    assert told["fits_as_listed"] <= told["row"]["fits_probability"]


def test_a_fact_that_another_one_excludes_as_listed_is_told_with_what_it_goes_with(
    tmp_path: Path,
) -> None:
    """fp32 weights of a full fine-tuning go with FSDP and not with the DDP that is listed."""
    own = tmp_path / "job.yaml"
    own.write_text(
        "model: Qwen/Qwen2.5-7B\nmethod: full\ndata: {rows: 64, max_length: 1024}\n"
        "train: {global_batch_size: 64}\nhardware: [{gpu: 8xh100, price: 20USD/h}]\n"
        "lock: {micro_batch_size: 4}\n"
    )
    found = estimate(load_job(own))
    assert {"method.base", "sharding"} <= {each.fact for each in found.fits_if}
    assert "32bit" in {each.value for each in found.fits_if}
