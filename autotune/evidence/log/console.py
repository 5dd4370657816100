"""What a training printed: bars with their clock, the Trainer's figures, torchtune's lines.

A bar such as `40/120 [01:10<02:20, 1.75s/it]` says how many steps were done when. Of two runs in
one text the last is read, and that there were two is said. Where the clock goes back while steps go
on, or a stretch takes a hundred times its neighbours, the clock jumped: that stretch is left out.
"""

from __future__ import annotations

import math
import re
import statistics
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from autotune.domain.errors import InputError
from autotune.domain.units import DAY_S, HOUR_S, MINUTE_S
from autotune.evidence.log.run_log import RunLog, Stretch
from autotune.evidence.log.text import figure_of, log_text
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RESULTS = (
    "train_runtime", "train_samples_per_second", "train_steps_per_second", "total_flos",
)  # fmt: skip
_BAR = re.compile(
    r"(?<![\d/])(\d{1,9})/(\d{1,9}) \[(?:(\d{1,4}) days?, )?(?:(\d{1,5}):)?(\d{1,2}):(\d{2})<"
    r"(?![^\]\n]{0,60}(?:examples|[kMGT]?i?B)/s)"  # rows that are tokenised, files that come
)
_BAR_OR_EVALUATION = re.compile(rf"{_BAR.pattern}|'eval_runtime': '?(?P<eval_s>[\d.]{{1,20}})")
_MICRO_BATCH = re.compile(r"Instantaneous batch size per device = (\d[\d,]{0,9})")
_ACCUMULATION = re.compile(r"Gradient Accumulation steps = (\d[\d,]{0,9})")
_OUT_OF_MEMORY = re.compile(r"OutOfMemoryError|CUDA out of memory")
OUT_OF_MEMORY = "it ran out of memory"
_FIGURE = re.compile(r"'(?:train/)?(\w+)': '?([-+\d.einfa]+)'?")
_ENDS = re.compile(r"\{[^{}\n]{0,600}'train_runtime'[^{}\n]{0,600}\}")
_TORCHTUNE = re.compile(r"^Step (\d{1,9}) \| (.{1,2000})$", re.MULTILINE)
_PAIR = re.compile(r"(\w+):([-+\d.e]+)")
LEAST_STEPS, PARTS = 10, 20  # of a bar that is a training's; stretches that it is cut into
FOUR_DIGITS = 1e-3  # how far two printings of a figure may lie apart, one of them rounded
LEAST_STRETCH_S = 10.0  # bars show whole seconds
JUMP = 100.0  # times the median step that a stretch's takes after a clock jumped
JUMPED = "its clock jumped: that stretch is left out"
TWO_RUNS = "two runs in one log: the last one is read"


@dataclass(frozen=True, slots=True)
class Printed:
    """What a console text says of a training."""

    results: dict[str, float]
    steps: int | None
    stretches: tuple[Stretch, ...] = ()
    tokens_per_s_per_gpu: float | None = None
    peaks_gib: dict[str, float] | None = None
    jumped: str = ""
    notes: tuple[str, ...] = ()
    reached: int = 0  # the last step that its bar showed

    @property
    def says_something(self) -> bool:
        """Whether a step's time can be read from it."""
        return bool(self.results or self.stretches or self.tokens_per_s_per_gpu)

    def log(self, path: str) -> RunLog | None:
        """The bars as a log of stretches; None where there are none."""
        if not self.stretches:
            return None
        return RunLog(path, "console", self.reached, max_steps=self.steps, stretches=self.stretches,
                      timed_by="its progress bar", notes=self.notes)  # fmt: skip


def read_console(path: Path) -> RunLog:
    """The log of a console's output that was kept. Raises InputError where no bar is in it.

    Source of the lines: transformers 5.23 trainer.py ("Running training"), trainer_callback.py.
    """
    text = log_text(path)
    log = read_printed(text).log(str(path))
    if log is None:
        msg = f"{path} shows no progress of a training"
        hint = (
            f"that is lines like 100/3250 [05:21<2:48:44, 3.21s/it], {LEAST_STRETCH_S:.0f} s apart"
        )
        raise InputError(msg, f"{hint}; or name a trainer_state.json")
    unfinished = log.max_steps is None or log.steps_done < log.max_steps
    ended = OUT_OF_MEMORY if unfinished and _OUT_OF_MEMORY.search(text) else ""
    return replace(
        log,
        micro_batch_size=_told(text, _MICRO_BATCH),
        gradient_accumulation_steps=_told(text, _ACCUMULATION),
        evaluations=tuple(_evaluations(text)),
        ended=ended,
    )


def _told(text: str, pattern: re.Pattern[str]) -> int | None:
    """The count that a line names, of several the last."""
    told = pattern.findall(text)
    return int(told[-1].replace(",", "") or 0) or None if told else None


