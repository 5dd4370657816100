"""One training from its begin to its end: the plan it follows, its clock and its record."""

from __future__ import annotations

import atexit
import contextlib
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from autotune.domain.errors import InputError
from autotune.domain.paths import near
from autotune.evidence.log.run_log import RunLog
from autotune.evidence.log.step_times import RECORD_FILE, started
from autotune.training import process
from autotune.training.arguments import device_of, start_of
from autotune.training.process import Memory, say
from autotune.training.record import Record
from autotune.training.stopwatch import Step, Stopwatch, clock_of
from autotune.training.trackers import Trackers, predicted, so_far
from autotune.training.verdict import opening, pace_of, verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.app.verify.expected import Expected
    from autotune.training.stopwatch import Pause, Stretch

LEAST_STEPS = 10  # that a judgement rests on


class Session:
    """Between on_train_begin and on_train_end."""

    def __init__(self, args: Any, state: Any, model: Any, run: Path | None, judge_at: int) -> None:
        """Raises OSError where neither the run's folder nor the output folder can be written."""
        start = start_of(args, state, model)
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
        process.count_training()
        atexit.register(self.close)
        self.stopwatch = Stopwatch(clock_of(kind))  # last: what is above takes a moment

    def ends(self, stretch: Stretch, state: Any) -> None:
        """A stretch of the training ends, with so many steps and epochs done."""
        self.stopwatch.ends(stretch, int(state.global_step))
        self.done, self.epoch = int(state.global_step), getattr(state, "epoch", None)

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
                self.record.add(item.kind, step=item.step, duration_s=_rounded(item.duration_s))

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


def _since(before: tuple[float, float]) -> tuple[float, float]:
    """[s] that this process's threads ran and waited since then."""
    ran, waited = process.scheduled_s()
    return max(ran - before[0], 0.0), max(waited - before[1], 0.0)


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.6g}")


def _plan_of(run: Path | None, start: dict[str, Any]) -> tuple[Expected | None, str]:
    """The plan that this training follows; else None and why."""
    try:
        from autotune.app.verify.expected import expected_of

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
