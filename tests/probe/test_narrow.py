"""A configuration at the edge of memory is run again, and how often it fitted is what is known."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from autotune.probe.record import NARROW, is_narrow, until_sure

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.probe.record import ProbeRecord


@pytest.fixture
def good(run_fake: Callable[..., ProbeRecord]) -> ProbeRecord:
    return run_fake("good")


def using(record: ProbeRecord, share: float) -> ProbeRecord:
    memory: dict[str, Any] = record.result["memory"]
    held = {**memory, "driver_bytes": share * memory["total_bytes"]}
    return replace(record, result={**record.result, "memory": held})


def test_a_run_that_nearly_filled_the_device_is_narrow_and_others_are_not(
    good: ProbeRecord,
) -> None:
    assert is_narrow(using(good, 1 - NARROW / 2))
    assert not is_narrow(using(good, 1 - 2 * NARROW))
    assert not is_narrow(replace(using(good, 1.0), status="crash"))


def test_a_miss_is_narrow_by_what_was_missing_and_not_by_what_was_in_use(
    run_fake: Callable[..., ProbeRecord],
) -> None:
    record = run_fake("oom-narrow")
    assert record.status == "oom_device"
    assert is_narrow(record)
    assert not is_narrow(replace(record, message=record.message.replace("600.00 MiB", "6.00 GiB")))
    assert not is_narrow(replace(record, message="out of memory")), "it does not say"


def test_repeats_are_handed_out_one_by_one_until_two_of_a_kind_are_there(
    good: ProbeRecord,
) -> None:
    narrow = using(good, 0.99)
    answers = iter([replace(narrow, status="oom_device"), narrow, narrow])
    more = list(until_sure(narrow, lambda: next(answers)))
    assert [record.status for record in more] == ["oom_device", "ok"]


def test_a_clear_fit_is_not_repeated_and_a_broken_repeat_ends_it(good: ProbeRecord) -> None:
    assert list(until_sure(using(good, 0.5), lambda: good)) == []
    broken = replace(good, status="interrupted")
    assert [r.status for r in until_sure(using(good, 0.99), lambda: broken)] == ["interrupted"]
    assert broken.fits is None
