"""One kind of answer in every format but its first screen, which is made in `screens/`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from autotune.report.layout.markdown import sections_markdown
from autotune.report.layout.text import sections_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autotune.report.layout.blocks import Section

Payload = TypeVar("Payload")


@dataclass(frozen=True, slots=True)
class Report(Generic[Payload]):
    """What an answer says, decided once: text and Markdown render the same sections.

    csv: its rows as a table. ending: what is put below the sections, such as a glossary.
    """

    sections: Callable[[Payload], Sequence[Section]]
    csv: Callable[[Payload], str]
    ending: Callable[[Sequence[Section]], Sequence[Section]] = list

    def text(self, payload: Payload, *, width: int = 80, colour: bool = False) -> str:
        """The whole report for a terminal of `width` columns."""
        return sections_text(self.ending(self.sections(payload)), width=width, colour=colour)

    def markdown(self, payload: Payload) -> str:
        """The whole report for pull requests, tickets and notes."""
        return sections_markdown(self.ending(self.sections(payload)))
