"""Errors a caller can act on, and the exit codes of answers that are none.

AutotuneError
├── InputError          the user's file, flag or value is wrong           (exit 2)
│   └── NoTraining      the file is none that trains                      (exit 2)
├── NoLocalDevice       a probe was required and could not run            (exit 5)
└── Interrupted         stopped by the user; everything finished is kept  (exit 130)

Every message says what is wrong, the value received and what must hold; `hint` says what to do.
Infeasible and failed candidates are values (`autotune.domain.outcome`), never exceptions: an answer
without anything feasible has exit code 3, one that misses a limit 4, one that changed 6 where that
was asked for.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


NOTHING_FEASIBLE = 3  # exit code 3: no candidate fits
LIMIT_MISSED = 4  # exit code 4: the best that fits misses a limit of the job
ANSWER_CHANGED = 6  # exit code 6: the recommendation is another than before


class AutotuneError(Exception):
    """Base of all errors with a message for the user and a hint."""

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        """Keep the message (what is wrong, value, what must hold) and the hint (what to do)."""
        super().__init__(message)
        self.message = message
        self.hint = hint


class InputError(AutotuneError):
    """The user's file, flag or value is wrong.

    lacking: what of a job is stated nowhere, by its key there, and the flag that would state it.
    Empty where that is not what is wrong.
    """

    exit_code = 2

    def __init__(
        self, message: str, hint: str | None = None, *, lacking: Mapping[str, str] | None = None
    ) -> None:
        """Keep the message, the hint and what is lacking."""
        super().__init__(message, hint)
        self.lacking = dict(lacking or {})


class NoTraining(InputError):  # noqa: N818 - the name is the condition
    """The file is none that trains: it holds neither a trainer's arguments nor a launch of one."""


class NoLocalDevice(AutotuneError):  # noqa: N818 - the name is the condition, as in FileNotFound
    """A probe was required and no local device can run it."""

    exit_code = 5


class Interrupted(AutotuneError):  # noqa: N818 - the name is the condition
    """Stopped by the user; everything that finished is kept."""

    exit_code = 130


def close_matches(value: str, known: Iterable[str], count: int = 4) -> list[str]:
    """Known names nearest to a mistyped one: by spelling, then by containing all its parts.

    Of those that contain it, first those that begin with it (behind the owner of a model), the
    shortest first.
    """
    names = sorted(set(known))
    folded = {name.casefold(): name for name in names}
    wanted = value.casefold()
    near = [folded[hit] for hit in difflib.get_close_matches(wanted, folded, n=count, cutoff=0.6)]
    parts = [part for part in wanted.replace("_", "-").replace("/", "-").split("-") if part]
    containing = [name for key, name in folded.items() if parts and all(p in key for p in parts)]
    containing.sort(
        key=lambda name: (not name.casefold().rpartition("/")[2].startswith(wanted), len(name))
    )
    return list(dict.fromkeys(near + containing))[:count]


def unknown(kind: str, value: str, known: Iterable[str], hint: str, where: str = "") -> InputError:
    """An error for a name that no catalogue, schema or knob table holds."""
    near = close_matches(value, known)
    place = f" in {where}" if where else ""
    message = f'unknown {kind} "{value}"{place}'
    return InputError(message + did_you_mean(near), hint)


def did_you_mean(near: Sequence[str]) -> str:
    """The end of a message: "; did you mean rank, rows or steps?"; empty where nothing is near."""
    *others, last = near or [""]
    named = f"{', '.join(others)} or {last}" if others else last
    return f"; did you mean {named}?" if last else ""
