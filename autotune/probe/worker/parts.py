"""What a run does beside steps: an evaluation batch, a checkpoint, batches at other worker counts.

Each returns plain numbers; one that fails says so and loses nothing that was measured before.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from .ranks import several, together

EVALUATIONS, SAVES = 3, 2
LOADER_BATCHES, LOADER_SECONDS = 24, 2.0


def evaluation(trainer: Any, clock: Any, batch: dict[str, torch.Tensor]) -> dict[str, Any]:  # noqa: ANN401
    """[s] the forward of one evaluation batch; the first, which warms up, is not counted."""
    inputs = trainer._prepare_inputs(batch)  # noqa: SLF001 - what evaluate() itself calls
    model = trainer.model
    model.eval()
    seconds = []
    for _ in range(EVALUATIONS + 1):
        begun = clock.now()
        trainer.prediction_step(model, inputs, prediction_loss_only=True)
        seconds.append(clock.now() - begun)
    model.train()
    rows, width = batch["input_ids"].shape
    return {
        "rows": int(rows), "tokens": int(rows * width), "batch_s": statistics.median(seconds[1:])
    }  # fmt: skip


def checkpoint(trainer: Any, clock: Any) -> dict[str, Any]:  # noqa: ANN401
    """[s, bytes] of the Trainer's own checkpoints, written until the disk has them, and read."""
    folder = Path(trainer.args.output_dir)
    found: dict[str, Any] = {"saves_s": [], "fsync_s": []}
    try:
        for _ in range(SAVES):
            trainer.state.global_step += 1
            begun = clock.now()
            trainer._save_checkpoint(trainer.model, trial=None)  # noqa: SLF001 - the real save
            together()
            written = time.perf_counter()
            target = folder / f"checkpoint-{trainer.state.global_step}"
            files = [path for path in target.rglob("*") if path.is_file()]
            for path in files:
                _sync(path)
            found["saves_s"].append(time.perf_counter() - begun)
            found["fsync_s"].append(time.perf_counter() - written)
            found["bytes"] = sum(path.stat().st_size for path in files)
            found["save_s"] = found["saves_s"][-1]
        target = folder / f"checkpoint-{trainer.state.global_step}"
        found["load_s"] = _load(trainer, clock, target)
        together()
    except Exception as error:
        # A full disk shows as OSError, RuntimeError or safetensors' own, by who was writing.
        if several() or isinstance(error, torch.OutOfMemoryError):
            raise
        found["error"] = f"{type(error).__name__}: {error}"
    finally:
        for path in folder.glob("checkpoint-*"):
            shutil.rmtree(path, ignore_errors=True)
    return found


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _load(trainer: Any, clock: Any, target: Path) -> float:  # noqa: ANN401
    """[s] reading a checkpoint back, its pages first dropped from the cache."""
    for path in (path for path in target.rglob("*") if path.is_file()):
        handle = os.open(path, os.O_RDONLY)
        with contextlib.suppress(OSError):
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)
    begun = clock.now()
    trainer._load_from_checkpoint(str(target))  # noqa: SLF001 - what resuming calls
    trainer._load_optimizer_and_scheduler(str(target))  # noqa: SLF001 - what resuming calls
    return float(clock.now() - begun)


def loader(
    rows: Any, collate: Any, request: dict[str, Any], *, pin: bool  # noqa: ANN401
) -> list[dict[str, float | int]]:  # fmt: skip
    """[s] a batch at each worker count, with nothing else running: the loader's own pace."""
    found = []
    for workers in request["loader_workers"]:
        options = {"prefetch_factor": request["prefetch_factor"]} if workers else {}
        batches = torch.utils.data.DataLoader(
            rows, batch_size=request["micro_batch_size"], collate_fn=collate, num_workers=workers,
            pin_memory=pin, **options,
        )  # fmt: skip
        begun = time.perf_counter()
        iterator = iter(batches)
        next(iterator)
        first = time.perf_counter()
        ahead = workers * request["prefetch_factor"]
        drawn = 0
        steady = first
        for count, _ in enumerate(iterator, start=1):
            if count <= ahead:  # batches that were ready before anybody asked
                steady = time.perf_counter()
                continue
            drawn = count - ahead
            late = time.perf_counter() - first > LOADER_SECONDS
            if drawn >= LOADER_BATCHES or late:
                break
        seconds = (time.perf_counter() - steady) / max(drawn, 1)
        found.append(
            {"workers": workers, "start_s": first - begun, "batch_s": seconds, "batches": drawn}
        )
        del iterator
    return found
