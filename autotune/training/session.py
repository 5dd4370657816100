"""One training from its begin to its end: the plan it follows, its clock and its record.

The record is one JSON object a line (see autotune/evidence/log/step_times.py), appended a batch at
a time, each batch with one write, so a reader finds whole lines and at most a last one cut off. A
training that goes on from a checkpoint goes on in its file; one that starts anew moves the file of
an earlier one aside. Prediction, pace and dollars so far go to the W&B or MLflow run that the
training already has: nothing is imported and no run is opened for it, and a tracker that fails
costs its metrics, not the record.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import time
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from autotune.domain.errors import InputError
from autotune.domain.paths import near
from autotune.domain.units import HOUR_S
from autotune.evidence.log.run_log import RunLog
from autotune.evidence.log.step_times import RECORD_FILE, started
from autotune.evidence.log.trainer_state import rows_of
from autotune.training import process
from autotune.training.arguments import device_of, start_of
from autotune.training.process import Memory, say
from autotune.training.stopwatch import Step, Stopwatch, clock_of
from autotune.training.verdict import opening, pace_of, verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from autotune.app.verify.plan import Expected
    from autotune.report.schema import Row
    from autotune.training.stopwatch import Pause, Stretch

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


FLUSH_S = 10.0
SHARE = 0.005  # of the time, that writing may take on a slow disk
DENSE_STEPS = 100_000  # beyond them every tenth step is kept: logs have at most a million lines


class Record:
    """Lines on their way into a file."""

    def __init__(self, path: Path, *, resumed: bool) -> None:
        """Raises OSError where the file cannot be written."""
        self.path = path
        self._lines: list[str] = []
        self._due = 0.0
        self._steps = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size:
            if resumed:
                _mend(path)
            else:
                path.rename(_aside(path))

    def add(self, event: str, **values: Any) -> None:
        """One line. Raises ValueError for a number that is not finite."""
        if event == "step":
            self._steps += 1
            if self._steps > DENSE_STEPS and self._steps % 10:
                return
        self._lines.append(json.dumps({"event": event, **values}, allow_nan=False) + "\n")

    @property
    def is_due(self) -> bool:
        """Whether what has gathered should be written."""
        return time.monotonic() >= self._due

    def flush(self) -> None:
        """Write what has gathered. Raises OSError."""
        begun = time.monotonic()
        if self._lines:
            content = "".join(self._lines).encode()
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                while content:
                    content = content[os.write(handle, content) :]
            finally:
                os.close(handle)
            self._lines = []
        now = time.monotonic()
        self._due = now + max(FLUSH_S, (now - begun) / SHARE)


def _mend(path: Path) -> None:
    """Take off a last line that was cut off in mid-writing."""
    content = path.read_bytes()
    if not content.endswith(b"\n"):
        os.truncate(path, content.rfind(b"\n") + 1)


def _aside(path: Path) -> Path:
    """A free name for an earlier record: observations-1.jsonl."""
    number = 1
    while (free := path.with_name(f"{path.stem}-{number}{path.suffix}")).exists():
        number += 1
    return free


LEAST_STEPS = 10  # that a judgement rests on


class Session:
    """Between on_train_begin and on_train_end."""

    def __init__(self, args: Any, state: Any, model: Any, run: Path | None, judge_at: int) -> None:
        """Raises OSError where neither the run's folder nor the output folder can be written."""
        process.count_training()
        start = start_of(args, state, model) | _before()
        self.steps, self.done = int(state.max_steps), int(state.global_step)
        kind, indices = device_of(args, model)
        self.expected, why = _plan_of(run, start)
        self.record = _record(self.expected, Path(args.output_dir), resumed=self.done > 0)
        self.record.add("start", **start)
        self.record.flush()
        say(opening(self.expected, near(self.record.path), why))
        self.memory = Memory(indices)
        self.judge_at = judge_at
        self.judged: list[Step] | None = [] if judge_at else None
        self.trackers, self.lately = Trackers(), list[float]()
        self.begun = self.scheduled = process.scheduled_s()
        self.epoch: float | None = None
        self.rows: dict[int, list[int]] = {}  # evaluated, by step and set of data
        atexit.register(self.close)
        self.stopwatch = Stopwatch(clock_of(kind))  # last: what is above takes a moment

    def ends(self, stretch: Stretch, state: Any) -> None:
        """A stretch of the training ends, with so many steps and epochs done."""
        self.stopwatch.ends(stretch, int(state.global_step))
        self.done, self.epoch = int(state.global_step), getattr(state, "epoch", None)

    def evaluated(self, metrics: Any) -> None:
        """Over how many rows, after the step that is done; several sets of data are one."""
        rows = rows_of(metrics) if isinstance(metrics, dict) else 0
        self.rows[self.done] = [*self.rows.get(self.done, ()), rows]

    def take_down(self, *, now: bool = False) -> None:
        """Keep what has passed; judge and write when it is time, or now."""
        self._keep(self.stopwatch.passed())
        enough = self.judged is not None and len(self.judged) >= self.judge_at
        if enough:
            self._judge()
        if enough or now or self.record.is_due:
            self._write()

    def track(self) -> None:
        """Tell the training's own trackers what was predicted, and what it took since the last."""
        lately, self.lately = self.lately, []
        if not lately:
            return
        row = self.expected.row if self.expected is not None else None
        step_s = sum(lately) / len(lately)
        self.trackers.tell(predicted(row) | so_far(row, step_s, process.age_s()), self.done)

    def _keep(self, passed: Sequence[Step | Pause]) -> None:
        for item in passed:
            if isinstance(item, Step):
                self.record.add(
                    "step",
                    step=item.number,
                    duration_s=_rounded(item.duration_s),
                    data_wait_s=_rounded(item.data_wait_s),
                )
                self.lately.append(item.duration_s)
                if self.judged is not None:
                    self.judged.append(item)
            else:
                rows = self.rows.pop(item.step, ()) if item.kind == "evaluation" else ()
                told = {"rows": sum(rows)} if rows and all(rows) else {}
                seconds = _rounded(item.duration_s)
                self.record.add(item.kind, step=item.step, duration_s=seconds, **told)

    def _write(self) -> None:
        found = self.memory.read()
        if found:
            self.record.add("memory", **found)
        if self.done and self.epoch:
            self.record.add("epoch", step=self.done, epoch=_rounded(self.epoch))
        ran, waited = _since(self.scheduled)
        self.scheduled = process.scheduled_s()
        if ran:  # threads that ended take their times with them
            self.record.add("host", step=self.done, ran_s=_rounded(ran), waited_s=_rounded(waited))
        self.record.flush()

    def _judge(self) -> None:
        steps, self.judged = self.judged, None
        if not steps:
            return
        row = self.expected.row if self.expected is not None else None
        memory, free = self.memory.read(), self.memory.free()
        whole = self.expected.steps if self.expected is not None and row else self.steps
        ran, waited = _since(self.begun)
        waiting = waited / (ran + waited) if ran else 0.0
        say(verdict(pace_of(steps), steps[-1].number, whole, row, memory, free, waiting))

    def finish(self) -> None:
        """The training ended by itself."""
        self._keep(self.stopwatch.rest())
        if self.judged is not None and len(self.judged) >= LEAST_STEPS:
            self._judge()
        self._write()
        if self.expected is not None and self.expected.row is not None:
            run = self.expected.run_dir
            told = quote(near(run)) if run is not None else f"JOB {quote(near(self.record.path))}"
            say(f"recorded; `autotune verify {told}` compares the run with its plan")

    def close(self) -> None:
        """The program ends, or the training starts again: keep what there is, and say nothing."""
        atexit.unregister(self.close)
        with contextlib.suppress(Exception):
            self._keep(self.stopwatch.rest())
        with contextlib.suppress(Exception):
            whole, error = process.age_s(), process.last_error()
            known = {"duration_s": _rounded(whole)} if whole is not None else {}
            told = {"error": error} if error else {}
            self.record.add("end", step=self.done, **known, **told)
            self.record.flush()


