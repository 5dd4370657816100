"""Limits that a trainer's file sets itself: rows of a data set, and steps of an epoch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from autotune.app.job.overrides import stated_rows, trained_rows

if TYPE_CHECKING:
    from autotune.domain.typed.overrides import Overrides
    from autotune.trainers.parsed import Parsed


def cap_rows(parsed: Parsed, values: dict[str, Any], overrides: Overrides) -> None:
    """No more rows than the file takes of each data set; `--set data.rows=N` is left as it is.

    Rows that are counted out of a file stay: how long those are that it takes is not known.
    """
    most, data = parsed.rows_at_most, values.get("data", {})
    if most is None or "rows" not in data or "data.rows" in overrides.set_values:
        return
    rows, sets = stated_rows(values, overrides), max(len(parsed.datasets), 1)
    if rows > most * sets:
        data["rows"] = most * sets
        of = f"{most} of each of {sets} data sets" if sets > 1 else f"{most}"
        parsed.note("data.rows", most * sets, f"the file takes {of} at most, of {rows}")


def cap_steps(parsed: Parsed, values: dict[str, Any], overrides: Overrides, batch: int = 0) -> None:
    """No more steps an epoch than the file has: a number of steps in place of the epochs.

    batch: rows of a step; 0 where it is not known yet, and only a run without rows is cut.
    """
    most, train = parsed.steps_an_epoch, values.get("train", {})
    given = {"train.steps", "train.epochs"} & set(overrides.set_values)
    epochs = train.get("epochs")
    if most is None or given or not isinstance(epochs, int | float):
        return
    rows = trained_rows(values, overrides)
    if (rows and not batch) or (rows and math.ceil(rows / batch) <= most):
        return
    train["steps"] = max(1, int(epochs * most))
    del train["epochs"]
    parsed.note("train.steps", train["steps"], f"{most} an epoch at most, as the file says")
    if parsed.saves_per_epoch:  # an epoch is that many steps
        parsed.knobs["checkpoint_every_steps"] = max(1, int(most / parsed.saves_per_epoch))
        parsed.knobs.setdefault("save_total_limit", max(1, math.ceil(epochs)))
        parsed.saves_per_epoch = None
