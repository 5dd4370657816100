"""Prediction, pace and dollars so far, in the W&B or MLflow run that the training already has.

Nothing is imported and no run is opened here: a tracker that the training does not use is not told
anything. A tracker that fails costs its metrics, not the record.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from autotune.report.schema import Row

HOUR_S = 3600.0
PREFIX = "autotune/"


def predicted(row: Row | None) -> dict[str, float]:
    """What was predicted of a step and of the whole run; nothing without a plan."""
    if row is None:
        return {}
    found = {
        "predicted_step_s": row.step_time_s,
        "predicted_duration_s": row.duration_s.p50,
        "predicted_duration_p10_s": row.duration_s.p10,
        "predicted_duration_p90_s": row.duration_s.p90,
    }
    return found | ({"predicted_cost_usd": row.cost_usd.p50} if row.usd_per_hour else {})


def so_far(row: Row | None, step_s: float, passed_s: float | None) -> dict[str, float]:
    """What was measured: a step of late, the time since the process began, and what it cost.

    passed_s: None in a notebook, whose process trains more than this.
    """
    if passed_s is None:
        return {"step_s": step_s}
    found = {"step_s": step_s, "passed_s": passed_s}
    if row is not None and row.usd_per_hour:
        found["cost_so_far_usd"] = passed_s / HOUR_S * row.usd_per_hour
    return found


class Trackers:
    """Those that have an open run in this process."""

    def __init__(self) -> None:
        self._failed: set[str] = set()

    def tell(self, metrics: Mapping[str, float], step: int) -> tuple[str, ...]:
        """Write the metrics at an optimizer step; the names of the trackers that have them."""
        named = {PREFIX + name: value for name, value in metrics.items()}
        told = []
        for name, write in _WRITERS.items():
            module = sys.modules.get(name)
            if module is None or name in self._failed:
                continue
            try:
                if write(module, named, step):
                    told.append(name)
            except Exception:  # noqa: BLE001 - the tracker is the user's, and so are its errors
                self._failed.add(name)
        return tuple(told)


def _wandb(module: Any, metrics: Mapping[str, float], step: int) -> bool:
    """Beside `train/global_step`, which the Trainer's own callback makes the axis of every plot."""
    if getattr(module, "run", None) is None:
        return False
    module.run.log({**metrics, "train/global_step": step})
    return True


def _mlflow(module: Any, metrics: Mapping[str, float], step: int) -> bool:
    if module.active_run() is None:
        return False
    module.log_metrics(dict(metrics), step=step)
    return True


_WRITERS: dict[str, Callable[[Any, Mapping[str, float], int], bool]] = {
    "wandb": _wandb, "mlflow": _mlflow,
}  # fmt: skip
