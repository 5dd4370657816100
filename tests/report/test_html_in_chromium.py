"""The page in a real browser: what a reader sees, and what can be done with it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autotune.cli.application import run
from autotune.domain.outcome import Measured
from autotune.report.page.page import recommendation_html
from autotune.report.payload import recommendation_payload
from bench.pages.browser import PROGRAM, Browser
from bench.pages.legibility import FAINT, OFF_THE_SCREEN, PAPER_PX, STRUCK_THROUGH, torn
from tests.report.page_tree import probed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from samples import Samples

pytestmark = [
    pytest.mark.slow,
    pytest.mark.services,
    pytest.mark.skipif(PROGRAM is None, reason="not tried: no Chromium on PATH"),
]
JOBS = Path(__file__).parents[2] / "jobs"
ONE_LINE = ("--model", "meta-llama/Llama-3.1-8B", "--rows", "50000", "--gpu", "rtx-4090")
# What a user may ask: one machine and limits, two machines and a card too small for today's
# config, every machine, a line without a file, what does not fit, a CPU.
ASKED = {
    "one machine": (str(JOBS / "h100_38h.yaml"),),
    "two machines": (str(JOBS / "t4_to_a100_gemma2.yaml"),),
    "every machine": (str(JOBS / "h100_38h.yaml"), "--gpu", "all"),
    "one line": (*ONE_LINE, "--method", "lora"),
    "nothing fits": (*ONE_LINE, "--method", "full"),
    "a CPU": (str(JOBS / "tiny_cpu.yaml"),),
}
KINDS = (*ASKED, "measured")
PHONE_PX, DESKTOP_PX = (390, 844), 1100
SCREENS, SHEETS = 4, 3
OPEN_ALL = "document.querySelectorAll('details').forEach(each => each.open = true)"
HEIGHT = "document.documentElement.scrollHeight"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    found = Browser(tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def answers(samples: Samples, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The page of each kind of answer, as the command line writes it into its run folder."""
    folder = tmp_path_factory.mktemp("runs")
    pages: dict[str, Path] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOTUNE_HOME", str(folder / "home"))
        patch.setenv("AUTOTUNE_OFFLINE", "1")
        for number, (kind, words) in enumerate(ASKED.items()):
            run_dir = folder / str(number)
            line = ["tune", *words, "--format", "json", "--quiet", "--run", str(run_dir)]
            assert run(line) in {0, 3, 4}
            pages[kind] = run_dir / "report.html"
    assert samples.full.best is not None
    best = samples.full.best
    measured = Measured(best.offer, best.config, 0.18, 4e10, 5e10, "probe 5b28, 2026-11-22")
    best = replace(best, basis="measured", measured=measured)
    pages["measured"] = folder / "measured.html"
    answer = recommendation_payload(probed(replace(samples.full, best=best)))
    pages["measured"].write_text(recommendation_html(answer))
    return pages


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("folds", ["closed", "open"])
def test_on_a_phone_nothing_is_off_the_screen_or_scrolls_out_of_it(
    browser: Browser, answers: dict[str, Path], kind: str, folds: str
) -> None:
    browser.open(answers[kind], PHONE_PX[0], phone=True)
    if folds == "open":
        browser.js(OPEN_ALL)
    assert browser.js(OFF_THE_SCREEN) == []


@pytest.mark.parametrize("kind", KINDS)
def test_on_a_phone_the_page_is_four_screens_before_anything_is_unfolded(
    browser: Browser, answers: dict[str, Path], kind: str
) -> None:
    browser.open(answers[kind], PHONE_PX[0], phone=True)
    assert browser.js(HEIGHT) <= SCREENS * PHONE_PX[1]
    assert browser.js("document.querySelectorAll('details').length") > 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [PHONE_PX[0], DESKTOP_PX])
