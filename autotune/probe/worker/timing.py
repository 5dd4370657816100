"""The Trainer with a stopwatch: what each optimizer step took, and when to stop.

On CUDA a step's parts are times between events on the stream, so nothing is synchronised that the
Trainer would not synchronise; the block of steady steps is also timed by the host's clock between
two synchronised points.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from transformers import Trainer, TrainerCallback

from .ranks import StopSign
from .windows import Step, Windows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .memory import Meter

BEGIN, MICRO, OPTIMIZER, END = "begin", "micro", "optimizer", "end"


class Clock:
    """Marks in time: CUDA events on the stream, or the host's clock."""

    def __init__(self, device: torch.device) -> None:
        """A clock of a device."""
        self.cuda = device.type == "cuda"

    def mark(self) -> Any:  # noqa: ANN401 - an event or seconds
        """This moment."""
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, start: Any, end: Any) -> float:  # noqa: ANN401 - marks
        """[s] from one mark to another; both must have passed."""
        if not self.cuda:
            return float(end - start)
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000.0

    def now(self) -> float:
        """[s] the host's clock, after everything queued has finished."""
        if self.cuda:
            torch.cuda.synchronize()
        return time.perf_counter()


class Stopwatch(TrainerCallback):
    """Times steps and stops the training once enough of them were steady.

    The first `longest` steps run the longest rows and belong to memory, not to time.
    """

    def __init__(
        self, plan: dict[str, Any], clock: Clock, meter: Meter, sign: StopSign | None = None,
        on_phase: Callable[[str, int, int], None] = lambda *_: None,
    ) -> None:  # fmt: skip
        """plan: of `Windows`. sign: how several ranks agree on the last step.

        on_phase: hears the name of what goes on, and how much of how much of it is done.
        """
        self.plan, self.clock, self.meter, self.on_phase = plan, clock, meter, on_phase
        self.sign = sign or StopSign(None)
        self.steps: list[Step] = []
        self.windows = Windows(
            plan,
            self.steps,
            on_cpu=not clock.cuda,
            waiting=lambda: self.on_phase("waiting for other programs", 0, 0),
        )
        self.retries_before = 0
        self.begun_s = 0.0
        self.first_step_s = 0.0
        self._marks: list[dict[str, Any]] = []
        self._fetched = (0.0, 0)  # seconds in the loader and tokens of the step to come
        self._last_end: Any = None
        self._last_cpu = 0.0

    def fetched(self, seconds: float, tokens: int) -> None:
        """The loader gave the batches of one step."""
        self._fetched = (seconds, tokens)

    def on_train_begin(self, *_: Any, **__: Any) -> None:  # noqa: ANN401 - Trainer's signature
        """Training starts."""
        self.begun_s = self.clock.now()
        self.windows.begin()
        self._last_end = self.clock.mark()
        self._last_cpu = time.process_time()
        self.meter.reset()

    def on_step_begin(self, *_: Any, **__: Any) -> None:  # noqa: ANN401 - Trainer's signature
        """The first micro-step starts."""
        self._marks.append({"fetched": self._fetched, "last": self._last_end})
        self._marks[-1][BEGIN] = self.clock.mark()

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:  # noqa: ANN401 - as above
        """All gradients are there."""
        self._marks[-1][MICRO] = self.clock.mark()
        if self._in_longest:
            self.meter.note("micro")

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:  # noqa: ANN401 - as above
        """The weights are updated."""
        self._marks[-1][OPTIMIZER] = self.clock.mark()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ANN401, ARG002
        """A step is over; on CUDA the step before it is now known."""
        self._last_end = self._marks[-1][END] = self.clock.mark()
        cpu = time.process_time()
        self._marks[-1]["cpu"], self._last_cpu = cpu - self._last_cpu, cpu
        if self._in_longest:
            self.meter.note("optimizer")
        if len(self._marks) >= int(self.plan["longest"]):
            self.meter.uncount()
        if len(self._marks) == int(self.plan["longest"]):  # where no window ever opens, from here
            self.retries_before = self.meter.retries()
        if len(self._marks) == 1:
            self.first_step_s = self.clock.now() - self.begun_s
        lag = 1 if self.clock.cuda else 0
        while len(self.steps) < len(self._marks) - lag:
            self.steps.append(self._resolved(self._marks[len(self.steps)]))
        if self.sign.reached(len(self._marks), wanted=self._should_stop()):
            control.should_training_stop = True

    @property
    def _in_longest(self) -> bool:
        return len(self._marks) <= int(self.plan["longest"])

    def _resolved(self, marks: dict[str, Any]) -> Step:
        between = self.clock.between
        data_s, tokens = marks["fetched"]
        return Step(
            wall_s=between(marks["last"], marks[END]),
            tokens=tokens,
            data_s=data_s,
            micro_s=between(marks[BEGIN], marks[MICRO]),
            optimizer_s=between(marks[MICRO], marks[OPTIMIZER]),
            cpu_s=marks["cpu"],
        )

    def _should_stop(self) -> bool:
        """Whether a window was calm, or no other one is wanted."""
        windows = self.windows
        self._report_phase()
        if not windows.is_open:
            if not windows.opens():
                return windows.given_up()
            self.retries_before = self.meter.retries()
            self.meter.reset()
            windows.opened(len(self._marks), self.clock.now())
            self._mark_again()
        if not windows.full():
            return False
        windows.close(len(self._marks), self.clock.now())
        satisfied = windows.satisfied()
        self._mark_again()
        return satisfied

    def _report_phase(self) -> None:
        done = len(self.steps)
        if done <= int(self.plan["longest"]):
            self.on_phase("longest batches", done, int(self.plan["longest"]))
        elif self.windows.is_open:
            self.on_phase("measuring", done - self.windows.first, self.windows.wanted)
        else:
            self.on_phase("warming up", done, 0)

    def _mark_again(self) -> None:
        """The next step begins now: what was read or slept belongs to none."""
        self._last_end = self.clock.mark()
        self._last_cpu = time.process_time()

    def finish(self) -> None:
        """Training is over: resolve what is left."""
        ended = self.clock.now()
        while len(self.steps) < len(self._marks) and END in self._marks[len(self.steps)]:
            self.steps.append(self._resolved(self._marks[len(self.steps)]))
        self.windows.finish(len(self._marks), ended)
        self.meter.note("steady")

    @property
    def measured(self) -> list[Step]:
        """The steps of the calmest window, or the last ones when none were steady."""
        best = self.windows.best
        return self.steps[best.first : best.last]


class ProbeTrainer(Trainer):
    """The Trainer, reading rows in their order and telling what fetching them took."""

    stopwatch: Stopwatch | None = None

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:  # noqa: ANN401 - Trainer's
        return torch.utils.data.SequentialSampler(train_dataset or self.train_dataset)

    def get_batch_samples(
        self,
        epoch_iterator: Iterator[Any],
        num_batches: int,
        device: torch.device,
    ) -> tuple[list[Any], Any]:
        """The batches of one step, timed."""
        begun = time.perf_counter()
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        if self.stopwatch is not None:
            tokens = sum(batch["input_ids"].numel() for batch in batches)
            self.stopwatch.fetched(time.perf_counter() - begun, tokens)
        return batches, items
