"""The recorder as a callback of transformers' Trainer, and of all that build on it."""

from __future__ import annotations

import functools
from typing import Any, Self, cast

from autotune.training.recorder import Recorder


class TrainerCallback(Recorder):
    """Records what a training takes, and says early whether it goes as planned.

        from autotune import TrainerCallback
        trainer.add_callback(TrainerCallback())

    Into the run's folder goes `observations.jsonl`, which `autotune verify RUN` reads: the seconds
    of every step, of waiting for data, of saves and evaluations, and the peak of memory. After
    `judge_at` steps one line on stderr says "on plan" or how far off it is, and why. It never stops
    a training and never raises into it.

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
