"""The page in a real browser; skipped where there is none."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from autotune.domain.recommendation import ProbedRun
from autotune.report.html import recommendation_html
from autotune.report.payload import recommendation_payload
from bench.browser import PROGRAM, Browser

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from conftest import Samples

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium on PATH"),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    found = Browser(tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def page(samples: Samples, tmp_path_factory: pytest.TempPathFactory) -> Path:
    answer = samples.full
    assert answer.best is not None
    probe = ProbedRun(answer.best.config, "ok", "search", False, 0.16, 0.18, 50e9, 30.0, 0.12, 0.2)
    hostile = (
        "x</title><script>document.title='owned'</script><img src=x onerror=alert(1)>" + "m" * 300
    )
    answer = replace(answer, probed=(probe,), job=replace(answer.job, name=hostile))
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(recommendation_html(recommendation_payload(answer)))
    return path


@pytest.mark.parametrize("width", [1280, 768, 360])
def test_the_page_loads_silently_fits_its_window_and_asks_for_nothing(
    browser: Browser, page: Path, width: int
) -> None:
    browser.open(page, width, phone=width < 500)
    assert browser.trouble() == []
    asked = [e["params"]["request"]["url"] for e in browser.events
             if e["method"] == "Network.requestWillBeSent"]  # fmt: skip
    assert {url.partition(":")[0] for url in asked} <= {"file", "data"}
    assert browser.js("document.documentElement.scrollWidth") <= width
    assert browser.js("document.title").startswith("x</title><script>")
    assert browser.js("document.images.length") == 0


def test_a_click_on_a_title_sorts_by_it_and_a_second_one_turns_the_order(
    browser: Browser, page: Path
) -> None:
    browser.open(page, 1280)
    values = (
        "Array.from(document.querySelectorAll('table.sortable tbody tr'))"
        ".map(row => parseFloat(row.cells[3].dataset.sort))"
    )
    title = "table.sortable th:nth-child(4)"
    before = browser.js(values)
    assert len(before) > 2
    browser.click(f"{title} button")
    assert browser.js(values) == sorted(before)
    assert browser.js(f"document.querySelector('{title}').ariaSort") == "ascending"
    browser.click(f"{title} button")
    assert browser.js(values) == sorted(before, reverse=True)
    assert browser.js("document.querySelectorAll('th[aria-sort]').length") == 1


def test_a_title_sorts_by_the_keyboard_too(browser: Browser, page: Path) -> None:
    browser.open(page, 1280)
    browser.js("document.querySelector('table.sortable th:nth-child(5) button').focus()")
    browser.key("Enter")
    assert browser.js("document.querySelector('table.sortable th:nth-child(5)').ariaSort")


def test_a_mark_tells_its_number_under_the_pointer_and_not_beside_it(
    browser: Browser, page: Path
) -> None:
    browser.open(page, 1280)
    browser.mouse("mouseMoved", browser.at("rect.seg.s3"))
    assert browser.js("document.querySelector('#tip').hidden") is False
    assert "training steps 25.00 h" in browser.js("document.querySelector('#tip').textContent")
    browser.mouse("mouseMoved", (2.0, 2.0))
    assert browser.js("document.querySelector('#tip').hidden") is True


def test_arrow_keys_go_from_mark_to_mark_and_escape_closes_the_tip(
    browser: Browser, page: Path
) -> None:
    browser.open(page, 1280)
    browser.js("document.querySelector('rect.seg').focus()")
    browser.at("rect.seg")
    first = browser.js("document.querySelector('#tip').textContent")
    browser.key("ArrowRight")
    second = browser.js("document.querySelector('#tip').textContent")
    assert "load the model" in first
    assert "prepare the data" in second
    assert browser.js("document.activeElement.dataset.tip") == second
    browser.key("Escape")
    assert browser.js("document.querySelector('#tip').hidden") is True


def test_arrow_keys_go_through_the_plane_from_left_to_right(browser: Browser, page: Path) -> None:
    browser.open(page, 1280)
    browser.js("document.querySelector('.plot [tabindex=\"0\"]').focus()")
    count = browser.js("document.querySelectorAll('.plot [data-tip]').length")
    seen = []
    for _ in range(count):
        browser.key("ArrowRight")
        seen.append(browser.js("document.activeElement.getBoundingClientRect().left"))
    assert count >= 4
    turn = seen.index(min(seen))
    assert seen[turn:] + seen[:turn] == sorted(seen)


def test_everything_that_takes_the_focus_has_a_name(browser: Browser, page: Path) -> None:
    browser.open(page, 1280)
    browser.call("Accessibility.enable")
    nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
    browser.call("Accessibility.disable")
    held = [
        node for node in nodes
        if any(p["name"] == "focusable" and p["value"].get("value") for p in
               node.get("properties", []))
    ]  # fmt: skip
    assert len(held) > 40
    unnamed = [node["role"]["value"] for node in held if not node.get("name", {}).get("value")]
    assert set(unnamed) <= {"generic"}  # code that scrolls


def test_the_tab_key_reaches_every_table_and_drawing(browser: Browser, page: Path) -> None:
    browser.open(page, 1280)
    reached = set()
    for _ in range(120):
        browser.key("Tab")
        reached.add(
            browser.js(
                "(e => e.closest('.scroll, .marks, nav, pre')?.getAttribute('aria-label')"
                " ?? e.tagName)(document.activeElement)"
            )
        )
    labels = browser.js(
        "Array.from(document.querySelectorAll('.scroll, .marks'))"
        ".map(each => each.getAttribute('aria-label'))"
    )
    assert set(labels) <= reached


def test_print_shows_all_on_pages(browser: Browser, page: Path) -> None:
    browser.open(page, 1280)
    assert browser.printed().startswith(b"%PDF")
    assert browser.js("document.querySelectorAll('details:not([open])').length") == 0
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert browser.js("getComputedStyle(document.querySelector('nav')).display") == "none"
    browser.call("Emulation.setEmulatedMedia", media="")


def test_dark_mode_changes_the_paper(browser: Browser, page: Path) -> None:
    browser.open(page, 1280)
    paper = "getComputedStyle(document.querySelector('.autotune')).backgroundColor"
    light = browser.js(paper)
    scheme = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.call("Emulation.setEmulatedMedia", features=scheme)
    dark = browser.js(paper)
    browser.call("Emulation.setEmulatedMedia", features=[])
    assert (light, dark) == ("rgb(255, 255, 255)", "rgb(20, 24, 29)")
