"""Published row lengths: the table, names and aliases, and the tokenizer that is taken."""

from __future__ import annotations

import math
import re
from statistics import NormalDist

import pytest

from autotune.catalog.datasets import (
    SHORT_ROWS,
    published,
    published_datasets,
    published_names,
    row_counts,
)


def test_every_line_has_a_source_a_date_and_quantiles_in_order() -> None:
    for each in published_datasets():
        assert "@" in each.source, each.name
        assert each.as_of >= "2021"
        assert 0 < each.p50 <= each.p95 <= each.maximum
        assert each.mean is None or each.p50 / 2 < each.mean < each.p95
        assert 0.05 <= each.log_sd <= 0.5


def test_one_tokenizer_is_there_once_for_each_data_set() -> None:
    keys = [(each.name, each.tokenizer) for each in published_datasets()]
    assert len(keys) == len(set(keys))
    rows = {(each.name, each.rows) for each in published_datasets()}
    assert len(rows) == len({name for name, _ in rows}), "a data set has one number of rows"


def test_alpaca_is_as_its_published_histogram_says() -> None:
    """42,516 of 52,002 rows up to 184 tokens, 49,513 under 256, 50,766 up to 309."""
    from autotune.app.dataset.lengths import from_quantiles

    found = published("tatsu-lab/alpaca", 32_000)
    lengths = from_quantiles(found.p50, found.p95, found.maximum)
    for tokens, rows in ((184.5, 42_516), (256.0, 49_513), (309.0, 50_766)):
        share = sum(q <= tokens for q in lengths.quantiles) / len(lengths.quantiles)
        assert share == pytest.approx(rows / 52_002, abs=0.02)


def test_torchtune_s_cleaned_alpaca_is_the_hub_s_and_longer_than_the_first() -> None:
    """811 bytes a row of its file, 75 of them names of fields, at 4.2 a token, and the prompt."""
    from autotune.trainers.parsed import Keys, named_datasets

    stated = {"dataset": {"_component_": "torchtune.datasets.alpaca_cleaned_dataset"}}
    assert named_datasets(Keys(stated, "file")) == ("yahma/alpaca-cleaned",)
    cleaned, first = (published(n, 32_000) for n in ("yahma/alpaca-cleaned", "tatsu-lab/alpaca"))
    assert cleaned.mean == pytest.approx((811 - 75) / 4.2 + 41, rel=0.1)
    assert cleaned.p95 > 1.5 * first.p95


@pytest.mark.parametrize("name", ["gsm8k", "OpenAI/GSM8K", " openai/gsm8k "])
def test_a_data_set_is_found_by_alias_and_in_any_case(name: str) -> None:
    found = published(name, 128_256)
    assert (found.name, found.tokenizer) == ("openai/gsm8k", "Llama 3.1")


def test_the_tokenizer_nearest_in_size_is_taken() -> None:
    for vocabulary, tokenizer in ((32_768, "Llama 2"), (128_000, "Llama 3.1"), (152_064, "Qwen 3")):
        found = published("gsm8k", vocabulary)
        assert found.tokenizer == tokenizer


def test_several_names_are_known_only_where_each_is() -> None:
    assert published_names("identity, alpaca_en_demo") == ("identity", "alpaca_en_demo")
    assert published_names("identity,support_dialogues") == ()
    assert published_names("") == ()
    assert published("nobody/nothing", 32_000) is None
    assert published(SHORT_ROWS, 1) is not None


MOMENTS = re.compile(r"mean ([\d.]+)±([\d.]+)")


def curve(mean: float, deviation: float) -> tuple[float, float]:
    """Its p50 and p95 [tokens], where lengths are log-normal."""
    sigma = math.sqrt(math.log1p((deviation / mean) ** 2))
    half = mean * math.exp(-(sigma**2) / 2)
    return half, half * math.exp(sigma * NormalDist().inv_cdf(0.95))


def test_percentiles_of_a_mean_and_a_deviation_are_those_of_their_curve() -> None:
    """Where nothing more is published."""
    found = {each.name: (each, MOMENTS.search(each.source)) for each in published_datasets()}
    derived = [(each, match) for each, match in found.values() if match]
    assert len(derived) == 6
    for each, match in derived:
        mean, deviation = (float(text) for text in match.groups())
        assert each.mean == mean
        assert (each.p50, each.p95) == pytest.approx(curve(mean, deviation), abs=0.6)


@pytest.mark.parametrize(
    ("name", "mean", "deviation"),
    [("HuggingFaceH4/CodeAlpaca_20K", 99.3, 57.6), ("alpaca_en_demo", 167.6, 123.9)],
)
def test_that_curve_gives_the_percentiles_of_rows_that_were_counted(
    name: str, mean: float, deviation: float
) -> None:
    """modelscope/ms-swift @3602360 states both of CodeAlpaca and of Alpaca's answers by GPT-4."""
    counted = published(name, 151_936)
    assert curve(mean, deviation) == pytest.approx((counted.p50, counted.p95), rel=0.12)


def test_rows_of_both_tables_agree() -> None:
    """A training split has one number of rows."""
    lengths = {each.name: each.rows for each in published_datasets()}
    both = [each for each in row_counts() if each.name in lengths and each.split != "train_gen"]
    assert len(both) == 7
    for each in both:
        assert each.rows == lengths[each.name], each.name
