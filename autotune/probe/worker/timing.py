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
from .steady import WINDOW, Step, is_steady

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        self, plan: dict[str, Any], clock: Clock, meter: Meter, sign: StopSign | None = None
    ) -> None:
        """plan: longest, most, measured, least (steps), seconds (of the steady block), patience_s.

        sign: how several ranks agree on the last step.
        """
        self.plan, self.clock, self.meter = plan, clock, meter
        self.sign = sign or StopSign(None)
        self.steps: list[Step] = []
        self.steady_from: int | None = None
        self.block: tuple[float, int] | None = None  # host clock and step at the block's start
        self.block_s = 0.0
        self.retries_before = 0
        self.begun_s = 0.0
        self.first_step_s = 0.0
        self._marks: list[dict[str, Any]] = []
        self._fetched = (0.0, 0)  # seconds in the loader and tokens of the step to come
        self._last_end: Any = None
        self._last_cpu = 0.0
        self._checked = 0  # steps that were looked at for the start of the steady block

    def fetched(self, seconds: float, tokens: int) -> None:
        """The loader gave the batches of one step."""
        self._fetched = (seconds, tokens)

    def on_train_begin(self, *_: Any, **__: Any) -> None:  # noqa: ANN401 - Trainer's signature
        """Training starts."""
        self.begun_s = self.clock.now()
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
        if len(self._marks) == 1:
            self.first_step_s = self.clock.now() - self.begun_s
        lag = 1 if self.clock.cuda else 0
        while len(self.steps) < len(self._marks) - lag:
            self.steps.append(self._resolved(self._marks[len(self.steps)]))
        if self.sign.reached(len(self._marks), wanted=self._enough()):
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

    def _first_steady(self) -> int | None:
        """The step that a steady window starts at; each window is looked at once."""
        first = max(int(self.plan["longest"]), self._checked)
        for start in range(first, len(self.steps) - WINDOW + 1):
            self._checked = start + 1
            if is_steady(self.steps[start : start + WINDOW]):
                return start
        return None

    def _enough(self) -> bool:
        done = len(self.steps)
        if self.steady_from is None:
            self.steady_from = self._first_steady()
            if self.steady_from is not None:
                self.retries_before = self.meter.retries()
                self.meter.reset()
                self.block = (self.clock.now(), len(self._marks))
        if self.steady_from is None or self.block is None:
            late = time.perf_counter() - self.begun_s > float(self.plan.get("patience_s", 60.0))
            least = int(self.plan["longest"]) + int(self.plan["least"])
            return done >= int(self.plan["most"]) or (late and done >= least)
        since = time.perf_counter() - self.block[0]
        counted = done - self.steady_from
        long_enough = since >= float(self.plan["seconds"]) and counted >= int(self.plan["least"])
        return counted >= WINDOW + int(self.plan["measured"]) or long_enough

    def finish(self) -> None:
        """Training is over: resolve what is left and close the block."""
        ended = self.clock.now()
        while len(self.steps) < len(self._marks) and END in self._marks[len(self.steps)]:
            self.steps.append(self._resolved(self._marks[len(self.steps)]))
        if self.block is not None and len(self._marks) > self.block[1]:
            self.block_s = (ended - self.block[0]) / (len(self._marks) - self.block[1])
        self.meter.note("steady")

    @property
    def measured(self) -> list[Step]:
        """The steady steps, or the last ones when none were."""
        if self.steady_from is not None:
            return self.steps[self.steady_from :]
        return self.steps[max(len(self.steps) // 2, int(self.plan["longest"])) :] or self.steps


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
