"""Tokens of a text without a tokenizer: near what real ones count, and honest about the rest."""

from __future__ import annotations

import math

import pytest

from autotune.catalog.text_tokens import (
    BYTES_PER_TOKEN,
    KINDS,
    characters,
    estimate_tokens,
    vocabulary_of,
    weights_of,
)

Z90 = 1.2815515655446004
# Texts written for this test, and what the tokenizers of Llama 2, Llama 3.1, Qwen 3, DeepSeek V3,
# Gemma 3 and GPT-4o count for them.
ENGLISH = (
    "The harbour was quiet when the last ferry came in. Nobody had seen the keeper since the "
    "evening before, and the lamp that he was said never to leave alone had gone out at three. "
    "We asked the girl at the kiosk whether she knew of a boat that could be hired for an hour."
)
GERMAN = (
    "Der Hafen war still, als die letzte Fähre anlegte. Niemand hatte den Wärter seit dem Vorabend "
    "gesehen, und die Lampe, die er angeblich nie allein ließ, war um drei Uhr erloschen."
)
CHINESE = (
    "最后一班渡轮靠岸时，港口一片寂静。"  # noqa: RUF001 - Chinese has its own comma
    "从前一天晚上起就没有人见过守灯人，那盏灯在三点钟熄灭了。"  # noqa: RUF001
)
RUSSIAN = (
    "Когда пришёл последний паром, в гавани было тихо. Весь вечер никто не видел "
    "смотрителя, и лампа, которую он никогда не оставлял, погасла в три часа."
)
PYTHON = (
    "def longest(rows, limit=10):\n    found = {}\n    for index, row in enumerate(rows):\n"
    "        size = len(row['text'])\n        if size > limit and index not in found:\n"
    "            found[index] = min(size, 2048)\n    return sorted(found.items())\n"
)
COUNTED = {
    ENGLISH: (64, 60, 60, 61, 59, 59),
    GERMAN: (60, 56, 56, 55, 47, 45),
    CHINESE: (58, 45, 33, 32, 37, 42),
    RUSSIAN: (61, 49, 53, 51, 39, 42),
    PYTHON: (76, 58, 61, 61, 75, 58),
}
GROUPS = ("small", "middle", "middle", "middle", "large", "large")


@pytest.mark.parametrize(
    "text", list(COUNTED), ids=["english", "german", "chinese", "russian", "python"]
)
@pytest.mark.parametrize("index", range(6))
def test_the_interval_of_the_estimate_holds_what_real_tokenizers_count(
    text: str, index: int
) -> None:
    for vocabulary in (GROUPS[index], "any"):
        found = estimate_tokens([text * 20], vocabulary)  # type: ignore[arg-type]
        off = abs(math.log(found.tokens[0] / (20 * COUNTED[text][index])))
        assert off <= Z90 * found.log_sd + 0.02, (vocabulary, found.tokens[0] / 20)


def test_english_is_surer_than_a_language_that_vocabularies_hardly_know() -> None:
    assert estimate_tokens([ENGLISH], "middle").log_sd < 0.2
    assert estimate_tokens(["ອັກສອນລາວ ແມ່ນ ຕົວຂຽນ"], "middle").log_sd > 0.8
    assert estimate_tokens([ENGLISH], "any").log_sd >= estimate_tokens([ENGLISH], "middle").log_sd


def test_texts_are_counted_apart_and_sum_to_the_whole() -> None:
    together = estimate_tokens([ENGLISH, GERMAN, "", CHINESE], "large")
    assert together.tokens[2] == 0
    assert len(together.tokens) == 4
    rows = characters([ENGLISH, GERMAN, "", CHINESE])
    assert rows.sum() == pytest.approx(characters([f"{ENGLISH} {GERMAN} {CHINESE}"]).sum())


def test_spaces_count_with_their_word_and_line_ends_once() -> None:
    found = characters(["a  b\n\n\nc", "\n"])
    assert found[0][KINDS.index("newline")] == 1
    assert found[1][KINDS.index("newline")] == 1
    assert found[0].sum() == 3 + 3 + 1  # letters, words, one line end


def test_vocabularies_that_nobody_measured_are_not_guessed_at() -> None:
    assert vocabulary_of(259) is None
    sizes = (32_000, 50_257, 128_256, 152_064, 256_000, None)
    assert [vocabulary_of(size) for size in sizes] == [
        "small", "small", "middle", "middle", "large", "any",
    ]  # fmt: skip


@pytest.mark.parametrize("vocabulary", ["small", "middle", "large", "any"])
def test_every_kind_of_character_has_a_measured_weight_and_a_spread(vocabulary: str) -> None:
    weights = weights_of(vocabulary)  # type: ignore[arg-type]
    assert len(weights.tokens) == len(weights.log_sd) == len(KINDS)
    assert all(0 <= weight < 3 for weight in weights.tokens)
    assert all(0.1 <= sd < 2.5 for sd in weights.log_sd)


def test_half_a_surrogate_pair_is_counted_and_breaks_nothing() -> None:
    assert estimate_tokens(["\ud800 x"], "middle").tokens[0] > 0


def test_bytes_a_token_agree_with_the_table() -> None:
    text = (ENGLISH + "\n") * 10
    found = len(text.encode()) / estimate_tokens([text], "middle").tokens[0]
    assert found == pytest.approx(BYTES_PER_TOKEN, rel=0.1)