def test_no_line_goes_through_a_label(
    browser: Browser, answers: dict[str, Path], kind: str, width: int
) -> None:
    browser.open(answers[kind], width, phone=width == PHONE_PX[0])
    browser.js(OPEN_ALL)
    browser.size(width, browser.js(HEIGHT) + 100)
    assert browser.js(STRUCK_THROUGH) == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_page_prints_on_three_sheets(
    browser: Browser, answers: dict[str, Path], kind: str
) -> None:
    browser.open(answers[kind], DESKTOP_PX)
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", browser.printed())) <= SHEETS


@pytest.mark.parametrize("kind", KINDS)
def test_on_paper_no_drawing_is_torn_from_its_table(
    browser: Browser, answers: dict[str, Path], kind: str
) -> None:
    browser.open(answers[kind], PAPER_PX[0])
    browser.call("Emulation.setEmulatedMedia", media="print")
    found = browser.js(torn())
    beside = browser.js(
        "Array.from(document.querySelectorAll('.plot, .drawn svg'))"
        ".filter(each => !each.closest('figure')?.querySelector('table')).length"
    )
    browser.call("Emulation.setEmulatedMedia", media="")
    assert found == []
    assert beside == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_text_stands_out_from_what_is_behind_it(
    browser: Browser, answers: dict[str, Path], kind: str, scheme: str
) -> None:
    browser.open(answers[kind], DESKTOP_PX)
    browser.js(OPEN_ALL)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.call("Emulation.setEmulatedMedia", features=features)
    found = browser.js(FAINT)
    browser.call("Emulation.setEmulatedMedia", features=[])
    assert found == []


@pytest.mark.parametrize("kind", ["one machine", "every machine"])
def test_without_its_script_the_page_holds_the_same(
    browser: Browser, answers: dict[str, Path], kind: str
) -> None:
    words = "document.querySelector('main').textContent.replace(/\\s+/g, ' ')"
    browser.open(answers[kind], DESKTOP_PX)
    scripted = browser.js(words)
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    browser.open(answers[kind], DESKTOP_PX)
    tips = browser.js("Array.from(document.querySelectorAll('svg title'), t => t.textContent)")
    plain = browser.js(words)
    browser.call("Emulation.setScriptExecutionDisabled", value=False)
    for tip in tips:
        plain = plain.replace(tip, "", 1)
    assert plain == scripted
    assert bool(tips) is (kind == "every machine")


def test_the_measures_find_what_they_look_for(browser: Browser, tmp_path: Path) -> None:
    """Each of the scripts above, on a page that has just what it must find."""
    page = tmp_path / "bad.html"
    page.write_text(
        "<body style='margin:0'><figure style='height:2000px;margin:0'>tall</figure>"
        "<div style='width:900px;text-align:right'>far</div>"
        "<div style='overflow-x:auto'><div style='width:800px'>in a frame</div></div>"
        "<p style='color:#999;background:#fff'>faint</p>"
        "<svg width='200' height='60'><line x1='0' x2='200' y1='16' y2='16' stroke='red'/>"
        "<text x='10' y='20'>struck</text>"
        "<line x1='0' x2='200' y1='46' y2='46' stroke='red'/>"
        "<circle cx='20' cy='46' r='14' fill='white'/><text x='14' y='50'>A</text></svg>"
    )
    browser.open(page, PHONE_PX[0])
    browser.size(PHONE_PX[0], 2400)
    off = browser.js(OFF_THE_SCREEN)
    assert {"far", "scrolls: DIV"} <= set(off)
    assert browser.js(STRUCK_THROUGH) == ["struck"]
    assert [each.split()[0] for each in browser.js(FAINT)] == ["faint"]
    assert [each.split()[0] for each in browser.js(torn())] == ["FIGURE"]


