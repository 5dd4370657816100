"""The page without a browser: well formed, alone, escaped, and with parts that add up."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.domain.outcome import TimeParts
from autotune.domain.recommendation import ProbedRun
from autotune.report.html import recommendation_fragment, recommendation_html
from autotune.report.html_axis import axis_for
from autotune.report.html_markup import Markup, tag
from autotune.report.payload import dumps, recommendation_payload
from autotune.report.recorded import recorded_payload

if TYPE_CHECKING:
    from conftest import Samples

    from autotune.domain.recommendation import Recommendation
    from autotune.report.schema import RecommendationPayload

HOSTILE = (
    "a</title></style><script>alert(1)</script><img src=x onerror=alert(2)>&\"'`\u202e\U0001f600"
)


def payload_of(answer: Recommendation) -> RecommendationPayload:
    """As a run folder keeps it: through JSON."""
    return recorded_payload(json.loads(dumps(recommendation_payload(answer))), "here")


def tree_of(page: str) -> ET.Element:
    """The page as XML, its script and style taken out: they are checked apart."""
    return ET.fromstring(re.sub(r"(?s)<(script|style)>.*?</\1>", "", page))  # noqa: S314


def classes(element: ET.Element) -> set[str]:
    return set(element.get("class", "").split())


def texts(root: ET.Element, name: str) -> list[str]:
    return ["".join(each.itertext()) for each in root.iter(name)]


def probed(answer: Recommendation) -> Recommendation:
    assert answer.best is not None
    other = replace(answer.best.config, micro_batch_size=4, gradient_accumulation_steps=2)
    return replace(
        answer,
        probed=(
            ProbedRun(answer.best.config, "ok", "search", False, 0.16, 0.18, 5e10, 30.0, 0.1, 0.2),
            ProbedRun(other, "oom", "search", False, 0.15, None, None, 12.0),
            ProbedRun(other, "ok", "search", True, None, 0.2, 5e10, 40.0),
        ),
    )


@pytest.fixture(params=["full", "infeasible", "late", "probed", "alone"])
def answer(request: pytest.FixtureRequest, samples: Samples) -> Recommendation:
    kinds = {
        "full": samples.full, "infeasible": samples.infeasible, "late": samples.late,
        "probed": probed(samples.full),
        "alone": replace(samples.full, today=None, alternatives=(), pareto=()),
    }  # fmt: skip
    found: Recommendation = kinds[request.param]
    return found


def test_every_answer_makes_a_well_formed_ascii_page(answer: Recommendation) -> None:
    page = recommendation_html(payload_of(answer))
    assert page.isascii()
    assert page.startswith("<!DOCTYPE html>")
    root = tree_of(page)
    assert root.get("lang") == "en"
    names = [each.get("id") for each in root.iter() if each.get("id")]
    assert len(names) == len(set(names))
    targets = {each.get("href", "")[1:] for each in root.iter("a")}
    assert targets <= set(names)
    assert len(texts(root, "h1")) == 1


def test_the_page_loads_nothing_and_lets_only_its_own_script_run(answer: Recommendation) -> None:
    page = recommendation_html(payload_of(answer))
    root = tree_of(page)
    loads = [each.get(key, "") for each in root.iter() for key in ("src", "href", "action", "data")]
    assert {load.partition(":")[0] for load in loads if load and load[0] != "#"} <= {"data"}
    assert "@import" not in page
    assert re.findall(r"url\((?!#)", page) == []
    script = re.findall(r"(?s)<script>(.*?)</script>", page)
    assert len(script) == 1
    digest = base64.b64encode(hashlib.sha256(script[0].encode()).digest()).decode()
    policy = next(each.get("content", "") for each in root.iter("meta") if each.get("http-equiv"))
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert not [key for each in root.iter() for key in each.keys() if key.startswith("on")]  # noqa: SIM118


def test_a_hostile_name_stays_text_everywhere(answer: Recommendation) -> None:
    plain = recommendation_html(payload_of(answer))
    job = replace(answer.job, name=HOSTILE, model=replace(answer.job.model, name=HOSTILE))
    assumed = tuple(replace(each, value=HOSTILE, why=HOSTILE) for each in job.assumed)
    hostile = replace(
        answer, job=replace(job, assumed=assumed), warnings=(HOSTILE,), run_dir=HOSTILE,
        reasons=dict.fromkeys(answer.reasons, HOSTILE),
    )  # fmt: skip
    page = recommendation_html(payload_of(hostile))
    root = tree_of(page)
    assert page.count("<script") == plain.count("<script") == 1
    assert list(root.iter("img")) == []
    assert HOSTILE in texts(root, "title")[0]
    assert HOSTILE in "".join(root.itertext())


@given(st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc"))))
def test_text_and_attributes_come_back_as_they_were_put_in(text: str) -> None:
    markup = tag("p", text, data_tip=text)
    read = ET.fromstring(markup)  # noqa: S314
    assert (read.text or "", read.get("data-tip")) == (text, text)
    assert isinstance(markup, Markup)


def test_the_segments_of_each_bar_are_the_parts_of_its_row(samples: Samples) -> None:
    payload = payload_of(samples.full)
    root = tree_of(recommendation_html(payload))
    bars = [
        [each for each in svg.iter("rect") if "seg" in classes(each)] for svg in root.iter("svg")
    ]
    drawn = [bar for bar in bars if bar]
    rows = [row for row in (payload["today"], payload["best"]) if row]
    expected = [row["duration_s"]["p50"] for row in rows]
    expected += [row["memory_bytes"]["total"] for row in rows]
    assert len(drawn) == len(expected) == 4
    for bar, total in zip(drawn, expected, strict=True):
        assert sum(float(seg.get("data-value", "nan")) for seg in bar) == pytest.approx(total)
        widths = [float(seg.get("width", "nan").rstrip("%")) for seg in bar]
        starts = [float(seg.get("x", "nan").rstrip("%")) for seg in bar]
        for start, width, following in zip(starts, widths, starts[1:], strict=False):
            assert start + width == pytest.approx(following, abs=0.01)
        assert starts[0] == 0
        assert starts[-1] + widths[-1] <= 100.01


def test_today_and_the_pick_are_in_the_same_unit(samples: Samples) -> None:
    assert samples.full.best is not None
    parts = {name: value / 100 for name, value in samples.full.best.time_s.as_dict().items()}
    short = replace(samples.full.best, time_s=TimeParts(**parts))
    root = tree_of(recommendation_html(payload_of(replace(samples.full, best=short))))
    table = next(each for each in root.iter("table") if "parts" in classes(each))
    cells = ["".join(cell.itertext()) for cell in table.iter("td")]
    assert {cell.split()[-1] for cell in cells if cell != "0"} == {"h"}


def test_the_printed_parts_add_up_to_the_printed_total(samples: Samples) -> None:
    root = tree_of(recommendation_html(payload_of(samples.full)))
    checked = 0
    for table in root.iter("table"):
        lines = [[" ".join(cell.itertext()) for cell in line] for line in table.iter("tr")]
        if lines[0][0] != "part":
            continue
        for column in range(1, len(lines[0])):
            *parts, total = [float(line[column].split()[0]) for line in lines[1:]]
            assert sum(parts) == pytest.approx(total, abs=1e-6)
            checked += 1
    assert checked == 4


def test_every_candidate_of_the_answer_has_a_row_and_a_mark(samples: Samples) -> None:
    beyond = replace(samples.full.alternatives[0], verdict="certain_oom", usable_bytes=1e9)
    beyond = replace(beyond, config=replace(beyond.config, micro_batch_size=1))
    answer = replace(samples.full, beyond=(beyond,))
    root = tree_of(recommendation_html(payload_of(answer)))
    table = next(each for each in root.iter("table") if "sortable" in classes(each))
    roles = ["".join(line[1].itertext()) for line in table.iter("tr")][1:]
    assert sorted(roles) == ["alternative", "does not fit", "on the front", "the pick", "today"]
    plot = next(each for each in root.iter("svg") if "plot" in classes(each))
    marks = [each.get("data-tip", "") for each in plot.iter("path") if each.get("data-tip")]
    assert len(marks) == len(roles)
    assert sum("does not fit" in mark for mark in marks) == 1


def test_every_machine_has_a_row_also_where_nothing_fits(samples: Samples) -> None:
    fitting, tight = samples.full.alternatives[1], samples.full.alternatives[0]
    small = replace(tight, usable_bytes=1e9, verdict="certain_oom")
    small = replace(small, offer=replace(small.offer, count=8))
    answer = replace(samples.full, machines=(fitting, small))
    root = tree_of(recommendation_html(payload_of(answer)))
    table = next(each for each in root.iter("table") if "sortable" in classes(each))
    lines = [["".join(cell.itertext()) for cell in line] for line in table.iter("tr")]
    assert [line[1] for line in lines if line[0].startswith("8x")] == ["does not fit"]
    assert len({tuple(line) for line in lines}) == len(lines)
    plot = next(each for each in root.iter("svg") if "plot" in classes(each))
    assert not any("8x" in each.get("data-tip", "") for each in plot.iter("path"))


def test_a_waterfall_is_drawn_from_today_to_the_pick(samples: Samples) -> None:
    payload = payload_of(samples.full)
    today, best = payload["today"], payload["best"]
    assert today
    assert best
    gap = best["duration_s"]["p50"] - today["duration_s"]["p50"]
    paid = best["cost_usd"]["p50"] - today["cost_usd"]["p50"]
    payload["journey"] = {"options": [], "measured": []}
    payload["waterfall"] = [
        {"change": name, "from": "a", "to": "b", "duration_s": share * gap,
         "cost_usd": share * paid, "touches": [], "yours": False, "note": ""}
        for name, share in (("compile", 1.25), ("workers", -0.25))
    ]  # fmt: skip
    root = tree_of(recommendation_html(payload))
    spans = [each for each in root.iter("rect") if "span" in classes(each)]
    kinds = [(classes(each) - {"span"}).pop() for each in spans]
    assert kinds == ["today", "less", "more", "pick"]
    ends = [[float(each.get(key, "nan").rstrip("%")) for key in ("x", "width")] for each in spans]
    assert ends[0] == [0, 100]
    assert sum(ends[1]) == pytest.approx(100, abs=0.01)  # starts where today ends
    assert ends[2][0] == pytest.approx(ends[1][0], abs=0.01)
    assert ends[3][1] == pytest.approx(sum(ends[2]), abs=0.01)  # ends where the pick does


def test_probes_show_predicted_with_its_interval_measured_and_when_they_ran(
    samples: Samples,
) -> None:
    root = tree_of(recommendation_html(payload_of(probed(samples.full))))
    section = next(each for each in root.iter("section") if each.get("id") == "probes")
    words = [each.get("data-tip", "") for each in section.iter() if each.get("data-tip")]
    assert "the pick: 160 ms \N{RIGHTWARDS ARROW} 180 ms" in words
    assert any("out of memory, 12.0 s" in tip for tip in words)
    assert not any("40.0 s" in tip for tip in words)  # taken over from an earlier study
    assert sum("interval" in classes(each) for each in section.iter("rect")) == 1
    assert sum("cross" in classes(each) for each in section.iter("path")) == 2


def test_every_mark_has_words_and_every_drawing_one_stop_of_the_tab_key(samples: Samples) -> None:
    root = tree_of(recommendation_html(payload_of(probed(samples.full))))
    drawings = [each for each in root.iter("svg") if "marks" in classes(each)]
    assert len(drawings) > 8
    for drawing in drawings:
        assert drawing.get("aria-label")
        marks = [each for each in drawing.iter() if each.get("data-tip")]
        assert all(each.get("aria-label") == each.get("data-tip") for each in marks)
        assert [each.get("tabindex") for each in marks].count("0") == (1 if marks else 0)


def test_the_page_of_a_job_that_fits_nowhere_says_what_would(samples: Samples) -> None:
    root = tree_of(recommendation_html(payload_of(samples.infeasible)))
    assert "fits" in texts(root, "h1")[0]
    assert "activation_checkpointing full" in "".join(root.itertext())


def test_where_nothing_fits_no_front_is_drawn_and_what_was_tried_is_listed(
    samples: Samples,
) -> None:
    small = replace(samples.full.alternatives[0], verdict="certain_oom", usable_bytes=1e9)
    other = replace(small, config=replace(small.config, compile="off"))
    answer = replace(samples.infeasible, today=small, beyond=(other,))
    root = tree_of(recommendation_html(payload_of(answer)))
    assert not [each for each in root.iter("svg") if "plot" in classes(each)]
    table = next(each for each in root.iter("table") if "sortable" in classes(each))
    assert len(list(table.iter("tr"))) == 3


def test_a_notebook_gets_the_answer_without_script(samples: Samples) -> None:
    hostile = replace(samples.full, job=replace(samples.full.job, name=HOSTILE))
    fragment = recommendation_fragment(payload_of(hostile))
    root = tree_of(fragment)
    assert "<script" not in fragment
    assert list(root.iter("img")) == []
    assert HOSTILE in "".join(root.itertext())


def test_styles_of_a_fragment_touch_nothing_but_the_report(samples: Samples) -> None:
    style = re.findall(
        r"(?s)<style>(.*?)</style>", recommendation_fragment(payload_of(samples.full))
    )
    selectors = re.findall(r"(?m)^\s*([^{}@\n][^{}\n]*)\{", style[0])
    outside = {each.strip() for line in selectors for each in line.split(",")
               if not each.strip().startswith(".autotune")}  # fmt: skip
    assert not outside


@given(st.lists(st.floats(1e-6, 1e12), min_size=1, max_size=20))
def test_an_axis_holds_its_values_in_order_and_names_some(values: list[float]) -> None:
    axis = axis_for(values)
    placed = [axis.place(value) for value in sorted(values)]
    assert placed == sorted(placed)
    assert all(0 <= place <= 1 for place in placed)
    assert 1 <= len(axis.ticks()) <= 12
    assert all(axis.low <= tick <= axis.high * (1 + 1e-9) for tick in axis.ticks())
