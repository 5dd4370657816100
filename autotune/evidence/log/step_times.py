"""Logs of steps and times: a CSV, or the record that a run writes into its folder.

CSV: a header, then a line a step (or every so many steps). `step` with one of `step_time_s` (of one
step) and `elapsed_s` (since the first began; saves and evaluations included); further columns may
be `data_wait_s`, `checkpoint_s`, `evaluation_s` and `memory_bytes`. A blank cell says nothing.

Record, `observations.jsonl`: a JSON object a line, each with its `event`:

    {"event": "start", "device": "NVIDIA H100 80GB HBM3", "device_count": 1, "max_steps": 2375,
     "epochs": 1, "micro_batch_size": 16, "gradient_accumulation_steps": 8,
     "checkpoint_every_steps": 50, "config": {"precision": "bf16", "num_dataloader_workers": 4},
     "model": {"num_layers": 32, "hidden_size": 4096, "intermediate_size": 14336,
               "vocab_size": 128256},
     "method": {"kind": "lora", "rank": 16, "base": "16bit"},
     "before_s": 21.4, "prepare_s": 0.0, "ran_s": 9.1, "waited_s": 0.2}
    {"event": "step", "step": 1, "duration_s": 3.21, "data_wait_s": 0.01}
    {"event": "epoch", "step": 50, "epoch": 0.021}
    {"event": "host", "step": 50, "ran_s": 160.1, "waited_s": 0.4}
    {"event": "checkpoint", "step": 50, "duration_s": 7.4}
    {"event": "evaluation", "step": 50, "duration_s": 31.0, "rows": 2000}
    {"event": "memory", "step": 50, "allocated_bytes": 3.1e10, "reserved_bytes": 3.4e10}
    {"event": "end", "step": 2375, "duration_s": 8012.5}

`duration_s` of a step holds neither saves nor evaluations, that of `end` the whole program; `end`
also holds the `error` that a program ended with. `host` says how long the program's threads ran,
and how long they were ready and waited for a processor that others used; `start` says so of the
time before it. `before_s` passed from the program's begin to the training's, without the
`prepare_s` in which another program tokenised first; without `prepare_s` the program may have
tokenised in `before_s`. A training that was resumed has a `start` for each session. What is not
named here is passed over, and a last line cut off in mid-writing does not count.
`autotune.TrainerCallback` and exported scripts write such a record.
"""

from __future__ import annotations

import csv
import json
import statistics
from itertools import pairwise
from typing import TYPE_CHECKING, Any, get_args

from autotune.domain.config import KNOBS
from autotune.domain.errors import InputError, close_matches, did_you_mean
from autotune.domain.job import VARIANTS, Base
from autotune.domain.typed.values import shown
from autotune.evidence.log.run_log import RunLog, Stretch
from autotune.evidence.log.text import LONGEST_S, count, log_text, number, parsed_json

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from autotune.domain.observation import MemoryKind

RECORD_FILE = "observations.jsonl"
_STEP = ("step", "global_step", "steps")
_EACH = ("step_time_s", "step_time", "step_s", "duration_s", "seconds")
_SINCE = ("elapsed_s", "elapsed", "time_s", "time", "train_runtime", "runtime_s")
_SAME = (
    "device", "device_count", "micro_batch_size", "gradient_accumulation_steps", "config",
)  # fmt: skip
_NUMBERS = ("data_wait_s", "checkpoint_s", "evaluation_s", "memory_bytes")
MAX_LINES = 1_000_000
_MODEL = ("num_layers", "hidden_size", "intermediate_size", "vocab_size")
MOST_WARM_UP, STALL = 10, 2.0  # steps of a session, and how many times the later median they take
_METHOD = {"kind": ("full", "lora"), "base": get_args(Base),
           "variant": VARIANTS}  # fmt: skip


