"""The words of the page with their meanings, as a list of definitions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from autotune.report.page.markup import Markup, tag
from autotune.report.sections.glossary import used_words

if TYPE_CHECKING:
    from collections.abc import Sequence


def words_html(parts: Sequence[Markup]) -> Markup:
    """The words that these parts of the page use, each with its meaning."""
    used = used_words(re.sub("<[^>]+>", " ", "".join(parts)))
    return tag(
        "dl", *(tag("div", tag("dt", word), tag("dd", what)) for word, what in used),
        class_="glossary",
    ) if used else Markup()  # fmt: skip
