"""What one logger says of one training, before it is brought into the terms of the record.

Several loggers may have written down the same training: `content` tells.
"""

from __future__ import annotations

import re
from dataclasses import field
from typing import TYPE_CHECKING, Any

from autotune.evidence.learned.run import PACKAGES
from autotune.evidence.log.console import RESULTS
from autotune.evidence.log.text import figure_of
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from autotune.evidence.log.run_log import RunLog


@dataclass(frozen=True, slots=True)
class Found:
    """A training as one logger saw it. Empty or None: it does not say.

    arguments: in the words of `trainer`; model: a config.json; adapter: an adapter_config.json;
    results: the Trainer's figures at the end.
    """

    source: str
    place: Path
    trainer: str = "hf"
    arguments: Mapping[str, Any] = field(default_factory=dict)
    model_name: str = ""
    model: Mapping[str, Any] = field(default_factory=dict)
    adapter: Mapping[str, Any] = field(default_factory=dict)
    results: Mapping[str, float] = field(default_factory=dict)
    log: RunLog | None = None
    steps: int | None = None
    tokens: float | None = None  # that the training counted itself, without padding
    tokens_per_s_per_gpu: float | None = None
    peaks_gib: Mapping[str, float] = field(default_factory=dict)  # allocated, reserved
    gpu: str = ""
    gpu_bytes: float = 0.0
    visible: int | None = None  # devices, used or not
    elapsed_s: float | None = None  # since its logger began, up to the last step logged
    on_cpu: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)
    month: str = ""  # 2025-04
    clock: str = ""  # what is wrong with its clock
    notes: tuple[str, ...] = ()

    @property
    def runtime_s(self) -> float | None:
        """[s] of `train()`."""
        return self.results.get("train_runtime")


def results_in(*holders: Mapping[str, Any]) -> dict[str, float]:
    """The Trainer's results in mappings, with or without the prefix that loggers put before them.

    The first that states a figure wins; NaN, text and what is no positive number is not one.
    """
    found: dict[str, float] = {}
    for holder in holders:
        for name in RESULTS:
            for key in (name, f"train/{name}"):
                value = figure_of(holder.get(key))
                if value is not None:
                    found.setdefault(name, value)
    return found


def adapter_in(config: Mapping[str, Any]) -> dict[str, Any]:
    """The adapter's config in a model's: `peft_config: {default: {...}}`, or without a name."""
    held = config.get("peft_config")
    if not isinstance(held, dict) or not held:
        return {}
    first = next(iter(held.values()))
    return first if isinstance(first, dict) else held


def month_of(seconds: float) -> str:
    """The month of a time in seconds since 1970; empty where it is none."""
    from datetime import UTC, datetime

    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m")
    except (OverflowError, ValueError, OSError):
        return ""


def whole(value: object) -> int | None:
    """A whole number above zero, else None."""
    real = figure_of(value)
    return int(real) if real is not None and real == int(real) else None


_PINNED = re.compile(r"^\s*([A-Za-z][\w.-]*)==([\w.+!-]+)\s*$", re.MULTILINE)
_CARD = re.compile(
    r"^- (PEFT|TRL|Transformers|Pytorch|PyTorch)[: ]+v?([\d.]+\S*)\s*$", re.MULTILINE
)
_IN_CARD = {"pytorch": "torch"}


def versions_of(requirements: str, config: Mapping[str, object] | None = None) -> dict[str, str]:
    """Of a frozen list, else of a model's config, which names the transformers that wrote it."""
    found = {
        name: version
        for raw, version in _PINNED.findall(requirements)
        if (name := raw.casefold().replace("-", "_")) in PACKAGES
    }
    written = (config or {}).get("transformers_version")
    if isinstance(written, str) and len(written) < 20:  # noqa: PLR2004 - a version
        found.setdefault("transformers", written)
    return found


def versions_of_card(card: str) -> dict[str, str]:
    """Of a model card's "Framework versions"."""
    pairs = ((name.casefold(), version) for name, version in _CARD.findall(card))
    return {_IN_CARD.get(name, name): version for name, version in pairs}
