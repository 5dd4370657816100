"""One change of what is asked, or of how it is run: the noun of every what-if.

A question (a job and what may be tried) is changed and answered anew, so that the change is told
at its own best; a run (a candidate as it stands) is changed and priced as it is.
Not here: which changes there are (`app.whatif`), and what they cost (`pricing`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.domain.config import KnobClass, KnobValue

Subject = TypeVar("Subject")
Sort = Literal["setting", "lock", "machine", "quality"]
_RANK: tuple[KnobClass, ...] = ("neutral", "numeric", "quality")


@dataclass(frozen=True, slots=True)
class Edit(Generic[Subject]):
    """One change and what is told of it.

    key: the knob or the key of the job that is changed; value: what it becomes, as `--set` takes
    it, from `before`. typed: options of the command line that make the change. changes: what it
    does to the training. columns: what of the bill moves; a knob among them has the value that the
    search finds where the change opens it. label: the change in words. note: what to know of it.
    closed: values of a knob that the search leaves alone until it is opened.
    """

    apply: Callable[[Subject], Subject]
    label: str = ""
    key: str = ""
    before: str = ""
    value: str = ""
    typed: str = ""
    changes: KnobClass = "neutral"
    of: Literal["setting", "lock", "machine"] = "setting"
    columns: tuple[str, ...] = ()
    note: str = ""
    closed: tuple[KnobValue, ...] = ()

    @property
    def changes_training(self) -> bool:
        """Whether another training results: the user's decision."""
        return self.changes == "quality"

    @property
    def sort(self) -> Sort:
        """What is changed: a knob's value, a lock, the machine, or the training itself."""
        return "quality" if self.changes_training else self.of

    def then(self, other: Edit[Subject]) -> Edit[Subject]:
        """Both, one after the other."""
        return Edit(
            lambda subject: other.apply(self.apply(subject)),
            label=_joined(" and ", self.label, other.label),
            key=self.key,
            before=_joined(", ", self.before, other.before),
            value=_joined(", ", self.value, other.value),
            typed=_joined(" ", self.typed, other.typed),
            changes=most_of(self.changes, other.changes),
            of=self.of,
            columns=tuple(dict.fromkeys((*self.columns, *other.columns))),
            note=_joined("; ", self.note, other.note),
            closed=self.closed,
        )


def most_of(*changes: KnobClass) -> KnobClass:
    """The strongest of what several changes do to the training; of none: neutral."""
    return max(changes, key=_RANK.index, default="neutral")


def _joined(by: str, *parts: str) -> str:
    return by.join(part for part in parts if part)
