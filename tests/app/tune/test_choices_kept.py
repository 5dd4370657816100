"""What the user placed stays: limits of checkpoints, saves by the epoch. An assumed disk warns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.app.job.load import load_job, load_jobs
from autotune.app.tune.tune import Options, tune
from autotune.domain.typed.overrides import Overrides
from autotune.domain.units import format_bytes
from autotune.report.screens.screen import shortened
from autotune.report.sections.memory import shortfall_lead

ROOT = Path(__file__).parents[3]
AXOLOTL = ROOT / "jobs" / "trainers" / "axolotl.yml"
CASE_D = ROOT / "jobs" / "h100_38h.yaml"
QUICK = Options(dry_run=True, fidelity="formula", trials=1)


def best(job: Any) -> Any:
    found = tune(job, QUICK).best
    assert found is not None
    return found


def own(path: Path, **stated: object) -> Any:
    overrides = Overrides(gpus=("h100-sxm",), stated={"data.rows": 52_000, **stated})
    return load_jobs(path, overrides)[0].job


def test_saves_by_the_epoch_and_the_choice_among_them_are_the_users() -> None:
    job = own(AXOLOTL)
    found = best(job)
    assert found.config.checkpoint_every_steps == job.today.checkpoint_every_steps == 6175
    assert found.config.save_total_limit == 4


def test_a_stated_limit_of_checkpoints_is_never_lowered(tmp_path: Path) -> None:
    path = tmp_path / "axolotl.yml"
    path.write_text(AXOLOTL.read_text() + "save_total_limit: 3\n")
    assert best(own(path)).config.save_total_limit == 3
    job = load_job(CASE_D)
    assert best(job).config.save_total_limit == job.today.save_total_limit == 5
    assert any(each.key == "lock.save_total_limit" for each in job.assumed)


def test_set_opens_what_today_states() -> None:
    job = load_job(CASE_D, set_values={"save_total_limit": "2"})
    assert best(job).config.save_total_limit == 2


def test_saves_by_steps_stay_free() -> None:
    job = load_job(CASE_D)
    assert best(job).config.checkpoint_every_steps != job.today.checkpoint_every_steps


@pytest.fixture
def large(tmp_path: Path) -> Any:
    path = tmp_path / "job.yaml"
    path.write_text(
        "model: Qwen/Qwen2.5-32B\nmethod: {kind: full}\ndata: {rows: 50000, max_length: 1024}\n"
        "train: {epochs: 1, global_batch_size: 16}\nhardware: [{gpu: h200-sxm, count: 8}]\n"
    )
    return load_job(path)


def test_an_assumed_disk_warns_and_forbids_nothing(large: Any) -> None:
    (offer,) = large.offers
    assert "disk_bytes" in offer.host.assumed
    small = replace(offer, host=replace(offer.host, disk_bytes=200e9))
    answer = tune(replace(large, offers=(small,)), QUICK)
    assert answer.best is not None
    (said,) = [text for text in answer.warnings if "does not state the disk" in text]
    use = answer.best.disk
    needed = format_bytes(use.total_bytes + use.fetched_bytes + use.tokenised_bytes)
    assert f"needs {needed} of disk: {use.words}, and {use.beside}; rent that much" in said
    assert shortened(said, 80) == f"the run needs {needed} of disk."


def test_a_stated_disk_that_is_too_small_forbids(large: Any) -> None:
    (offer,) = large.offers
    assumed = tuple(field for field in offer.host.assumed if field != "disk_bytes")
    host = replace(offer.host, disk_bytes=60e9, assumed=assumed)
    answer = tune(replace(large, offers=(replace(offer, host=host),)), QUICK)
    assert answer.best is None  # where an assumed one of 200 GB lets it run
    missing = answer.rejected.shortfall
    assert missing is not None
    assert missing.fills.endswith("and the final model of 61.0 GiB")
    assert f"of disk for {missing.fills}, " in shortfall_lead(missing, nearest=True)


def test_a_stated_disk_that_has_no_room_for_the_download_is_spoken_of(large: Any) -> None:
    (offer,) = large.offers
    assumed = tuple(field for field in offer.host.assumed if field != "disk_bytes")

    def said(size: float) -> list[str]:
        host = replace(offer.host, disk_bytes=size, assumed=assumed)
        answer = tune(replace(large, offers=(replace(offer, host=host),)), QUICK)
        assert answer.best is not None
        return [text for text in answer.warnings if "need another disk, or a larger" in text]

    use = tune(large, QUICK).best.disk
    (told,) = said(use.total_bytes + use.fetched_bytes / 2)
    assert "of the model's files in $HF_HOME" in told
    assert not said(2 * use.total_bytes + use.fetched_bytes + use.tokenised_bytes)


def test_an_assumed_host_grows_with_its_devices(large: Any) -> None:
    (eight,) = large.offers
    (one,) = load_job(CASE_D, gpus=["h200-sxm"]).offers
    for field in ("cores", "ram_bytes", "shm_bytes", "disk_bytes"):
        assert getattr(eight.host, field) == 8 * getattr(one.host, field)


@pytest.mark.parametrize("stated", ["flash_attention: true", "sdp_attention: true"])
def test_a_stated_attention_kernel_is_kept_and_the_others_are_priced(
    tmp_path: Path, stated: str
) -> None:
    path = tmp_path / "axolotl.yml"
    path.write_text(AXOLOTL.read_text().replace("flash_attention: true", stated))
    job = own(path)
    kernel = job.today.attention
    assert job.lock["attention"] == kernel
    found = tune(job, QUICK)
    assert found.best.config.attention == kernel
    others = {e.value for e in found.sensitivities if e.key == "attention"}
    assert others
    assert kernel not in others


def test_an_attention_that_nobody_stated_is_searched(tmp_path: Path) -> None:
    path = tmp_path / "axolotl.yml"
    path.write_text(AXOLOTL.read_text().replace("flash_attention: true\n", ""))
    assert "attention" not in own(path).lock


@pytest.mark.parametrize(
    "opening", [{"allow": ("attention",)}, {"set_values": {"attention": "sdpa"}}]
)
def test_a_stated_attention_is_opened_by_name(opening: dict[str, Any]) -> None:
    overrides = Overrides(gpus=("h100-sxm",), stated={"data.rows": 52_000}, **opening)
    job = load_jobs(AXOLOTL, overrides)[0].job
    assert job.lock.get("attention") == opening.get("set_values", {}).get("attention")


def test_a_kernel_that_no_machine_runs_is_not_kept_and_that_is_said() -> None:
    overrides = Overrides(gpus=("t4",), stated={"data.rows": 52_000})
    job = load_jobs(AXOLOTL, overrides)[0].job
    assert "attention" not in job.lock
    (note,) = [each for each in job.assumed if each.key == "lock.attention"]
    assert note.value == "flash_attention_2 is not kept"
    assert "compute capability 8.0" in note.why


def test_the_kernel_of_a_job_files_own_run_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    text = (
        "model: Qwen/Qwen2.5-0.5B\nmethod: {kind: lora}\ndata: {rows: 2000, max_length: 512}\n"
        "train: {epochs: 1, global_batch_size: 8}\nhardware: [a100-80gb]\nevidence:\n"
        "  - {today: true, config: {micro_batch_size: 4, attention: eager}}\n"
    )
    path.write_text(text)
    job = load_job(path)
    assert job.lock["attention"] == "eager"
    found = tune(job, QUICK)
    assert found.best.config.attention == "eager"
    sdpa = [e for e in found.sensitivities if (e.key, e.value) == ("attention", "sdpa")]
    assert sdpa
    assert sdpa[0].saved_s is not None
    assert sdpa[0].saved_s > 0
    path.write_text(text + "lock: {attention: sdpa}\n")
    assert load_job(path).lock["attention"] == "sdpa"


MEETING = "save_steps: 400\neval_steps: 200\n"


def by_steps(text: str) -> str:
    return text.replace("evals_per_epoch: 4\n", "").replace("saves_per_epoch: 1\n", MEETING)


@pytest.mark.parametrize(
    ("old", "new", "kept"),
    [
        ("", "", True),
        ("eval_steps: 200", "eval_steps: 300", False),
        ("val_set_size: 0.05", "val_set_size: 0", False),
        ("eval_steps: 200", "eval_steps: 200\nload_best_model_at_end: false", False),
        ("eval_steps: 200", "eval_steps: 300\nload_best_model_at_end: true", True),
    ],
)
def test_saves_from_which_the_best_is_loaded_stay_where_they_are(
    tmp_path: Path, old: str, new: str, *, kept: bool
) -> None:
    path = tmp_path / "axolotl.yml"
    path.write_text(by_steps(AXOLOTL.read_text()).replace(old, new))
    job = own(path)
    assert (job.lock.get("checkpoint_every_steps") == 400) is kept
    if kept:
        assert best(job).config.checkpoint_every_steps == 400


@pytest.mark.parametrize("every", [200, 500])
def test_the_trainers_own_best_model_holds_saves_and_limit(tmp_path: Path, every: int) -> None:
    path = tmp_path / "training_args.json"
    path.write_text(
        '{"output_dir": "out", "per_device_train_batch_size": 4, "num_train_epochs": 2, '
        f'"eval_strategy": "steps", "eval_steps": {every}, "save_steps": {every}, '
        '"save_total_limit": 3, "load_best_model_at_end": true, "bf16": true}'
    )
    stated = {"model": "Qwen/Qwen2.5-0.5B", "method.kind": "lora", "data.rows": 20_000}
    overrides = Overrides(gpus=("a100-80gb",), stated=stated)
    job = load_jobs(path, overrides)[0].job
    found = best(job).config
    assert (found.checkpoint_every_steps, found.save_total_limit) == (every, 3)


def test_an_evaluation_schedule_is_never_moved() -> None:
    job = load_job(CASE_D)
    assert job.evaluation is not None
    for each in (
        tune(job, QUICK),
        tune(replace(job, limits=replace(job.limits, deadline_s=1.0)), QUICK),
    ):
        assert each.job.evaluation == job.evaluation
