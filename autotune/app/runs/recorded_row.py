"""The recommended row of a recorded answer, checked beyond its shape: it is a file that may lie."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.domain.config import KNOBS, Config, is_extra
from autotune.domain.errors import InputError
from autotune.domain.typed.values import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST = 1e30
HINT = "tune again with another --run"


def config_of_row(row: Mapping[str, Any]) -> Config:
    """The config of a checked row."""
    kept = {name: v for name, v in row["config"].items() if name in KNOBS or is_extra(name)}
    return Config.of(kept)


def check_row(row: Mapping[str, Any], where: str) -> None:
    """Raise InputError for knobs that are absent or unknown, and numbers that cannot be."""
    _check_knobs(row["config"], where)
    groups = {"best": row, "best.duration_s": row["duration_s"], "best.cost_usd": row["cost_usd"],
              "best.time_s": row["time_s"], "best.memory_bytes": row["memory_bytes"]}  # fmt: skip
    for path, group in groups.items():
        for key, value in group.items():
            if path != "best" or _is_number(value):
                _check_number(value, f"{path}.{key}", where)
    if row["measured"] is not None:
        for key in ("step_time_s", "peak_allocated_bytes"):
            _check_number(row["measured"].get(key) or -1, f"best.measured.{key}", where)


def _check_knobs(config: Mapping[str, Any], where: str) -> None:
    for name, knob in KNOBS.items():
        path = f"best.config.{name}"
        if name not in config:
            raise _damaged(where, path, "it is absent")
        try:
            same = knob.parse(config[name]) == config[name]
        except InputError as error:
            raise _damaged(where, path, error.message) from None
        if not same:
            raise _damaged(where, path, f"it is {shown(config[name])}")
    for name, value in config.items():
        if name not in KNOBS and not (is_extra(name) and isinstance(value, int | str)):
            raise _damaged(where, f"best.config.{name}", f"it is {shown(value)}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_number(value: Any, path: str, where: str) -> None:  # noqa: ANN401 - whatever it holds
    """At least zero, finite, and no larger than any time, price or size."""
    if not _is_number(value) or not 0 <= value <= MOST:
        raise _damaged(where, path, f"it is {shown(value)}")


def _damaged(where: str, path: str, why: str) -> InputError:
    return InputError(f"the answer in {where} is damaged at {path}: {why}", HINT)