def _evaluations(text: str) -> Iterator[tuple[int, float]]:
    """The step and the seconds of each evaluation: its line follows the bar of its step."""
    (sessions, total), step = _bars(text), 0
    for found in _BAR_OR_EVALUATION.finditer(text):
        if found["eval_s"] is None:
            step = int(found[1]) if int(found[2]) == total else step
        elif sessions and (seconds := figure_of(found["eval_s"])) is not None:
            yield step, seconds


def read_printed(text: str) -> Printed:
    """What the text says; nothing where it is no training's."""
    ends = [(found.end(), _figures(found[0])) for found in _ENDS.finditer(text)]
    results: dict[str, float] = {}
    notes: list[str] = []
    if ends:
        results = ends[-1][1]
        before = [end for end, figures in ends if not _same(figures, results)]
        if before:
            notes.append(TWO_RUNS)
            text = text[before[-1] :]
    sessions, total = _bars(text)
    if len(sessions) > 1 and not notes:
        notes.append(TWO_RUNS)
    stretches, jumped = _stretches(sessions[-1] if sessions else [])
    if jumped:
        notes.append(jumped)
    speed, peaks, tune_steps = _torchtune(text)
    steps = total or tune_steps
    reached = sessions[-1][-1][0] if sessions else 0
    return Printed(results, steps, stretches, speed, peaks, jumped, tuple(notes), reached)


def _figures(end: str) -> dict[str, float]:
    """What the line at a run's end says, of what is read."""
    said = {name: figure_of(value) for name, value in _FIGURE.findall(end)}
    return {name: v for name in RESULTS if (v := said.get(name)) is not None}


def _same(one: dict[str, float], other: dict[str, float]) -> bool:
    """Whether two lines are one run's end: the Trainer prints it whole and to four digits."""
    both = one.keys() & other.keys()
    return all(math.isclose(one[name], other[name], rel_tol=FOUR_DIGITS) for name in both)


_Points = list[tuple[int, float]]


def _bars(text: str) -> tuple[list[_Points], int | None]:
    """Points (step, seconds) of the training's bar, a list for each time that it began again."""
    by_total: dict[int, _Points] = {}
    for found in _BAR.finditer(text):
        days, hours = int(found[3] or 0), int(found[4] or 0)
        seconds = DAY_S * days + HOUR_S * hours + MINUTE_S * int(found[5]) + int(found[6])
        step, total = int(found[1]), int(found[2])
        if step <= total and total >= LEAST_STEPS:
            by_total.setdefault(total, []).append((step, seconds))
    if not by_total:
        return [], None
    total = max(by_total, key=lambda each: max(s for _, s in by_total[each]))
    sessions: list[_Points] = [[]]
    for point in by_total[total]:
        if sessions[-1] and point[0] < sessions[-1][-1][0]:
            sessions.append([])
        sessions[-1].append(point)
    # A logger may write the end of a bar twice: what adds no step is no session.
    real = [own for own in sessions if own[-1][0] - own[0][0] >= LEAST_STEPS]
    return real, total


def _stretches(points: _Points) -> tuple[tuple[Stretch, ...], str]:
    """Stretches between points far enough apart for whole seconds; and that the clock jumped."""
    if not points:
        return (), ""
    span = points[-1][0] - points[0][0]
    kept = [points[0]]
    jumped = ""
    for step, seconds in points[1:]:
        if seconds < kept[-1][1]:
            jumped, kept = JUMPED, [*kept, (step, seconds)]
        elif step - kept[-1][0] >= max(span / PARTS, 1) and (
            seconds - kept[-1][1] >= LEAST_STRETCH_S
        ):
            kept.append((step, seconds))
    found = [
        Stretch(begin, end, later - earlier, warm_up=not position and begin <= 1)
        for position, ((begin, earlier), (end, later)) in enumerate(pairwise(kept))
        if end > begin and later > earlier
    ]
    if len(found) > 2:  # noqa: PLR2004 - a median of others
        usual = statistics.median(part.seconds / part.steps for part in found)
        calm = [part for part in found if part.seconds / part.steps <= JUMP * usual]
        jumped = JUMPED if len(calm) < len(found) else jumped
        found = calm
    return tuple(found), jumped


WARM = 3  # steps of torchtune's log that compile and warm up


def _torchtune(text: str) -> tuple[float | None, dict[str, float] | None, int | None]:
    """[tokens/s] of a GPU, [GiB] peaks and the last step of torchtune's own lines."""
    speeds: list[float] = []
    peaks: dict[str, float] = {}
    last = None
    for found in _TORCHTUNE.finditer(text):
        pairs = {name: figure_of(value) for name, value in _PAIR.findall(found[2])}
        last = int(found[1])
        if (speed := pairs.get("tokens_per_second_per_gpu")) is not None:
            speeds.append(speed)
        for kind, key in (("allocated", "peak_memory_alloc"), ("reserved", "peak_memory_reserved")):
            if (size := pairs.get(key)) is not None:
                peaks[kind] = max(size, peaks.get(kind, 0.0))
    later = speeds[WARM:]
    return (statistics.median(later) if later else None), peaks or None, last
