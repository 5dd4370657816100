"""Versions of the packages that decide a training's speed, wherever a logger wrote them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from autotune.evidence.learned.run import PACKAGES

if TYPE_CHECKING:
    from collections.abc import Mapping

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
