"""What is typed beside a job file: the options of the command line that change the question."""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING

from autotune.domain.config import own_name
from autotune.domain.errors import InputError
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Overrides:
    """What was given beside the job file. Empty: nothing."""

    gpus: Sequence[str] = ()  # "h100", "h100:8", "8xh100", each with @PRICE; "all", "all:8"
    price: str | None = None
    max_price: str | None = None
    set_values: Mapping[str, str] = field(default_factory=dict)
    allow: Sequence[str] = ()
    deadline: str | None = None
    budget: str | None = None
    spot: bool = False  # beside every machine without a stated kind, the same one on spot
    stated: Mapping[str, object] = field(default_factory=dict)  # what a trainer's file lacks
    beside: Sequence[str] = ()  # configs of accelerate or DeepSpeed that belong to it
    launch: str = ""  # of a script with several: by name or number
    any_machine: bool = False  # where none is named, every one with a price
    priced_as: str = ""  # what a trainer's file of another kind of training is priced as: sft

    @property
    def changes(self) -> bool:
        """Whether any of it changes what a job file says."""
        given = (self.gpus, self.set_values, self.allow, self.spot)
        limits = (self.price, self.deadline, self.budget)
        return any(given) or any(limit is not None for limit in limits)

    def everywhere(self) -> Overrides:
        """With every machine that has a price, where none is named and any will do."""
        return replace(self, gpus=("all",)) if self.any_machine and not self.gpus else self

    def __post_init__(self) -> None:
        """Knobs go by their own names. Raises InputError for one that is given by both."""
        named: dict[str, str] = {}
        for key, value in self.set_values.items():
            name = own_name(key)
            if name in named:
                other = next(each for each in self.set_values if own_name(each) == name != each)
                msg = f"--set gives {name} twice, once as {other}"
                raise InputError(msg, "keep one of them")
            named[name] = value
        object.__setattr__(self, "set_values", named)
