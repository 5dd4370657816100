"""What the notes of a row say in words: its grade, versions, counts, offloading, and the log.

Notes are prose. A word counts only as a whole word and only where nothing denies it ("no offload",
"use_dora=False" and "utilisation" state neither offload, DoRA nor LISA).
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from autotune.evidence.cases import Grades

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.domain.software import Version
    from autotune.evidence.cases import Grade

_GRADES = re.compile(r"^Quality (?P<all>[ABC][^.]*)\.?")
_GRADE = re.compile(r"(?P<grade>[ABC])(?: \((?P<of>[^)]*)\))?")
_LOG = re.compile(r"\b(train_runtime|slope|progress bar|wandb|s/it)\b", re.IGNORECASE)
_SCALE = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9}


def grades_of(notes: str) -> Grades:
    """The grades that notes begin with: "Quality A (time), B (memory)"; a bare one is of both."""
    found = _GRADES.match(notes)
    if found is None:
        return Grades()
    own: dict[str, Grade] = {}
    for part in _GRADE.finditer(found["all"]):
        grade: Grade = part["grade"]  # type: ignore[assignment]  # one of the three letters
        about = part["of"] or "time and memory"
        for quantity in ("time", "memory"):
            if quantity in about:
                own.setdefault(quantity, grade)
    return Grades(own.get("time"), own.get("memory"))


def is_logged(notes: str) -> bool:
    """Whether somebody's own log of the run was read, not a table that the source prints."""
    return notes.startswith("Quality") and bool(_LOG.search(notes))


def version_of(package: str, notes: str) -> Version | None:
    """The version of a package that the notes state: "torch 2.4.0+cu118" is (2, 4, 0)."""
    found = _stated(package).search(notes)
    return tuple(int(part) for part in found.groups() if part) if found else None


def reentrant_of(notes: str) -> bool | None:
    """How layers are checkpointed, where the notes say so ("use_reentrant False")."""
    stated = re.search(r"use_reentrant[ =:]+(true|false)", notes, re.IGNORECASE)
    return stated.group(1).casefold() == "true" if stated else None


@cache
def _stated(package: str) -> re.Pattern[str]:
    words = "|".join(re.escape(word) for word in _PACKAGE.get(package, (package,)))
    pattern = rf"(?<![\w-])(?:{words})[ =]+v?(\d+)\.(\d+)(?:\.(\d+))?"
    return re.compile(pattern, re.IGNORECASE)


_PACKAGE = {
    "torch": ("torch", "pytorch"),
    "flash_attn": ("flash-attn", "flash_attn", "flash attention"),
    "bitsandbytes": ("bitsandbytes", "bnb"),
}
_DENIED = r"(?:\b(?:no|not|without|non|never)[ -]+(?:\w+[ -]+){0,2}?|\buse_)$"
_DENIES = re.compile(_DENIED, re.IGNORECASE)
_OFF = re.compile(
    r"^\w*\s*(?:=\s*|:\s*|is\s+)?(?:false|none|off|no|not stated|left out)\b", re.IGNORECASE
)


def names(text: str, words: Sequence[str]) -> str:
    """The first of the words that the text has whole and does not deny; empty where none is."""
    for word in words:
        for found in re.finditer(
            rf"(?<![A-Za-z]){re.escape(word)}(?![A-Za-z])", text, re.IGNORECASE
        ):
            before, after = text[max(found.start() - 40, 0) : found.start()], text[found.end() :]
            denied = _DENIES.search(before) and not before.endswith("use_")
            if not denied and not _OFF.match(after):
                return word
    return ""


_MOVED = ("offload", "offloaded", "offloading")
# Of another run, of the source's other rows, or only implied: no statement about this one.
_ELSEWHERE = re.compile(r"(companion|other) arms?|left out|not stated", re.IGNORECASE)


def offload_of(notes: str) -> str:
    """What the notes say lies in the host: `activations`, `optimizer`, `all`, or nothing."""
    for clause in re.split(r"[;.](?:\s|$)", notes):
        if not names(clause, _MOVED) or _ELSEWHERE.search(clause):
            continue
        if re.search(r"activation|act[_ ]|checkpoint", clause, re.IGNORECASE):
            return "activations"
        if re.search(r"optimi[sz]er|adam|state", clause, re.IGNORECASE):
            return "optimizer"
        return "all"
    return ""


def trainable_of(notes: str) -> float | None:
    """Number of trainable parameters: "trainable 9,289,728", "trainable params 4.2M"."""
    found = re.search(
        r"trainable (?:params |parameters )?(\d[\d,]*(?:\.\d+)?) ?([KMB])?\b", notes, re.IGNORECASE
    )
    if found:
        return float(found[1].replace(",", "")) * _SCALE[(found[2] or "").casefold()]
    millions = re.search(r"(\d+(?:\.\d+)?)\([\d.]+%\) M trainable", notes)
    return float(millions[1]) * 1e6 if millions else None


def count_in(pattern: str, notes: str) -> int | None:
    """The whole number that a pattern finds in the notes."""
    found = re.search(pattern, notes)
    return int(found[1]) if found else None
