"""Memory and its verdict on sources that the fit has not seen, against `thresholds.toml`."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from autotune.app.job.defaults import VRAM_HEADROOM
from bench.headroom import chosen, curve, judged

if TYPE_CHECKING:
    from autotune.evidence.validation.validate import Validation


@cache
def limits() -> dict[str, Any]:
    text = Path(__file__).with_name("thresholds.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)["memory"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["all", "allocated"])
def test_enough_peaks_are_compared(kind: str, validation: Validation) -> None:
    own = validation.memory if kind == "all" else validation.memory_allocated
    assert own.n >= limits()[kind]["rows"]


def test_few_failed_runs_are_called_a_fit_and_few_finished_ones_are_refused(
    validation: Validation,
) -> None:
    oom, wanted = validation.oom, limits()["verdict"]
    assert oom.oom_rows >= wanted["failed"]
    assert oom.fit_rows >= wanted["finished"]
    assert oom.false_fits <= wanted["false_fits"] * oom.oom_rows
    assert oom.false_ooms <= wanted["false_ooms"] * oom.fit_rows
    assert oom.false_ooms + oom.at_risk_fits <= wanted["refused"] * oom.fit_rows
    assert oom.false_ooms + oom.at_risk_fits + oom.false_fits == len(oom.wrong)


def test_shares_hold_with_every_group_weighted_equally(validation: Validation) -> None:
    oom, wanted = validation.oom, limits()["verdict"]
    assert oom.false_fit_share is not None
    assert oom.false_fit_share <= wanted["false_fits"]
    assert oom.false_oom_share is not None
    assert oom.at_risk_share is not None
    assert oom.false_oom_share + oom.at_risk_share <= wanted["refused"]


def test_intervals_hold_four_of_five_readings_and_no_kind_far_fewer(
    validation: Validation,
) -> None:
    wanted = limits()["coverage"]
    enough = {k: c for k, c in validation.memory_coverage.items() if c.n >= wanted["rows"]}
    assert len(enough) >= wanted["kinds"]
    for kind, own in enough.items():
        assert wanted["least"] <= own.share, kind
    everything = validation.coverage["memory_p10_p90"]
    assert everything is not None
    assert wanted["all_least"] <= everything <= wanted["all_most"]
    unseen = validation.left_out["source"]
    for name, figure in (("reserved", unseen.memory_reserved), ("driver", unseen.memory_driver)):
        assert figure.coverage is not None
        assert wanted[name]["least"] <= figure.coverage <= wanted[name]["most"], name


@pytest.mark.usefixtures("fitted_once")
def test_the_default_headroom_is_what_the_failed_runs_ask_for() -> None:
    rows = curve(judged())
    expected = [row["expected_by_bytes"] for row in rows]
    assert expected == sorted(expected, reverse=True)
    assert pytest.approx(chosen(rows), abs=0.011) == VRAM_HEADROOM
