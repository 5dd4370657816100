"""The page in a real browser, driven over Chromium's debugging pipe; skipped where there is none.

Source: Chrome DevTools Protocol, --remote-debugging-pipe: JSON messages that end in a NUL byte,
read from file descriptor 3 and written to 4.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from autotune.domain.recommendation import ProbedRun
from autotune.report.html import recommendation_html
from autotune.report.payload import recommendation_payload

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from conftest import Samples

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PROGRAM = next((found for name in NAMES if (found := shutil.which(name))), None)
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
    "--disable-dev-shm-usage", "--remote-debugging-pipe",
)  # fmt: skip
# The pipe's ends become descriptors 3 and 4, whatever numbers they have here.
START = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(each), fcntl.F_DUPFD, 10) for each in sys.argv[1:3]]
for number, end in enumerate(ends, start=3):
    os.dup2(end, number)
os.execv(sys.argv[3], sys.argv[3:])
"""
TROUBLE = {"Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium on PATH"),
]


class Browser:
    """One page of a headless Chromium."""

    def __init__(self, profile: Path) -> None:
        down, self._out = os.pipe()
        self._in, up = os.pipe()
        assert PROGRAM is not None
        self.process = subprocess.Popen(
            [sys.executable, "-c", START, str(down), str(up), PROGRAM, *FLAGS,
             f"--user-data-dir={profile}"],
            pass_fds=(down, up), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(down)
        os.close(up)
        self._rest = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        self._session = None
        self.call("Browser.close")
        self.process.wait(30)
        os.close(self._in)
        os.close(self._out)

    def call(self, method: str, **params: object) -> dict[str, Any]:
        """Send a command and wait for its answer; events on the way are kept."""
        self._number += 1
        message: dict[str, object] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._in, 1 << 16)
            assert more, "the browser has ended"
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def open(self, page: Path, width: int, *, phone: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1,
            mobile=phone,
        )  # fmt: skip
        self.events.clear()
        self.call("Page.navigate", url=page.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def js(self, expression: str) -> Any:
        """The value of an expression in the page."""
        found = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def at(self, selector: str) -> tuple[float, float]:
        """The middle of an element on the screen, scrolled to."""
        self.js(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center'}})")
        frame = "requestAnimationFrame"
        self.js(f"new Promise(done => {frame}(() => {frame}(() => done(0))))")
        x, y = self.js(
            f"(() => {{ const b = document.querySelector({selector!r}).getBoundingClientRect();"
            " return [b.left + b.width / 2, b.top + b.height / 2]; })()"
        )
        return x, y

    def mouse(self, kind: str, at: tuple[float, float]) -> None:
        button = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type=kind, x=at[0], y=at[1], **button)

    def click(self, selector: str) -> None:
        at = self.at(selector)
        self.mouse("mousePressed", at)
        self.mouse("mouseReleased", at)

    def key(self, name: str) -> None:
        codes = {"Tab": 9, "ArrowRight": 39, "Escape": 27, "Enter": 13}
        same = {"key": name, "code": name, "windowsVirtualKeyCode": codes[name]}
        text = {"text": "\r"} if name == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **same, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **same)

    def trouble(self) -> list[dict[str, Any]]:
        """What the console would show."""
        return [event for event in self.events if event["method"] in TROUBLE]


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
    hostile = "x</title><script>document.title='owned'</script><img src=x onerror=alert(1)>"
    answer = replace(answer, probed=(probe,), job=replace(answer.job, name=hostile))
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(recommendation_html(recommendation_payload(answer)))
    return path


@pytest.mark.parametrize("width", [1280, 390])
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
    printed = base64.b64decode(browser.call("Page.printToPDF", printBackground=True)["data"])
    assert printed.startswith(b"%PDF")
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
