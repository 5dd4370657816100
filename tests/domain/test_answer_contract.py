"""An answer is its JSON: one declaration writes it, checks it and loads it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from autotune.domain.answer.contract import ABSENT, Answer, copied, plain, read
from autotune.domain.answer.recommendation import NoiseSeen, SearchRecord
from autotune.domain.answer.waterfall import Competing, MeasuredGap, WaterfallStep
from autotune.domain.outcome import Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Told(Answer):
    """An answer with one field of each kind."""

    from_: str
    hours: Spread
    parts: dict[str, float]
    steps: tuple[Spread, ...] = ()
    note: str | None = field(default=None, metadata=ABSENT)
    price_usd: float | None = None


TOLD = Told(from_="here", hours=Spread(1.0, 2.0, 4.0), parts={"load": 1.5})


def test_the_keys_are_the_fields_in_their_order_without_what_says_nothing() -> None:
    assert list(plain(TOLD)) == ["from", "hours", "parts", "steps", "price_usd"]
    assert list(plain(replace(TOLD, note="a word"))) == [
        "from", "hours", "parts", "steps", "note", "price_usd",
    ]  # fmt: skip


def test_what_was_written_is_read_back_as_it_was() -> None:
    told = replace(TOLD, note="a word", steps=(Spread(1.0, 1.0, 1.0),), price_usd=3.0)
    assert read(Told, json.loads(json.dumps(plain(told)))) == told


def test_an_answer_is_read_by_the_names_of_its_json_as_well() -> None:
    assert TOLD["from"] == TOLD.from_ == "here"
    assert TOLD["hours"]["p90"] == 4.0
    assert "note" not in TOLD
    assert TOLD.get("note", "none") == "none"
    with pytest.raises(KeyError):
        TOLD["from_"]


def test_a_whole_number_where_a_float_is_declared_is_written_as_one() -> None:
    told = replace(TOLD, price_usd=3, parts={"load": 2}, hours=Spread(1, 2, np.float64(3)))
    assert json.dumps(plain(told)) == (
        '{"from": "here", "hours": {"p10": 1.0, "p50": 2.0, "p90": 3.0}, "parts": {"load": 2.0}, '
        '"steps": [], "price_usd": 3.0}'
    )


def test_numbers_of_arrays_become_plain_numbers() -> None:
    written = plain({"n": np.int64(3), "yes": np.bool_(True), "x": np.float32(0.5)})
    assert [type(value) for value in written.values()] == [int, bool, float]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), np.float64("-inf")])
def test_a_number_that_is_not_finite_is_refused_with_its_place(bad: float) -> None:
    with pytest.raises(ValueError, match=r"steps\[1\]\.p50 is"):
        plain(replace(TOLD, steps=(Spread(1.0, 1.0, 1.0), Spread(1.0, bad, 1.0))))


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"hours": {"p10": 1.0, "p90": 4.0}}, r"hours\.p50: field required"),
        ({"hours": {"p10": 1.0, "p50": "2", "p90": 4.0}}, r"hours\.p50: .*valid number"),
        ({"parts": {"load": None}}, r"parts\.load: .*valid number"),
        ({"steps": [{"p10": 1, "p50": 1, "p90": True}]}, r"steps\[0\]\.p90: .*valid number"),
        ({"from": 3}, "from: .*valid string"),
        ({"hours": None}, "hours: "),
    ],
)
def test_what_is_damaged_is_refused_with_the_key_and_what_must_stand_there(
    change: dict[str, Any], place: str
) -> None:
    with pytest.raises(ValueError, match=place):
        read(Told, {**plain(TOLD), **change})


def test_what_follows_from_other_fields_is_worked_out_when_read() -> None:
    reading = Competing("batch", "text", 1.0, 1.0, 0.3, "likely", None, None)
    gap = MeasuredGap("id", 2.0, (reading, replace(reading, name="other", verdict="impossible")))
    assert plain(gap)["open"] == ["batch"]
    assert read(MeasuredGap, {**plain(gap), "open": ["other"]}) == gap


def test_a_change_is_written_from_and_to() -> None:
    step = plain(WaterfallStep("compile", "off", "default", -10.0, -1.0))
    assert (step["from"], step["to"], step["yours"]) == ("off", "default", False)


def test_a_search_without_a_measurement_says_nothing_of_noise() -> None:
    search = SearchRecord("model", "calibrated", "formula", 10, 10, 0, 0, 0.0, 0.5, "priced")
    assert not {"noise", "probe_runs"} & set(search)
    noise = NoiseSeen(0.1, 4.0, 3, 0, 0, 0.01, 0.0, cannot_tell=False, why="")
    assert {"noise", "probe_runs"} <= set(replace(search, probe_runs=3, noise=noise))


@dataclass(frozen=True, slots=True)
class Copied(Answer):
    name: str
    size: float
    short_of: str | None = None


@dataclass(frozen=True, slots=True)
class Found:
    name: str = "inside"
    size: float = 2.0
    unrelated: int = 7


def test_an_answer_takes_what_its_sources_hold_and_what_is_said_comes_first() -> None:
    assert copied(Copied, Found()) == Copied("inside", 2.0)
    assert copied(Copied, Found("first"), Found("second", 3.0), size=1.0) == Copied("first", 1.0)


def test_a_field_that_nobody_says_is_an_error() -> None:
    with pytest.raises(TypeError, match="size"):
        copied(Copied, name="alone")