def read_csv_log(path: Path) -> RunLog:
    """The log of a CSV of steps and times. Raises InputError naming line and column."""
    lines = log_text(path).splitlines()
    try:
        table = list(csv.reader(lines, strict=True))
    except csv.Error as error:
        msg = f"{path} is not a CSV: {error}"
        raise InputError(msg, "a header line, then one line a step") from None
    header = [cell.strip().casefold() for cell in table[0]]
    step_at, each_at, since_at = (_column(header, names) for names in (_STEP, _EACH, _SINCE))
    if step_at is None or (each_at is None and since_at is None):
        near = [] if step_at is None else close_matches(" ".join(header), [*_EACH, *_SINCE])
        msg = f"{path}: its header is {shown(','.join(table[0]))}, without step and time"
        hint = "name the columns step and step_time_s (of one step) or elapsed_s (since the start)"
        raise InputError(msg + did_you_mean(near), hint)
    rows = [(i, row) for i, row in enumerate(table[1:], start=2) if any(c.strip() for c in row)]
    steps = [_count_cell(row, step_at, f"{path}, line {i}, step") for i, row in rows]
    at = each_at if each_at is not None else since_at
    times = [_cell(row, at, f"{path}, line {i}, {header[at or 0]}") for i, row in rows]
    points = [(s, t) for s, t in zip(steps, times, strict=True) if s and t is not None]
    if not points:
        msg = f"{path} holds no step with a time"
        raise InputError(msg, "a header line, then one line a step")
    extra = {
        name: [
            (step, value)
            for (i, row), step in zip(rows, steps, strict=True)
            if (value := _cell(row, _column(header, (name,)), f"{path}, line {i}, {name}"))
        ]
        for name in _NUMBERS
    }
    waits = [value for _, value in extra["data_wait_s"]]
    stretches = _each(points) if each_at is not None else _since(points)
    return RunLog(
        path=str(path),
        form="csv",
        steps_done=max(step for step, _ in points),
        stretches=stretches,
        saves_s=tuple(value for _, value in extra["checkpoint_s"]),
        evaluations=tuple(sorted(extra["evaluation_s"])),
        memory_bytes=_peak("unknown", [value for _, value in extra["memory_bytes"]]),
        data_wait_s=sum(waits) / len(waits) if waits else None,
        timed_by=f"its column {header[at or 0]}",
    )


def _column(header: Sequence[str], names: Sequence[str]) -> int | None:
    return next((header.index(name) for name in names if name in header), None)


def _cell(row: Sequence[str], at: int | None, where: str) -> float | None:
    if at is None or at >= len(row) or not row[at].strip():
        return None
    text = row[at].strip()
    try:
        value = float(text)
    except ValueError:
        value = None
    high = 1e18 if where.endswith("bytes") else LONGEST_S
    return number(text if value is None else value, where, high=high)


def _count_cell(row: Sequence[str], at: int, where: str) -> int:
    value = _cell(row, at, where)
    return 0 if value is None else count(value, where)


def _each(points: Sequence[tuple[int, float]]) -> tuple[Stretch, ...]:
    """Stretches of one step each; the first ones warm up. A step may come twice."""
    cold = _warm_up([seconds for _, seconds in points])
    return tuple(
        Stretch(step - 1, step, seconds, pure=True, warm_up=position < cold)
        for position, (step, seconds) in enumerate(points)
        if seconds > 0
    )