def _before() -> dict[str, float]:
    """What passed before the training, as a `start` says it; nothing where it cannot be told."""
    age, (ran, waited) = process.age_s(), process.scheduled_s()
    told = {"ran_s": _rounded(ran), "waited_s": _rounded(waited)} if ran else {}
    return told if age is None else {"before_s": _rounded(age), **told}


def _since(before: tuple[float, float]) -> tuple[float, float]:
    """[s] that this process's threads ran and waited since then."""
    ran, waited = process.scheduled_s()
    return max(ran - before[0], 0.0), max(waited - before[1], 0.0)


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.6g}")


def _plan_of(run: Path | None, start: dict[str, Any]) -> tuple[Expected | None, str]:
    """The plan that this training follows; else None and why."""
    try:
        from autotune.app.verify.plan import expected_of

        log = RunLog("this training", "record", steps_done=0, **started(start, "this training"))
        return expected_of(run, log), ""
    except InputError as error:
        return None, error.message
    except Exception as error:  # noqa: BLE001 - a damaged run costs the plan, not the record
        return None, " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _record(expected: Expected | None, output: Path, *, resumed: bool) -> Record:
    """Beside the plan; in the Trainer's output folder where there is none or it is read-only."""
    if expected is not None and expected.run_dir is not None:
        try:
            return Record(expected.run_dir / RECORD_FILE, resumed=resumed)
        except OSError:
            say(f"{near(expected.run_dir)} cannot be written: recording into {output} instead")
    return Record(output / RECORD_FILE, resumed=resumed)
