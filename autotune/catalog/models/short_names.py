"""What a name without its organisation means: `qwen3-coder-30b-a3b`, `hunyuan-7b`, `llama3.2-1b`.

People leave out the words that say how a model was tuned or when it was published, and write
hyphens as they like. Here is which full names hold all that was typed and nothing else that tells
one shape from another; `models.py` takes one where all of them have one shape.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# How a model was tuned, and how the names on the hub of the catalogue's families say it.
_TUNED = {"instruct", "chat", "it"}
_UNTUNED = {"base", "pt", "pretrain", "pretrained"}
_MAKERS = {"meta", "nvidia", "c4ai", "hf"}  # "hf": converted to transformers' format
_WORDS = re.compile(r"[a-z]+|[0-9][0-9a-z]*(?:\.[0-9][0-9a-z]*)*")
_POINT = re.compile(r"(?<=[0-9])_(?=[0-9])")  # of a full name: "internlm2_5"
_DATE = re.compile(r"2[0-9]0[1-9]|2[0-9]1[0-2]|(0[1-9]|1[0-2])2[0-9]")  # 2501, 1124


def meant_by(text: str, names: Iterable[str]) -> list[str]:
    """The full names that a short one may mean, the likeliest first.

    A model that was not tuned comes before one that was, a later one before an earlier one; else
    they stay in the order of `names`.
    """
    typed = _WORDS.findall(text.casefold())
    each = ((name, _left_out(typed, _words_of(name))) for name in names)
    found = {name: left for name, left in each if left is not None}
    return sorted(found, key=lambda name: _likeliest(found[name]))


def _words_of(name: str) -> list[str]:
    return _WORDS.findall(_POINT.sub(".", name.rpartition("/")[2].casefold()))


def _left_out(typed: list[str], words: list[str]) -> list[str] | None:
    """The words of a full name that were not typed.

    None where a typed word is not among them in its place, or where one of them says more than how
    and when the model was trained.
    """
    left: list[str] = []
    rest = iter(typed)
    wanted = next(rest, None)
    for word in words:
        if word == wanted:
            wanted = next(rest, None)
        else:
            left.append(word)
    says_nothing = all(
        word in {*_TUNED, *_UNTUNED, *_MAKERS, "v"}
        or _DATE.fullmatch(word)
        or (place and left[place - 1] == "v")
        for place, word in enumerate(left)
    )
    return left if wanted is None and typed and says_nothing else None


def _likeliest(left: list[str]) -> tuple[bool, list[float]]:
    numbers = [float(word) for word in left if re.fullmatch(r"\d+(\.\d+)?", word)]
    return not _TUNED.isdisjoint(left), [-number for number in numbers]
