"""How many tokens a text holds when no tokenizer is at hand: from its characters, by script.

Formula: tokens = sum over kinds of character (and Latin words) of count x tokens each, as measured
for the vocabulary's size. Latin letters and words count as English as far as the commonest English
words are among them, else as another language's; a space belongs to the word that follows it.
Source: `data/tokens_per_character.csv`, fitted by `python -m bench.text_tokens` to six public
tokenizers (Llama 2; Llama 3.1, Qwen 3, DeepSeek V3; Gemma 3, GPT-4o) on the Universal Declaration
of Human Rights in 48 languages, manual pages in 18, the MGSM problems in 11, program source, and
the instruction data that LLaMA-Factory and Code Alpaca publish.

`log_sd` is wide on purpose: the 10th to the 90th percentile holds every text and every tokenizer of
the group that was measured, down to languages that a vocabulary hardly knows, and half as much or
as much again: other texts than those were found to lie outside.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np

from autotune.catalog.tables import DATA, number, read_rows
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

Vocabulary = Literal["small", "middle", "large", "any"]

# [bytes] of English text a token holds, where only tokens are known and bytes are asked for.
# Measured with the tables above: prose and instruction data 4.0 to 4.9, program source 2.4 to 4.3.
BYTES_PER_TOKEN = 4.5
# [bytes] of a token of a tokenised row: input_ids, attention_mask and labels, int64 each.
# Source: the columns that Hugging Face datasets caches and its collators stack.
TOKENISED_BYTES = 24
SMALLEST_VOCABULARY = 16_000  # below it nothing was measured
SMALL, MIDDLE = 64_000, 190_000  # tokens in the largest vocabulary of the group

KINDS = (
    "english_word", "foreign_word", "english", "foreign", "accented", "digit", "punctuation",
    "newline", "cyrillic", "greek", "hebrew", "arabic", "indic", "southeast", "han", "kana",
    "hangul", "other",
)  # fmt: skip
_LETTERS = ("foreign", "accented")
_SPACE = len(KINDS)  # counted with the word that follows
_RANGES = (
    ("punctuation", 0x00, 0x7F), ("foreign", 0x41, 0x5A), ("foreign", 0x61, 0x7A),
    ("digit", 0x30, 0x39), ("punctuation", 0xA1, 0xBF), ("accented", 0xC0, 0x24F),
    ("accented", 0x300, 0x36F), ("greek", 0x370, 0x3FF), ("cyrillic", 0x400, 0x52F),
    ("hebrew", 0x590, 0x5FF), ("arabic", 0x600, 0x77F), ("indic", 0x900, 0xDFF),
    ("southeast", 0xE00, 0xFFF), ("southeast", 0x1000, 0x109F), ("hangul", 0x1100, 0x11FF),
    ("southeast", 0x1780, 0x17FF), ("accented", 0x1E00, 0x1EFF), ("greek", 0x1F00, 0x1FFF),
    ("punctuation", 0x2010, 0x206F), ("han", 0x3000, 0x303F), ("kana", 0x3040, 0x30FF),
    ("han", 0x3400, 0x9FFF), ("hangul", 0xAC00, 0xD7AF), ("han", 0xFF00, 0xFFEF),
    ("han", 0x20000, 0x3FFFF),
)  # fmt: skip
_COMMON = re.compile(
    r"\b(?:the|of|and|to|in|is|that|for|with|are|this|you|be|on|as|have|from|or|by|not|it|can|was|"
    r"an|at|which|will|your|their|has)\b",
    re.IGNORECASE,
)
MANY_TEXTS = 256  # of which every eighth tells the language
ENGLISH_SHARE = 0.30  # of an English text's words that are among the commonest


@dataclass(frozen=True, slots=True)
class Weights:
    """Tokens a character of each kind, and the log standard deviation of a whole text's tokens."""

    tokens: tuple[float, ...]
    log_sd: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class TextEstimate:
    """Tokens of each text, and how far all of them together may be off."""

    tokens: tuple[float, ...]
    log_sd: float
    shares: tuple[tuple[str, float], ...]  # of all tokens by kind of character, largest first