def _warm_up(seconds: Sequence[float]) -> int:
    """How many steps a session warms up for: the first, and slow ones that follow it at once.

    A compiler meets new shapes and an allocator grows in more than one step.
    """
    most = min(MOST_WARM_UP, len(seconds) // 5)
    later = seconds[max(most, 1) :]
    if not later:
        return 1
    slow = STALL * statistics.median(later)
    return next((n for n in range(1, most) if seconds[n] <= slow), max(most, 1))


def _since(points: Sequence[tuple[int, float]]) -> tuple[Stretch, ...]:
    """Stretches between times that grow; where they start again a session began."""
    first_step, first_s = points[0]
    found = [Stretch(0, first_step, first_s, warm_up=True)] if first_s > 0 else []
    found += [
        Stretch(begin, end, later - earlier)
        for (begin, earlier), (end, later) in pairwise(points)
        if end > begin and later > earlier
    ]
    return tuple(found)


def _peak(kind: MemoryKind, values: Sequence[float]) -> dict[MemoryKind, float]:
    return {kind: max(values)} if values and max(values) > 0 else {}


def read_record(path: Path) -> RunLog:
    """The log of a run's own record. Raises InputError naming line and key."""
    every = _events(log_text(path), str(path))
    steps_done = max((_step(e, at) for e, at in _of(every, "step")), default=0)
    events, notes = _comparable(every)
    starts = _of(events, "start")
    start, where = starts[-1] if starts else ({}, "")
    steps = _of(events, "step")
    if not steps:
        msg = f"{path} holds no step"
        raise InputError(msg, "the run has not started to train, or wrote no record")
    waits = [number(e["data_wait_s"], f"{at}.data_wait_s") for e, at in steps if "data_wait_s" in e]
    whole = [_seconds(e, at) for e, at in _of(every, "end") if "duration_s" in e]
    memory: dict[MemoryKind, float] = {}
    for kind, key in (("allocated", "allocated_bytes"), ("reserved", "reserved_bytes")):
        sizes = [
            number(e[key], f"{at}.{key}", high=1e18) for e, at in _of(events, "memory") if key in e
        ]
        memory |= _peak(kind, sizes)  # type: ignore[arg-type]  # both are kinds
    return RunLog(
        path=str(path),
        form="record",
        steps_done=steps_done,
        **started(start, where),
        stretches=_sessions(events),
        saves_s=tuple(_seconds(e, at) for e, at in _of(events, "checkpoint")),
        evaluations=tuple(
            sorted((_step(e, at), _seconds(e, at)) for e, at in _of(events, "evaluation"))
        ),
        evaluation_rows=_rows(events),
        memory_bytes=memory,
        data_wait_s=sum(waits) / len(waits) if waits else None,
        whole_s=sum(whole) if whole and len(whole) >= len(_of(every, "start")) else None,
        sessions=max(len(_of(every, "start")), 1),
        epoch=_epoch(events),
        waiting=_waiting(events),
        ended=_ended(every, events, start.get("max_steps"), steps_done),
        timed_by="its own record",
        notes=notes,
    )


def _epoch(events: Sequence[Event]) -> float | None:
    """Epochs at the last step of the record, from the last line that says it."""
    told = _of(events, "epoch")
    if not told:
        return None
    event, where = told[-1]
    epoch = number(event.get("epoch"), f"{where}.epoch", high=1e9)
    done = max(_step(e, at) for e, at in _of(events, "step"))
    return epoch * done / _step(event, where) or None


def _waiting(events: Sequence[Event]) -> float | None:
    """Share of its threads' time that they waited for a processor."""
    told = _of(events, "host")
    ran = sum(number(e.get("ran_s"), f"{at}.ran_s") for e, at in told)
    waited = sum(number(e.get("waited_s"), f"{at}.waited_s") for e, at in told)
    return waited / (ran + waited) if ran + waited > 0 else None


def _ended(every: Sequence[Event], events: Sequence[Event], steps: object, steps_done: int) -> str:
    """How the last session ended, where that was before its last step."""
    if not isinstance(steps, int) or steps_done >= steps or not _of(events, "start"):
        return ""
    begun = max(i for i, (event, _) in enumerate(every) if event["event"] == "start")
    ends = _of(every[begun:], "end")
    if not ends:
        return "no end was recorded: it still runs, or it was killed"
    error = ends[-1][0].get("error")
    return f"it ended with {shown(error)}" if error else "the program ended at that point"


def started(start: dict[str, Any], where: str) -> dict[str, Any]:
    """What a `start` says, as fields of a RunLog. Raises InputError naming the key."""
    gpu, knobs, model = start.get("device"), start.get("config", {}), start.get("model", {})
    method = start.get("method", {})
    if gpu is not None and not isinstance(gpu, str):
        msg = f"{where}.device is {shown(gpu)}, and must be a name"
        raise InputError(msg)
    for name, value in (("config", knobs), ("model", model), ("method", method)):
        if not isinstance(value, dict):
            msg = f"{where}.{name} is {shown(value)}, and must be an object"
            raise InputError(msg)

    ran, waited = _told(start, "ran_s", where), _told(start, "waited_s", where)

    def maybe(key: str, holder: dict[str, Any], place: str) -> int | None:
        return None if holder.get(key) is None else count(holder[key], f"{place}.{key}") or None

    return {
        "max_steps": maybe("max_steps", start, where),
        "epochs": maybe("epochs", start, where),
        "micro_batch_size": maybe("micro_batch_size", start, where),
        "gradient_accumulation_steps": maybe("gradient_accumulation_steps", start, where),
        "save_every_steps": maybe("checkpoint_every_steps", start, where),
        "gpu": gpu,
        "gpus": maybe("device_count", start, where),
        "knobs": {n: KNOBS[n].parse(v, where) for n, v in knobs.items() if n in KNOBS},
        "model": {n: v for n in _MODEL if (v := maybe(n, model, f"{where}.model"))},
        "method": _method(method, f"{where}.method"),
        "before_s": _told(start, "before_s", where),
        "prepare_s": _told(start, "prepare_s", where),
        "before_waiting": (waited or 0.0) / (ran + (waited or 0.0)) if ran else None,
    }


def _told(event: dict[str, Any], key: str, where: str) -> float | None:
    """[s] of a key; None where the event lacks it."""
    return None if event.get(key) is None else number(event[key], f"{where}.{key}")


def _method(method: dict[str, Any], where: str) -> dict[str, Any]:
    """What it says of the method; a word that no job file has is left out."""
    found = {n: method[n] for n, words in _METHOD.items() if method.get(n) in words}
    if method.get("rank") is not None:
        found["rank"] = count(method["rank"], f"{where}.rank")
    return found


def _sessions(events: Sequence[Event]) -> tuple[Stretch, ...]:
    """The steps, each session's first as its warm-up."""
    found: list[Stretch] = []
    opened = 0
    for position, (event, _) in enumerate(events):
        if event["event"] == "start" or position == len(events) - 1:
            until = position + 1
            part = _of(events[opened:until], "step")
            found += _each([(_step(e, at), _seconds(e, at)) for e, at in part])
            opened = until
    return tuple(found)


def _comparable(events: list[Event]) -> tuple[list[Event], tuple[str, ...]]:
    """The events since the machine or the configuration last changed, and what was left out."""
    starts = [i for i, (event, _) in enumerate(events) if event["event"] == "start"]
    if not starts:
        return events, ()

    def what(i: int) -> list[Any]:
        return [events[i][0].get(key) for key in _SAME]

    first = starts[-1]
    for i in reversed(starts):
        if what(i) != what(starts[-1]):
            break
        first = i
    before = _of(events[:first], "step")
    if not before:
        return events[first:], ()
    if not _of(events[first:], "step"):  # it has only begun
        return _comparable(events[:first])
    note = f"{len(before):,} steps of earlier sessions, run otherwise, are left out"
    return events[first:], (note,)


Event = tuple[dict[str, Any], str]  # and where it stands


def _events(text: str, path: str) -> list[Event]:
    lines = text.split("\n", MAX_LINES)
    if len(lines) > MAX_LINES:
        msg = f"{path} has more than {MAX_LINES:,} lines"
        raise InputError(msg, "keep every tenth step of it")
    found: list[Event] = []
    for position, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path}, line {position}"
        if position == len(lines) and not _is_whole(line):
            break  # cut off while it was being written
        event = parsed_json(line, where)
        if not isinstance(event, dict) or not isinstance(event.get("event"), str):
            msg = f"{where} is {shown(event)}, and must be an object with an event"
            raise InputError(msg, f"{RECORD_FILE} holds one JSON object a line")
        found.append((event, where))
    return found


def _is_whole(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _of(events: Sequence[Event], name: str) -> list[Event]:
    return [event for event in events if event[0]["event"] == name]


def _step(event: dict[str, Any], where: str) -> int:
    return count(event.get("step"), f"{where}.step", low=1)


def _rows(events: Sequence[Event]) -> int | None:
    """Rows of the last evaluation that tells them."""
    told = [(e, at) for e, at in _of(events, "evaluation") if "rows" in e]
    return count(told[-1][0]["rows"], f"{told[-1][1]}.rows") or None if told else None


def _seconds(event: dict[str, Any], where: str) -> float:
    return number(event.get("duration_s"), f"{where}.duration_s")
