from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from autotune.domain.units import GIB, HOUR_S
from autotune.report.layout.bars import memory_bars, rounded_parts, time_bars
from autotune.report.layout.blocks import Bar, Bars, Section
from autotune.report.layout.text import sections_text

parts_of_a_whole = st.lists(st.floats(0, 1e6), min_size=1, max_size=12)


def _number(bar: Bar) -> float:
    return float(bar.shown.split()[0].replace(",", ""))


@given(parts_of_a_whole, st.integers(0, 2))
@example([0.005], 2)  # times 100 it is a half, printed it is 0.01
def test_rounded_parts_add_up_to_the_rounded_total(parts: list[float], decimals: int) -> None:
    total = sum(parts)
    shown = rounded_parts(parts, total, decimals)
    assert sum(shown) == pytest.approx(round(total, decimals), abs=1e-6)
    assert all(abs(a - b) <= 10.0**-decimals + 1e-9 for a, b in zip(shown, parts, strict=True))


@given(parts_of_a_whole)
def test_bars_lie_end_to_end_and_end_where_the_total_ends(parts: list[float]) -> None:
    bars = time_bars({f"part {i}": value for i, value in enumerate(parts)}).bars
    *pieces, total = bars
    end = 0.0
    for piece in pieces:
        assert piece.start == pytest.approx(end, abs=1e-9)
        end = piece.start + piece.length
    if pieces:
        assert end == pytest.approx(total.length)


def test_printed_hours_add_up_to_the_printed_total() -> None:
    thirds = {"train": HOUR_S * 10 / 3, "evaluation": HOUR_S * 10 / 3, "load": HOUR_S * 10 / 3}
    *pieces, total = time_bars(thirds).bars
    assert sorted(_number(bar) for bar in pieces) == [3.33, 3.33, 3.34]
    assert _number(total) == 10.0


def test_parts_of_zero_seconds_are_left_out() -> None:
    names = [bar.name for bar in time_bars({"train": 10.0, "lost_work": 0.0}).bars]
    assert names == ["training steps", "total"]


def test_total_and_free_memory_add_up_to_what_is_usable() -> None:
    bars = memory_bars({"weights": 15.006 * GIB, "total": 15.006 * GIB, "usable": 20.004 * GIB})
    total, free = bars.bars[-2:]
    assert free.name == "free"
    assert _number(total) + _number(free) == pytest.approx(20.0)


def test_memory_over_what_is_usable_is_shown_as_too_much() -> None:
    bars = memory_bars({"weights": 30 * GIB, "total": 30 * GIB, "usable": 20 * GIB})
    over = bars.bars[-1]
    assert (over.name, over.kind, over.shown) == ("too much", "over", "10.00 GiB")
    assert over.start == pytest.approx(2 / 3)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_long_name_is_wrapped_and_never_cuts_its_numbers(width: int) -> None:
    name = "train.global_batch_size and machine and split and sharding and attention 8 -> 16"
    bars = Bars((
        Bar(name, "-11.45 h    +$17.46", "30%", 0.1, 0.3),
        Bar("the pick", "14.63 h     $70.24", "39%", 0.0, 0.39, "total"),
    ))  # fmt: skip
    lines = sections_text([Section("From", (bars,))], width=width).splitlines()
    assert all(len(line) <= width for line in lines)
    assert sum("+$17.46" in line and "█" in line for line in lines) == 1
    assert "".join("".join(lines).split()).count("train.global_batch_size") == 1
    assert any("$70.24" in line for line in lines)