@pytest.fixture(scope="module")
def page(samples: Samples, tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert samples.full.best is not None
    machines = tuple(
        replace(samples.full.best, offer=replace(samples.full.best.offer, usd_per_hour=price))
        for price in (3.0, 4.0, 5.0)
    )
    hostile = (
        "x</title><script>document.title='owned'</script><img src=x onerror=alert(1)>" + "m" * 300
    )
    job = replace(samples.full.job, name=hostile)
    answer = probed(replace(samples.full, job=job, machines=machines))
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
    browser.js(OPEN_ALL)
    values = (
        "Array.from(document.querySelectorAll('table.sortable tbody tr'))"
        ".map(row => parseFloat(row.cells[2].dataset.sort))"
    )
    title = "table.sortable th:nth-child(3)"
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
    browser.js(OPEN_ALL)
    browser.js("document.querySelector('table.sortable th:nth-child(5) button').focus()")
    browser.key("Enter")
    assert browser.js("document.querySelector('table.sortable th:nth-child(5)').ariaSort")


def test_a_mark_tells_its_number_under_the_pointer_and_not_beside_it(
    browser: Browser, page: Path
) -> None:
    browser.open(page, 1280)
    browser.mouse("mouseMoved", browser.at(".plot .named.pick"))
    assert browser.js("document.querySelector('#tip').hidden") is False
    assert "the pick: 1x h100-sxm" in browser.js("document.querySelector('#tip').textContent")
    browser.mouse("mouseMoved", (2.0, 2.0))
    assert browser.js("document.querySelector('#tip').hidden") is True


def test_arrow_keys_go_from_mark_to_mark_and_escape_closes_the_tip(
    browser: Browser, page: Path
) -> None:
    browser.open(page, 1280)
    browser.js("document.querySelector('.plot [tabindex=\"0\"]').focus()")
    browser.at(".plot")
    first = browser.js("document.querySelector('#tip').textContent")
    browser.key("ArrowRight")
    second = browser.js("document.querySelector('#tip').textContent")
    assert first != second
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
    assert len(held) > 12
    assert all(node.get("name", {}).get("value") for node in held)


def test_the_tab_key_reaches_every_fold_and_the_drawing(browser: Browser, page: Path) -> None:
    browser.open(page, 1280)
    folds = browser.js("document.querySelectorAll('summary').length")
    reached = []
    for _ in range(60):
        browser.key("Tab")
        reached.append(
            browser.js("(e => e.closest('.plot') ? 'plot' : e.textContent)(document.activeElement)")
        )
    titles = browser.js("Array.from(document.querySelectorAll('summary'), s => s.textContent)")
    assert len(titles) == folds > 7
    assert {"plot", *titles} <= set(reached)


def test_paper_shows_what_is_marked_for_it_and_the_screen_is_left_as_it_was(
    browser: Browser, page: Path
) -> None:
    browser.open(page, 1280)
    browser.js("document.querySelectorAll('details').forEach(each => each.open = false)")
    browser.printed()
    assert browser.js("document.querySelectorAll('details[open]').length") == 0
    browser.call("Emulation.setEmulatedMedia", media="print")
    shown = "Array.from(document.querySelectorAll('details'), e => [e.matches('.printed'), {}])"
    inner = "Array.from(e.children).slice(1).some(c => c.checkVisibility())"
    seen = browser.js(shown.replace("{}", inner))
    nav = browser.js("getComputedStyle(document.querySelector('nav')).display")
    browser.call("Emulation.setEmulatedMedia", media="")
    assert nav == "none"
    assert {marked for marked, _ in seen} == {True, False}
    assert all(marked == visible for marked, visible in seen)


def test_dark_mode_changes_the_paper(browser: Browser, page: Path) -> None:
    browser.open(page, 1280)
    paper = "getComputedStyle(document.querySelector('.autotune')).backgroundColor"
    light = browser.js(paper)
    scheme = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.call("Emulation.setEmulatedMedia", features=scheme)
    dark = browser.js(paper)
    browser.call("Emulation.setEmulatedMedia", features=[])
    assert (light, dark) == ("rgb(255, 255, 255)", "rgb(20, 24, 29)")
