"""The events of a training, taken down and judged: a callback of transformers' Trainer.

The base class of transformers is added when the first callback is made, so that importing this
loads nothing. What becomes of an event is in `session`.

Nothing here stops a training or raises into it. The first thing that goes wrong ends the recording
with one line on stderr; Ctrl-C passes through.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from autotune.training.process import say

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.training.session import Session

JUDGED_AT = 50


def _guarded(event: Callable[..., None]) -> Callable[..., None]:
    """An event that does nothing once the recorder is off, and turns it off where it fails."""

    @functools.wraps(event)
    def safe(self: Recorder, args: Any, state: Any, control: Any, **more: Any) -> None:
        if self.is_off:
            return
        try:
            event(self, args, state, control, **more)
        except Exception as error:  # noqa: BLE001 - a training must not end for its record
            self.turn_off(error)

    return safe


class Recorder:
    """Takes down step times, waits for data, saves, evaluations and memory; judges them once.

    run: the folder of the run whose plan this training follows; None: the last run, if the training
    is of its job. judge_at: the step after which one line says how the training goes; 0: never.
    """

    def __init__(self, run: str | Path | None = None, *, judge_at: int = JUDGED_AT) -> None:
        self.run = run
        self.judge_at = judge_at
        self.is_off = False
        self.session: Session | None = None

    def turn_off(self, error: Exception) -> None:
        """Say once why nothing more is recorded."""
        self.is_off = True
        self.session = None
        text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        say(f"recording ended, the training goes on: {text}")

    @_guarded
    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **_: Any
    ) -> None:
        """Only the main process records."""
        if not getattr(state, "is_world_process_zero", True):
            self.is_off = True
            return
        from autotune.training.session import Session

        run = None if self.run is None else Path(str(self.run))
        if self.session is not None:  # it starts again, with a smaller batch that fits
            self.session.close()
        self.session = Session(args, state, model, run, int(self.judge_at))

    @_guarded
    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """What passed since the last step was not the loader's."""
        if self.session is not None:
            self.session.ends("other", state)

    on_epoch_end = on_epoch_begin

    @_guarded
    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """All batches of the step are there."""
        if self.session is not None:
            self.session.ends("wait", state)

    @_guarded
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The optimizer has stepped."""
        if self.session is not None:
            self.session.ends("work", state)
            self.session.take_down()

    @_guarded
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """A training's log ends; an evaluation's is part of the evaluation."""
        if self.session is not None and "loss" in (logs or {}):
            self.session.track()
            self.session.ends("other", state)

    @_guarded
    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any
    ) -> None:
        """An evaluation ends; one before the first step counts for none."""
        if self.session is None:
            return
        self.session.ends("evaluation" if state.global_step else "other", state)
        if state.global_step:
            self.session.evaluated(metrics)

    @_guarded
    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A checkpoint is written, and the record beside it, whatever happens next."""
        if self.session is not None:
            self.session.ends("checkpoint", state)
            self.session.take_down(now=True)

    @_guarded
    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The training is over."""
        session, self.session = self.session, None
        if session is not None:
            session.finish()


class TrainerCallback(Recorder):
    """Records what a training takes, and says early whether it goes as planned.

        from autotune import TrainerCallback
        trainer.add_callback(TrainerCallback())

    Into the run's folder goes `observations.jsonl`, which `autotune verify RUN` reads: the seconds
    of every step, of waiting for data, of saves and evaluations, and the peak of memory. After
    `judge_at` steps one line on stderr says "on plan" or how far off it is, and why. A W&B or
    MLflow run that the training has open gets the prediction, the pace and the dollars so far as
    metrics below `autotune/`. It never stops a training and never raises into it.

    Args:
        run: the run's folder; the last run if left out, where the training is of its job. Without a
            plan the record goes into the Trainer's output folder.
        judge_at: the step after which the line is written; 0: none is.
    """

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """An instance of transformers' TrainerCallback too, which is loaded only now."""
        made: Self = object.__new__(_as_callback(cast("Any", cls)))
        return made


@functools.cache
def _as_callback(cls: Any) -> Any:
    try:
        from transformers import TrainerCallback as Base
    except ImportError:  # then there is no Trainer to call it
        return cls
    return cls if issubclass(cls, Base) else type(cls.__name__, (cls, Base), {})
