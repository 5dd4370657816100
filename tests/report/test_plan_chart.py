"""The drawing of a schedule."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from autotune.report.campaign.schedule import plan_svg

SVG = "{http://www.w3.org/2000/svg}"


def campaign(phases: list[str], makespan_s: float = 7500.0) -> dict[str, Any]:
    """A schedule with one run a phase, on two machines."""
    return {
        "name": "campaign",
        "mixed": False,
        "runs": [{"phase": phase} for phase in phases],
        "schedule": {
            "makespan_s": makespan_s, "machines": 2,
            "placements": [
                {"machine": i % 2, "start_s": 0.0, "end_s": makespan_s, "phase": phase,
                 "task": phase}
                for i, phase in enumerate(phases)
            ],
        },
    }  # fmt: skip


def texts(svg: str) -> list[tuple[float, float, str]]:
    root = ET.fromstring(svg)  # noqa: S314
    return [
        (float(each.get("x", "nan")), float(each.get("y", "nan")), each.text or "")
        for each in root.iter(f"{SVG}text")
    ]


@pytest.mark.parametrize(
    ("makespan_s", "named"),
    [(7500.0, ["0 h", "0.5 h", "1 h", "1.5 h", "2 h"]), (100.0, ["0 s", "20 s", "40 s"])],
)
def test_times_are_named_at_round_values_in_one_unit(makespan_s: float, named: list[str]) -> None:
    shown = [text for _, y, text in texts(plan_svg(campaign(["a"], makespan_s))) if y == 37]
    assert shown[: len(named)] == named
    assert len({text.split()[1] for text in shown}) == 1


def test_a_legend_that_is_too_long_goes_on_in_the_next_line() -> None:
    phases = [f"a phase with a long name {i}" for i in range(9)]
    svg = plan_svg(campaign(phases))
    legend = [(x, y) for x, y, text in texts(svg) if text in phases]
    assert len(legend) == len(phases)
    assert len({y for _, y in legend}) > 1
    assert max(x + 7.5 * 26 for x, _ in legend) <= 900
    height = float(re.findall(r'height="(\d+)"', svg)[0])
    assert max(y for _, y in legend) < height


def test_the_title_counts_machines_as_people_do() -> None:
    payload = campaign(["a"])
    assert "on 2 machines" in plan_svg(payload)
    payload["schedule"]["machines"] = 1
    assert "on 1 machine<" in plan_svg(payload)
