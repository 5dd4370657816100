"""The page without a browser: well formed, alone, escaped, and with parts that add up."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.report.page.axis import axis_for
from autotune.report.page.blocks import Markup, tag
from autotune.report.page.page import recommendation_fragment, recommendation_html
from tests.report.page_tree import payload_of, probed, texts, tree_of

if TYPE_CHECKING:
    from samples import Samples

    from autotune.domain.answer.recommendation import Recommendation
HOSTILE = (
    "a</title></style><script>alert(1)</script><img src=x onerror=alert(2)>&\"'`\u202e\U0001f600"
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
    levels = [int(each.tag[1]) for each in root.iter() if re.fullmatch("h[1-6]", each.tag)]
    assert all(after <= before + 1 for before, after in pairwise(levels))


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
