"""What the fuzzer once found, by hand: each ended in a traceback, or waited for ever."""

from __future__ import annotations

import json
import math
import os
import signal
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest
from commandline import typed

from autotune.app.dataset import count
from autotune.app.learn.what_ran import _rank
from autotune.app.runs import find
from autotune.catalog import hub
from autotune.evidence.learned import residuals
from autotune.evidence.learned.effects import Residual
from autotune.evidence.learned.residuals import PARTS, _residual
from autotune.evidence.learned.store import store_path
from autotune.search.measured import prior
from autotune.trace.answers import read_recorded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

JOB = "jobs/tiny_cpu.yaml"


def pipe(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """What waits for longer ends in an error that no reader expects."""

    def late(*_: object) -> None:
        msg = f"it waited for {seconds:g} s"
        raise RuntimeError(msg)

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


@pytest.mark.parametrize("put", [pipe, endless])
@pytest.mark.parametrize("name", ["learned", "verified"])
def test_a_store_that_is_no_file_is_not_waited_for(
    put: Callable[[Path], None], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path / "home"))
    place = store_path()
    if name == "verified":
        from autotune.app.job.load import load_job
        from autotune.evidence.runs_seen import store_of

        place = store_of(load_job(JOB))
    place.parent.mkdir(parents=True)
    put(place)
    assert typed("estimate", JOB, "--fidelity", "formula", "-q", home=tmp_path).returncode == 0


@pytest.mark.parametrize("put", [pipe, endless])
@pytest.mark.parametrize(
    ("place", "read", "nothing"),
    [
        ("residuals.json", lambda _: residuals._kept(), {}),
        ("trace.json", read_recorded, None),
        ("count.json", lambda path: count.kept_count(path.stem), None),
        ("prior.json", lambda path: prior._read(path)[0], prior._NOTHING),
        ("trials.jsonl", lambda path: find._tried(path.parent), "0 trials"),
        ("config.json", lambda path: hub._read(path, 1000), None),
    ],
)
def test_a_kept_file_that_is_no_file_is_not_waited_for(
    put: Callable[[Path], None], place: str, read: Callable[[Path], object], nothing: object,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(residuals, "store_path", lambda: tmp_path / "runs.json")
    monkeypatch.setattr(count, "_path", lambda key: tmp_path / f"{key}.json")
    put(tmp_path / place)
    with interrupted_after(10.0):
        assert read(tmp_path / place) == nothing


def test_a_pipe_beside_a_trainers_output_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "all_results.json").write_text('{"train_runtime": 100.0, "epoch": 1.0}')
    pipe(tmp_path / "out" / "train.yaml")
    done = typed("learn", str(tmp_path / "out"), home=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "the GPU is named nowhere" in done.stderr


@pytest.mark.parametrize("absent", ["micro_batch_size", "gradient_accumulation_steps"])
def test_a_recorded_pick_without_its_batch_is_named(absent: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert typed("tune", JOB, "--run", str(run), home=tmp_path).returncode == 0
    answer: dict[str, Any] = json.loads((run / "recommendation.json").read_text())
    del answer["best"]["config"][absent]
    (run / "recommendation.json").write_text(json.dumps(answer))
    done = typed("report", str(run), "--format", "md", home=tmp_path)
    assert done.returncode == 2
    assert f"{absent} is not there" in done.stderr


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda row: row["config"].pop("gradient_accumulation_steps"), "accumulation_steps is not"),
        (lambda row: row["config"].pop("precision"), "precision is not there"),
        (lambda row: row["time_s"].update(data_wait=math.nan), "time_s.data_wait: it is nan"),
    ],
)
def test_a_recorded_alternative_that_is_damaged_is_named(
    damage: Callable[[Any], None], named: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert typed("tune", JOB, "--run", str(run), home=tmp_path).returncode == 0
    answer: dict[str, Any] = json.loads((run / "recommendation.json").read_text())
    damage(answer["alternatives"][1])
    (run / "recommendation.json").write_text(json.dumps(answer))
    for format_ in ("html", "json"):
        done = typed("report", str(run), "--format", format_, home=tmp_path)
        assert done.returncode == 2
        assert "damaged at alternatives.1" in done.stderr
        assert named in done.stderr


@pytest.mark.parametrize(
    "damage", [{"device": ["h100"] * 3}, {"count": 1.5}, {"save_bytes_per_s": "fast"}, {"id": 3}]
)
def test_a_kept_residual_of_another_type_is_none(damage: dict[str, Any]) -> None:
    sound = Residual("a", "h100", 1, "s", "m", "x", 0.1, 0.1, 0.1, (0.1,) * PARTS, 2048.0)
    assert _residual(asdict(sound)) == sound
    with pytest.raises((ValueError, TypeError)):
        _residual({**asdict(sound), **damage})


def test_a_rank_that_no_adapter_has_is_none() -> None:
    assert [_rank(each) for each in (1e300, "x", -4, None, 10**9, "16", 8)] == [
        0,
        0,
        0,
        0,
        0,
        16,
        8,
    ]


def test_no_steps_at_all_fit_no_batch(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(
        "model: Qwen/Qwen2.5-0.5B\ndata: {rows: 100, max_length: 64}\nhardware: [h100]\n"
        "stated: [{steps: 0}]\n"
    )
    assert typed("estimate", str(job), "--fidelity", "formula", home=tmp_path).returncode in {0, 2}


@pytest.mark.parametrize("key", ["evals_per_epoch", "saves_per_epoch"])
def test_what_happens_once_in_more_epochs_than_any_training_has_is_read(
    key: str, tmp_path: Path
) -> None:
    path = tmp_path / "axolotl.yml"
    path.write_text(
        "base_model: Qwen/Qwen2.5-0.5B\nadapter: lora\nlora_r: 8\nsequence_len: 512\n"
        "datasets: [{path: a/b, type: alpaca}]\nval_set_size: 0.05\nmicro_batch_size: 1\n"
        f"gradient_accumulation_steps: 1\nnum_epochs: 1\n{key}: 1.0e-308\n"
    )
    words = ("estimate", str(path), "--rows", "1000", "--gpu", "h100", "-q")
    done = typed(*words, "--fidelity", "formula", home=tmp_path)
    assert done.returncode in {0, 2}, done.stderr