def vocabulary_of(size: int | None) -> Vocabulary | None:
    """The group of a vocabulary of `size` tokens; None where nothing was measured."""
    if size is None:
        return "any"
    if size < SMALLEST_VOCABULARY:
        return None
    return "small" if size < SMALL else "middle" if size < MIDDLE else "large"


@lru_cache(maxsize=4)
def weights_of(vocabulary: Vocabulary) -> Weights:
    """The measured weights of a group of vocabularies."""
    rows = {
        row["kind"]: row
        for row in read_rows(DATA / "tokens_per_character.csv")
        if row["vocabulary"] == vocabulary
    }
    return Weights(
        tuple(number(rows[kind], "tokens_per_character") for kind in KINDS),
        tuple(number(rows[kind], "log_sd") for kind in KINDS),
    )


def characters(texts: Sequence[str]) -> NDArray[np.float64]:
    """[texts, kinds] characters of each kind, and words; runs of line ends count once."""
    kinds = len(KINDS)
    table, new_line = _table(), KINDS.index("newline")
    lengths = np.array([len(text) for text in texts], np.int64)
    points = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
    kind = table[points].astype(np.int64)
    text = np.repeat(np.arange(len(texts)), lengths)
    inside_run = np.zeros(len(kind), np.bool_)
    inside_run[1:] = (kind[1:] == new_line) & (kind[:-1] == new_line) & (text[1:] == text[:-1])
    counted = (kind != _SPACE) & ~inside_run
    found = np.bincount(
        text[counted] * kinds + kind[counted], minlength=len(texts) * kinds
    ).reshape(len(texts), kinds)
    letter = np.isin(kind, [KINDS.index(name) for name in _LETTERS])
    starts = letter.copy()
    starts[1:] &= ~letter[:-1] | (text[1:] != text[:-1])
    found[:, KINDS.index("foreign_word")] = np.bincount(text[starts], minlength=len(texts))
    return _split_english(found.astype(np.float64), texts)


def _split_english(counts: NDArray[np.float64], texts: Sequence[str]) -> NDArray[np.float64]:
    """Latin letters and words as English by the share of common words in all texts together."""
    some = slice(None, None, 8 if len(texts) > MANY_TEXTS else 1)
    words = float(counts[some, KINDS.index("foreign_word")].sum())
    common = sum(len(_COMMON.findall(text)) for text in texts[some])
    english = min(1.0, common / max(words, 1.0) / ENGLISH_SHARE)
    for ours, theirs in (("english", "foreign"), ("english_word", "foreign_word")):
        all_of_them = counts[:, KINDS.index(theirs)].copy()
        counts[:, KINDS.index(ours)] = english * all_of_them
        counts[:, KINDS.index(theirs)] = (1.0 - english) * all_of_them
    return counts


@lru_cache(maxsize=1)
def _table() -> NDArray[np.uint8]:
    """The kind of every code point."""
    table = np.full(0x110000, KINDS.index("other"), np.uint8)
    for kind, first, last in _RANGES:
        table[first : last + 1] = KINDS.index(kind)
    table[[0x20, 0x09, 0xA0]] = _SPACE
    table[[0x0A, 0x0D]] = KINDS.index("newline")
    return table


def estimate_tokens(texts: Sequence[str], vocabulary: Vocabulary) -> TextEstimate:
    """Tokens of each text under a vocabulary of that group, and how wrong that may be.

    Errors of one group of characters are taken to go the same way in every text, and those of
    several groups too: spreads add, weighted by their share of the tokens.
    """
    weights = weights_of(vocabulary)
    parts = characters(texts) * np.array(weights.tokens)
    tokens = parts.sum(axis=1)
    total = max(float(tokens.sum()), 1e-9)
    shares = parts.sum(axis=0) / total
    order = sorted(range(len(KINDS)), key=lambda index: -float(shares[index]))
    return TextEstimate(
        tuple(float(value) for value in tokens),
        math.fsum(float(s) * sd for s, sd in zip(shares, weights.log_sd, strict=True)),
        tuple((KINDS[i], float(shares[i])) for i in order if shares[i] > 0),
    )
