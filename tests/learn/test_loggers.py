"""Loggers of the extra `loggers`, run live on a real training where they are installed."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from autotune.app.learn.described import past_run
from autotune.app.learn.learn import findings, learn
from autotune.app.learn.walk import Unreadable, walk

if TYPE_CHECKING:
    from pathlib import Path

SOURCES = {"wandb": "W&B run", "tensorboard": "TensorBoard log", "mlflow": "MLflow run"}


@pytest.mark.slow
@pytest.mark.parametrize("logger", SOURCES)
def test_what_a_logger_wrote_of_a_real_training_is_that_training(
    logger: str, trained: Path
) -> None:
    pytest.importorskip(logger)
    told = json.loads((trained / "out" / "train_results.json").read_text())
    found = {}
    for _, read in findings(walk([trained])):
        one = read()
        found[one.source] = one
    assert {"Trainer output", SOURCES[logger]} <= set(found)
    logged = found[SOURCES[logger]]
    assert logged.results["train_runtime"] == pytest.approx(told["train_runtime"], rel=1e-4)
    assert logged.results["total_flos"] == pytest.approx(told["total_flos"], rel=1e-4)
    one, other = past_run(found["Trainer output"]), past_run(logged)
    assert one.id == other.id
    same = ("task", "gpu", "n_gpus", "micro_batch", "grad_accum", "precision", "optimizer",
            "grad_ckpt", "n_params")  # fmt: skip
    assert {k: one.cells[k] for k in same} == {k: other.cells[k] for k in same}
    assert "incl. padding = 32" in other.cells["notes"]


def test_an_offline_run_says_what_it_needs_where_wandb_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setitem(sys.modules, "wandb.proto", None)
    run = tmp_path / "offline-run-20261122_162434-abc"
    run.mkdir()
    (run / "run-abc.wandb").write_bytes(b":W&B\xd4\xbe\x00")
    (refusal,) = learn([tmp_path], dry_run=True).refusals
    assert "pip install wandb" in refusal.reason


@pytest.mark.skipif(find_spec("wandb") is None, reason="needs wandb")
@pytest.mark.parametrize("content", [b"", b":W&B", b":W&B\xd4\xbe\x00" + b"\xff" * 70_000])
def test_a_damaged_offline_run_is_named(tmp_path: Path, content: bytes) -> None:
    run = tmp_path / "offline-run-20261122_162434-abc"
    run.mkdir()
    (run / "run-abc.wandb").write_bytes(content)
    for _, read in findings(walk([tmp_path])):
        with pytest.raises(Unreadable, match="without the arguments"):
            read()
