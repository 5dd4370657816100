"""Length statistics: stated ones come back, counted ones are exact, unknown ones say so."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from dataclasses import replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from builders import config, count_rows, lora, priced_job, sold
from hypothesis import given
from hypothesis import strategies as st

from autotune.app.dataset.lengths import (
    Histogram,
    all_at_maximum,
    from_counts,
    from_mean,
    from_published,
    from_quantiles,
    read_histogram,
)
from autotune.app.dataset.report import dataset_histogram, write_histogram
from autotune.catalog.datasets import published
from autotune.catalog.models.models import find_model
from autotune.catalog.tables import DATA, read_rows
from autotune.cost.row_lengths import ASSUMED_SPREAD, OTHER_SPREADS
from autotune.domain.errors import InputError
from autotune.pricing import Pricing

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.domain.job import Lengths


def at(lengths: Lengths, probability: float) -> float:
    grid = np.linspace(0.0, 1.0, len(lengths.quantiles))
    return float(np.interp(probability, grid, lengths.quantiles))


def integral(lengths: Lengths) -> float:
    values = np.array(lengths.quantiles)
    return float(np.trapezoid(values, np.linspace(0.0, 1.0, len(values))))


def jsonl(folder: Path, *rows: object) -> Path:
    path = folder / "rows.jsonl"
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_unknown_lengths_are_an_upper_bound_and_marked_unknown() -> None:
    lengths = all_at_maximum(512)
    assert (set(lengths.quantiles), lengths.mean, lengths.known) == ({512.0}, 512.0, False)


def test_stated_quantiles_come_back() -> None:
    lengths = from_quantiles(220, 700, 1024)
    assert len(lengths.quantiles) == 257
    assert at(lengths, 0.5) == pytest.approx(220)
    assert at(lengths, 0.95) == pytest.approx(700, rel=0.01)
    assert (lengths.quantiles[-1], lengths.maximum, lengths.known) == (1024, 1024, True)


@pytest.mark.parametrize("mean", [950, 700, 525])
def test_rows_that_are_cut_at_their_median_may_be_far_shorter(mean: float) -> None:
    lengths = from_quantiles(1023, 1024, 1024, mean)
    assert lengths.mean == pytest.approx(mean)
    assert at(lengths, 0.5) == 1023
    assert at(lengths, 0.95) == pytest.approx(1024, rel=1e-3)
    assert at(lengths, 0.01) < 0.9 * mean
    with pytest.raises(InputError, match="must lie between 52"):
        from_quantiles(1023, 1024, 1024, 300)


def test_a_constant_length_stays_constant() -> None:
    assert set(from_quantiles(128, 128, 128).quantiles) == {128.0}


def test_the_tail_of_a_log_normal_is_that_of_its_quantile_function() -> None:
    # p05 of a log-normal is p50^2 / p95, by symmetry of the normal.
    lengths = from_quantiles(200, 800, 100_000)
    assert at(lengths, 0.05) == pytest.approx(200**2 / 800, rel=0.02)


@given(
    steps=st.tuples(st.floats(1, 1e4), st.floats(1, 20), st.floats(1, 50), st.floats(0.02, 0.98))
)
def test_quantiles_rise_and_their_integral_is_the_mean(
    steps: tuple[float, float, float, float],
) -> None:
    p50, times, more, share = steps
    p95 = p50 * times
    maximum = int(p95 * more) + 1
    lengths = from_quantiles(p50, p95, maximum)
    assert all(np.diff(lengths.quantiles) >= 0)
    assert lengths.quantiles[0] >= min(1.0, p50)
    assert lengths.quantiles[-1] == maximum
    assert integral(lengths) == pytest.approx(lengths.mean)
    mean = lengths.mean * (0.9 + 0.2 * share)
    try:
        bent = from_quantiles(p50, p95, maximum, mean)
    except InputError as error:
        assert "must lie between" in error.message  # noqa: PT017 - either is right
    else:
        assert bent.mean == pytest.approx(mean, rel=1e-6)
        assert at(bent, 0.5) == pytest.approx(at(lengths, 0.5))
        assert all(np.diff(bent.quantiles) >= 0)


@pytest.mark.parametrize("mean", [6664.9, 6665.9, 6660.0])
def test_a_mean_just_below_equal_rows_is_kept(mean: float) -> None:
    assert from_quantiles(6666.0, 6666.0, 6666, mean).mean == pytest.approx(mean, rel=1e-6)


@pytest.mark.parametrize("values", [(0, 5, 9), (6, 5, 9), (5, 10, 9), (-1, 5, 9)])
def test_quantiles_out_of_order_are_refused(values: tuple[float, float, int]) -> None:
    with pytest.raises(InputError, match="out of order"):
        from_quantiles(*values)


@given(
    counts=st.dictionaries(st.integers(1, 5000), st.integers(1, 1000), min_size=1, max_size=30),
    limit=st.integers(1, 6000),
)
def test_counted_lengths_are_exact_and_cut_at_the_limit(counts: dict[int, int], limit: int) -> None:
    lengths = from_counts(Histogram(counts), limit)
    rows = np.repeat(list(counts), list(counts.values()))
    cut = np.minimum(rows, limit)
    assert lengths.mean == pytest.approx(cut.mean())
    assert lengths.maximum == cut.max()
    assert lengths.truncated_rows == int((rows > limit).sum())
    assert lengths.quantiles[0] == cut.min()
    assert lengths.quantiles[-1] == cut.max()
    assert all(np.diff(lengths.quantiles) >= 0)
    # The table is a straight line between 257 points of a staircase.
    assert integral(lengths) == pytest.approx(cut.mean(), abs=0.01 * (cut.max() - cut.min()) + 1e-6
                                              + (cut.max() - cut.min()) / len(rows))  # fmt: skip


@pytest.mark.parametrize(
    ("row", "tokens"),
    [
        ({"text": "abc\u00e9"}, 5),
        ({"prompt": "ab", "completion": "cd"}, 4),
        ({"instruction": "do", "input": "", "output": "ok"}, 5),
        ({"instruction": "do", "input": "x", "output": "ok"}, 7),
        ({"messages": [{"role": "user", "content": "hi"}]}, 4 + 1 + 2 + 2),
        ({"conversations": [{"from": "gpt", "value": "hi"}]}, 9 + 1 + 2 + 2),
        ({"prompt": [{"role": "a", "content": "b"}], "completion": []}, 1 + 1 + 1 + 2),
        ({"messages": [{"role": "u", "content": [{"type": "text", "text": "hi"}]}]}, 1 + 1 + 2 + 2),
        ({"input_ids": [1, 2, 3], "text": "longer text"}, 3),
    ],
)
def test_every_form_of_row_is_counted(tmp_path: Path, row: dict[str, Any], tokens: int) -> None:
    assert dict(count_rows(jsonl(tmp_path, row)).counts) == {tokens: 1}


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ("{not json", "line 7 is not JSON: Expecting property name"),
        ('{"text": "a\tb"}', "line 7 is not JSON: Invalid control character at character 12"),
        ("", "line 7 is empty"),
        ("[1, 2]", "line 7 is not a JSON object"),
        ({"txt": "a"}, "line 7 has the columns 'txt'"),
        ({"prompt": "a"}, "line 7 has the columns 'prompt'"),
        ({"text": ""}, "line 7: the row has no tokens"),
        ({"text": 5}, "line 7: the row's fields must be text"),
        ({"text": None}, "line 7: the row's fields must be text"),
        ({"input_ids": "abc"}, "line 7: input_ids must be a list"),
        ({"input_ids": []}, "line 7: the row has no tokens"),
        ({"messages": "hi"}, "line 7: messages must be a list"),
        ({"messages": [{"role": "user", "content": 3}]}, "line 7: the row's fields must be text"),
        ('{"text": "\\ud800"}', "line 7: the text holds half of a surrogate pair"),
        ("[" * 20_000, "line 7 is not JSON"),
    ],
)
def test_a_bad_row_is_named_by_its_line(tmp_path: Path, bad: object, says: str) -> None:
    good = [{"text": "good"}] * 6
    with pytest.raises(InputError) as caught:
        count_rows(jsonl(tmp_path, *good, bad, {"text": "more"}))
    assert says in caught.value.message
    assert "rows.jsonl" in caught.value.message


def test_files_that_hold_no_rows_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n\n")
    (tmp_path / "latin.jsonl").write_bytes(b'{"text": "caf\xe9"}\n')
    cases = {
        "empty.jsonl": "holds no rows",
        "latin.jsonl": "line 1 is not UTF-8",
        "absent.jsonl": "cannot be read: No such file",
    }
    for name, says in cases.items():
        with pytest.raises(InputError) as caught:
            count_rows(tmp_path / name)
        assert says in caught.value.message


def test_rows_of_a_large_file_are_counted_in_pieces(tmp_path: Path) -> None:
    rows = [{"text": "x" * (1 + i % 7)} for i in range(5000)]
    found = count_rows(jsonl(tmp_path, *rows))
    assert found.rows == 5000
    assert found.counts[1] == len(range(0, 5000, 7))
    assert found.row_bytes == pytest.approx((tmp_path / "rows.jsonl").stat().st_size / 5000)


def test_a_report_counts_padding_packing_and_truncation(tmp_path: Path) -> None:
    rows = [{"text": "x" * 10}] * 50 + [{"text": "x" * 90}] * 49 + [{"text": "x" * 300}]
    report = dataset_histogram(jsonl(tmp_path, *rows), "bytes", 100, batch_size=2)
    assert (report.rows, report.truncated_rows, report.truncated_tokens) == (100, 1, 200)
    assert (report.longest_row, report.maximum) == (300, 100)
    assert report.tokens == 50 * 10 + 49 * 90 + 100
    assert report.mean == pytest.approx(report.tokens / 100)
    # Of two random rows the longer has 10 with 1/4, 90 with 0.99^2 - 1/4, 100 with the rest.
    longest = 10 * 0.25 + 90 * (0.99**2 - 0.25) + 100 * (1 - 0.99**2)
    assert report.padding_waste == pytest.approx(1 - report.mean / longest)
    assert report.padding_waste_max_length == pytest.approx(1 - report.mean / 100)
    packed = 51 * 100  # 5,010 tokens in sequences of 100
    assert report.packing_gain == pytest.approx(1 - packed / (100 * longest))
    grouped = 25 * 2 * 10 + 24 * 2 * 90 + 2 * 100
    assert report.grouping_gain == pytest.approx(1 - grouped / (100 * longest))


def test_equal_rows_waste_nothing(tmp_path: Path) -> None:
    report = dataset_histogram(jsonl(tmp_path, *[{"text": "abcd"}] * 10), "bytes")
    assert (report.padding_waste, report.padding_waste_max_length) == (0.0, 0.0)
    assert (report.packing_gain, report.grouping_gain) == (0.0, 0.0)
    assert (report.p50, report.p95, report.maximum, report.max_length) == (4, 4, 4, 4)


def test_a_written_histogram_reads_back(tmp_path: Path) -> None:
    rows = [{"text": "x" * (1 + i % 40)} for i in range(200)]
    report = dataset_histogram(jsonl(tmp_path, *rows), "bytes", 20)
    path = tmp_path / "lengths.json"
    write_histogram(report, path)
    content = json.loads(path.read_text())
    assert (content["schema_version"], content["kind"]) == (1, "autotune.lengths")
    again = read_histogram(path)
    assert dict(again.counts) == dict(report.histogram.counts)
    assert again.row_bytes == report.histogram.row_bytes
    assert from_counts(again, 20) == report.lengths


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "not JSON"),
        ("[]", '"kind"'),
        ({"kind": "autotune.lengths", "schema_version": 9, "lengths": [1], "counts": [1]}, "sche"),
        ({"kind": "autotune.lengths", "schema_version": 1, "lengths": [], "counts": []}, "least"),
        ({"kind": "autotune.lengths", "schema_version": 1, "lengths": [1], "counts": [0]}, "cou"),
        ({"kind": "autotune.lengths", "schema_version": 1, "lengths": [-1], "counts": [1]}, "len"),
        ({"kind": "autotune.lengths", "schema_version": 1, "lengths": [1, 1], "counts": [1, 1]},
         "once"),
        ({"kind": "autotune.lengths", "schema_version": 1, "lengths": [1, 2], "counts": [1]},
         "same number"),
        ({"kind": "autotune.lengths", "schema_version": 1, "lengths": ["1"], "counts": [1]},
         "whole"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_histogram_is_refused(tmp_path: Path, content: object, says: str) -> None:
    path = tmp_path / "h.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(InputError) as caught:
        read_histogram(path)
    assert says in caught.value.message


def test_a_tokenizer_file_counts_its_tokens_without_truncation(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "?": 2}, "?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.enable_truncation(2)
    words.enable_padding(length=9)
    words.save(str(tmp_path / "tokenizer.json"))
    path = jsonl(tmp_path, {"text": "a b a"}, {"text": "a"}, {"input_ids": [1, 2]})
    for name in (".", "tokenizer.json"):
        found = count_rows(path, name, tmp_path)
        assert dict(found.counts) == {3: 1, 1: 1, 2: 1}


def test_a_tokenizer_that_is_none_is_refused(tmp_path: Path) -> None:
    path = jsonl(tmp_path, {"text": "a"})
    (tmp_path / "bad.json").write_text("{}")
    for name, says in (("absent", "neither `bytes` nor"), ("bad.json", "no tokenizer")):
        with pytest.raises(InputError, match=says):
            count_rows(path, name, tmp_path)


def test_without_the_package_the_hint_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError) as caught:
        count_rows(jsonl(tmp_path, {"text": "a"}), "tokenizer.json", tmp_path)
    assert caught.value.hint is not None
    assert "tokenizers" in caught.value.hint


@given(st.floats(1.0, 5000.0), st.integers(1, 20_000))
def test_a_mean_alone_is_kept_exactly_and_no_row_is_longer(mean: float, longest: int) -> None:
    lengths = from_mean(mean, longest)
    assert lengths.known
    assert lengths.mean == pytest.approx(min(mean, longest), rel=1e-3)
    assert lengths.maximum == longest
    assert all(a <= b for a, b in itertools.pairwise(lengths.quantiles))
    assert lengths.quantiles[-1] <= longest


def test_assumed_spreads_are_those_of_the_published_sets() -> None:
    sets: dict[str, list[float]] = {}
    for row in read_rows(DATA / "datasets.csv"):
        log_sd = math.log(float(row["p95"]) / float(row["p50"])) / NormalDist().inv_cdf(0.95)
        sets.setdefault(row["name"], []).append(math.sqrt(math.expm1(log_sd**2)))
    spreads = [statistics.mean(each) for each in sets.values()]
    low, middle, high = np.quantile(spreads, [1 / 6, 1 / 2, 5 / 6])
    assert pytest.approx(middle, rel=0.05) == ASSUMED_SPREAD
    assert pytest.approx((low, high), rel=0.1) == OTHER_SPREADS


@pytest.mark.parametrize("micro", [1, 4, 16])
@pytest.mark.parametrize("name", ["tatsu-lab/alpaca", "openai/gsm8k", "glaive_toolcall_en_demo"])
def test_a_mean_alone_prices_a_published_set_nearly_as_all_of_its_lengths(
    name: str, micro: int
) -> None:
    own = find_model("Qwen/Qwen2.5-7B")
    known = published(name, own.vocab_size)
    assert known is not None
    whole = replace(from_published((known,), 2048), log_sd=0.0, maximum=2048)
    where = sold("a100")
    asked = replace(priced_job(own, lora(own), 2048, offers=(where,)), lengths=whole)
    pick = config(micro, activation_checkpointing="full")
    exact = Pricing(asked).one(where, pick).duration_s
    meant = replace(asked, lengths=from_mean(whole.mean, 2048))
    about = Pricing(meant).one(where, pick).duration_s
    assert about.p50 == pytest.approx(exact.p50, rel=0.25)
    assert about.p10 <= exact.p50 <= about.p90
    stated = replace(meant, lengths=replace(meant.lengths, basis="stated"))
    sure = Pricing(stated).one(where, pick).duration_s
    if micro == 1:  # nothing is padded
        assert about.p50 == pytest.approx(exact.p50, rel=0.02)
    elif micro == 16:  # and what is padded is not known
        assert about.p90 / about.p10 > sure.p90 / sure.p10
