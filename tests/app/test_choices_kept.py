"""What the user placed stays: limits of checkpoints, saves by the epoch. An assumed disk warns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.app.load_job import load_job, load_jobs
from autotune.app.overrides import Overrides
from autotune.app.tune import Options, tune

ROOT = Path(__file__).parents[2]
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
    assert found.config.checkpoint_every_steps == job.today.checkpoint_every_steps == 6500
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
    assert any("nobody stated the disk" in text for text in answer.warnings)


def test_a_stated_disk_that_is_too_small_forbids(large: Any) -> None:
    (offer,) = large.offers
    assumed = tuple(field for field in offer.host.assumed if field != "disk_bytes")
    host = replace(offer.host, disk_bytes=60e9, assumed=assumed)
    answer = tune(replace(large, offers=(replace(offer, host=host),)), QUICK)
    assert answer.best is None  # where an assumed one of 200 GB lets it run


def test_an_assumed_host_grows_with_its_devices(large: Any) -> None:
    (eight,) = large.offers
    (one,) = load_job(CASE_D, gpus=["h200-sxm"]).offers
    for field in ("cores", "ram_bytes", "shm_bytes", "disk_bytes"):
        assert getattr(eight.host, field) == 8 * getattr(one.host, field)
