"""What no fit has seen: whole sources and devices, and intervals that others sized."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import builders as build
import numpy as np
import pytest

from autotune.catalog.devices import find_device
from autotune.cost.constants import Spreads
from autotune.cost.spread.uncertainty import (
    NEVER_MEASURED_BOARD,
    device_variances,
    program_variances,
)
from autotune.evidence.accuracy import Prediction
from autotune.evidence.cases import UNITS, device_of, program_of, source_of, timed_cases
from autotune.evidence.fit.programs import NewErrors, WholeErrors, left_out_whole
from autotune.evidence.fit.spreads import (
    NO_SPREADS,
    PRIOR,
    LeftOut,
    device_known,
    fit_spreads,
    leave_out,
    nested_sd,
)
from autotune.evidence.fit.time import fit, measured_steps
from autotune.evidence.record.table import SHIPPED_ROWS, read_cases
from autotune.evidence.validation.left_out import ACQUAINTANCE, bounds_of
from autotune.report.lists.validation import VALIDATE_REPORT, validation_payload

if TYPE_CHECKING:
    from autotune.evidence.validation.validate import Validation


NONE = NewErrors(WholeErrors((), np.zeros(0)), WholeErrors((), np.zeros(0), device_of))


@cache
def sources() -> LeftOut:
    """Every fourth step of the shipped rows, predicted without its source."""
    cases = timed_cases(c for c in read_cases(SHIPPED_ROWS).cases if c.teaches_time)
    steps = measured_steps(cases[::4])
    return leave_out(steps, source_of, fit(steps))


def moved(left_out: LeftOut, by: np.ndarray) -> LeftOut:
    """The same predictions, off by exp(by)."""
    return replace(left_out, predicted_s=left_out.steps.seconds * np.exp(by))


def test_a_source_that_is_left_out_teaches_its_own_prediction_nothing() -> None:
    own = sources()
    unit = ("QwenLM/Qwen",)
    rows = np.asarray([name == unit for name in own.units])
    assert rows.any()
    steps = replace(own.steps, seconds=np.where(rows, own.steps.seconds * 3.0, own.steps.seconds))
    again = leave_out(steps, source_of)
    assert again.predicted_s[rows] == pytest.approx(own.predicted_s[rows], rel=1e-3)
    assert not np.allclose(again.predicted_s[~rows], own.predicted_s[~rows], rtol=1e-3)


def test_the_interval_of_a_source_is_sized_on_the_others_alone() -> None:
    own = sources()
    rows = np.asarray([name == ("QwenLM/Qwen",) for name in own.units])
    wild = replace(own, predicted_s=np.where(rows, own.predicted_s * 5.0, own.predicted_s))
    before, after = nested_sd(own, own, NONE), nested_sd(wild, wild, NONE)
    assert after[rows] == pytest.approx(before[rows])
    assert (after[~rows] > before[~rows]).any()


def test_sources_that_differ_as_wholes_have_a_spread_between_them() -> None:
    own = sources()
    draw = np.random.default_rng(3)
    inside = draw.normal(0.0, 0.01, len(own.units))
    names = sorted(set(own.units))
    shift = dict(zip(names, draw.normal(0.0, 0.6, len(names)), strict=True))
    sure = np.asarray([item.name != "known" for item in fields(Spreads)], np.float64)
    alike = replace(own, features=own.features * sure)
    together = fit_spreads(moved(alike, inside))
    apart = fit_spreads(moved(alike, inside + np.asarray([shift[name] for name in own.units])))
    assert together.source < 0.06
    assert apart.source > 0.25
    assert apart.residual < 0.1 * apart.source


def test_a_fit_that_doubts_more_than_its_sources_differ_is_believed_less() -> None:
    own = sources()
    doubts = own.features.copy()
    doubts[:, [item.name for item in fields(Spreads)].index("known")] = 0.5
    quiet = moved(replace(own, features=doubts), 0.02 * np.sin(np.arange(len(own.units))))
    found = fit_spreads(quiet)
    assert found.known < 0.5
    assert fit_spreads(replace(quiet, features=own.features)).known > found.known


def test_what_is_assumed_of_a_device_that_nobody_measured_is_not_scaled_away() -> None:
    own = sources()
    nothing = replace(NO_SPREADS, known=0.0, device=PRIOR.device)
    unseen = ~device_known(own)
    assert unseen.any()
    assert (own.log_sd(nothing)[unseen] > 0.3).all()


def case_of(program: str, source: str = "s", as_of: str = "2025-01") -> Any:
    software = SimpleNamespace(stack=program, as_of=as_of)
    return SimpleNamespace(job=SimpleNamespace(software=software), group=(source, "m", "g", "t"))


def test_a_program_weighs_as_another_however_many_rows_and_releases_it_has() -> None:
    cases = [case_of("a"), *[case_of("b", as_of=m) for m in ("2024", "2024", "2024", "2025")]]
    found = WholeErrors(tuple(cases), np.asarray([0.3, 0.0, 0.1, 0.2, 0.5]))
    assert found.effects() == {("a",): pytest.approx(0.3), ("b",): pytest.approx(0.3)}
    alone = found.without(("b",), program_of)
    assert list(alone.effects()) == [("a",)]


def test_programs_that_are_slower_than_the_model_make_the_slow_side_wide() -> None:
    def sides(*effects: float) -> tuple[float, float]:
        cases = tuple(case_of(f"p{i}") for i in range(len(effects)))
        return WholeErrors(cases, np.asarray(effects)).sides()

    fast, slow = sides(0.1, 0.2, 0.3, 0.4)
    assert slow > 0.25 + fast
    even = sides(-0.2, 0.2)
    assert even[0] == pytest.approx(even[1])
    assert NONE.programs.sides()[0] == pytest.approx(NONE.programs.sides()[1])
    few, many = sides(-0.2, 0.2), sides(*[-0.2, 0.2] * 20)
    assert few[0] > many[0] > 0.19  # as sure as their number allows, no surer than they differ


def test_a_program_is_predicted_by_a_fit_that_has_none_of_it_and_every_release_counts() -> None:
    own = sources()
    cases = [c for c in read_cases(SHIPPED_ROWS).cases if c.step and c.teaches_time]
    peft = [case for case in cases if case.job.software.stack == "peft"]
    assert any(case.older for case in peft)
    found = left_out_whole(own.steps, own.steps.of(peft), fit(own.steps), program_of)
    assert list(found.effects()) == [("peft",)]
    assert found.effects()["peft",] > 0.2  # its loop is slower than the Trainer's
    assert len(found.cases) == len(peft)


def test_a_new_program_a_board_in_a_slot_and_several_gpus_reach_further_on_the_slow_side() -> None:
    own = sources()
    even = {"alone_fast": 0.2, "alone_slow": 0.2}
    found = replace(fit_spreads(own), program_fast=0.2, program_slow=0.5, **even)
    new, board = own.programs == 0, own.of_devices(found)[1] > 0
    several = np.asarray([case.offer.count > 1 for case in own.steps.cases])
    for kind in (new, board, several):
        assert kind.any()
        assert not kind.all()
    fast, slow = own.log_sd(found), own.slow_log_sd(found)
    further = new | board | several | (own.steps.unsaid.slower > own.steps.unsaid.faster)
    assert (slow[further] > fast[further]).all()
    assert not further.all()
    assert slow[~further] == pytest.approx(fast[~further])


def test_devices_left_out_whole_size_a_new_one_and_the_judged_one_sizes_nothing() -> None:
    own = sources()
    cards = ("rtx-4090", "l40")
    some = [case for case in own.steps.cases if case.offer.device.name in cards]
    found = left_out_whole(own.steps, own.steps.of(some), fit(own.steps), device_of)
    assert set(found.effects()) == {(name,) for name in cards}
    alike = NewErrors(NONE.programs, replace(found, slower=np.zeros(len(some))))
    wild = NewErrors(NONE.programs, replace(found, slower=np.full(len(some), 1.5)))
    assert alike.device_sd() < NONE.device_sd() < fit_spreads(own, wild).device
    rest = [each.without(("l40",), device_of) for each in (alike, wild)]
    assert all(set(each.devices.effects()) == {("rtx-4090",)} for each in rest)
    assert fit_spreads(own, alike).device == alike.device_sd()


def test_what_one_source_leaves_open_of_its_program_shrinks_with_further_sources() -> None:
    spreads = replace(NO_SPREADS, source=0.1, program_fast=0.2, program_slow=0.4)
    extra = [program_variances(n, spreads) for n in (0, 1, 3, 30)]
    assert extra[0][0] == pytest.approx(0.2**2 - 0.1**2)
    assert extra[0][1] == pytest.approx(0.4**2 - 0.2**2)
    assert extra[1][0] > extra[2][0] > extra[3][0] > 0.0
    assert all(slow == 0.0 for _, slow in extra[1:])
    tight = replace(spreads, program_fast=0.05, program_slow=0.05)
    assert program_variances(0, tight) == (0.0, 0.0)  # never surer than of a known program


def test_one_gpu_has_two_sides_of_its_own_sized_on_sources_of_one_gpu() -> None:
    own = sources()
    one = np.asarray([case.offer.count == 1 for case in own.steps.cases])
    slower = replace(own, predicted_s=np.where(one, own.predicted_s / 1.5, own.predicted_s))
    before, after = fit_spreads(own), fit_spreads(slower)
    assert after.alone_slow > before.alone_slow + 0.1
    assert after.alone_fast < before.alone_fast
    wide = replace(before, alone_fast=0.9, alone_slow=0.9)
    assert (own.log_sd(wide)[one] > own.log_sd(before)[one]).all()
    assert own.log_sd(wide)[~one] == pytest.approx(own.log_sd(before)[~one])


def test_what_a_device_leaves_open_shrinks_as_sources_come_and_does_not_fall_with_the_first() -> (
    None
):
    spreads = replace(NO_SPREADS, source=0.1, alone_fast=0.15, alone_slow=0.2, device=0.3)
    board, server = find_device("rtx-4090"), find_device("a100-sxm4-80gb")
    sides = [device_variances(board, n, spreads, 1) for n in (0, 1, 2, 30)]
    assert sides[0][0] == pytest.approx(0.3**2 - 0.15**2)  # beside what a source has
    assert sum(sides[0]) == pytest.approx(NEVER_MEASURED_BOARD**2)
    totals = [sum(side) for side in sides]
    assert totals == sorted(totals, reverse=True)
    assert totals[1] > 0.15**2  # as much as one source may be off
    assert totals[3] < 0.05**2
    assert device_variances(server, 1, spreads, 1)[1] == 0.0
    assert device_variances(server, 1, spreads, 8)[0] < device_variances(server, 1, spreads, 1)[0]


def test_a_device_of_one_source_alone_does_not_size_the_spread_between_sources() -> None:
    own = sources()
    known = device_known(own)
    assert known.any()
    assert not known.all()
    wild = replace(own, predicted_s=np.where(known, own.predicted_s, own.predicted_s * 9.0))
    assert fit_spreads(wild).source == pytest.approx(fit_spreads(own).source, abs=0.12)


def test_validate_leads_with_whole_sources_left_out(validation: Validation) -> None:
    payload = json.loads(json.dumps(validation_payload(validation)))
    assert list(payload["left_out"]) == ["source", "program", "device", "group"] == list(UNITS)
    for own in payload["left_out"].values():
        for figure in ("memory", "memory_allocated", "memory_reserved", "memory_driver", "time"):
            assert own[figure]["n"] > 0
            assert own[figure]["groups"] > 0
            assert own[figure]["median_ape"] <= own[figure]["p90_ape"]
            assert 0.0 <= own[figure]["coverage"] <= 1.0
        assert own["coverage"]["time"] == own["time"]["coverage"]
        assert own["oom"]["fit_rows"] > own["oom"]["false_ooms"]
    source, group = payload["left_out"]["source"], payload["left_out"]["group"]
    assert payload["time"]["median_ape"] == pytest.approx(source["time"]["median_ape"])
    assert source["units"] > 10
    assert source["logged"]["time"]["n"] > 0
    assert source["time"]["p90_ape"] > group["time"]["p90_ape"]
    text = VALIDATE_REPORT.text(payload)
    assert text.index("whole") < text.index("Out of memory")
    assert "usable with" in text


def test_intervals_hold_about_four_of_five_rows_of_sources_that_neither_fit_saw(
    validation: Validation,
) -> None:
    kinds = validation.left_out["source"].acquainted["time"]
    assert set(kinds) == set(ACQUAINTANCE.values())
    known = kinds["known"]
    assert known.sources > 5
    assert 0.72 <= (known.share or 0.0) <= 0.93, "one row of a small source is up to 4 points"
    assert 0.72 <= (known.share_of_sources or 0.0) <= 0.93
    for own in kinds.values():
        assert (own.share or 0.0) > 0.7


def test_a_program_left_out_whole_has_no_interval_of_a_known_one(validation: Validation) -> None:
    kinds = validation.left_out["program"].acquainted["time"]
    assert not {"known", "new device"} & set(kinds)
    assert kinds["new program"].sources + kinds["both new"].sources > 10


def test_what_is_only_for_orientation_counts_for_no_headline(validation: Validation) -> None:
    cases = [case for case in read_cases(SHIPPED_ROWS).cases if case.step]
    exact = [case for case in cases if case.teaches_time]
    assert len(exact) < len(cases)
    assert validation.time.n == len(timed_cases(exact))
    assert validation.orientation["time"].n > 0


def test_a_reading_with_a_cap_on_lengths_is_held_against_the_bound_alone() -> None:
    case = next(c for c in read_cases(SHIPPED_ROWS).cases if c.step)
    seen = case.step
    bounded = replace(build.observed(case, peaks={}), bounded=(seen,))
    found = Prediction(step_s=seen.value * 2.0, step_log_sd=0.1)
    short = Prediction(step_s=seen.value / 2.0, step_log_sd=0.1)
    assert bounds_of([bounded], {case.id: found})["time"].kept == 1
    assert bounds_of([bounded], {case.id: short})["time"].kept == 0


def test_a_peak_of_rows_with_a_known_mean_and_an_unknown_longest_is_no_less_than_at_the_mean() -> (
    None
):
    case = next(c for c in read_cases(SHIPPED_ROWS).cases if c.bounded and not c.capped)
    seen = replace(case.bounded[0], kind="allocated", value=40e9)
    own = replace(case, bounded=(seen,))
    memory = {"allocated": 30e9, "reserved": 32e9, "driver": 33e9, "total": 33e9}
    below = Prediction(step_s=1.0, step_log_sd=0.1, memory=memory, memory_log_sd=0.01)
    above = replace(below, memory={name: 2.0 * value for name, value in memory.items()})
    assert bounds_of([own], {case.id: below})["memory"].kept == 1
    assert bounds_of([own], {case.id: above})["memory"].kept == 0
