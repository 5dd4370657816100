"""One page of a headless Chromium, driven over its debugging pipe.

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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PROGRAM = next((found for name in NAMES if (found := shutil.which(name))), None)
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
    "--hide-scrollbars", "--no-first-run", "--disable-background-networking", "--disable-sync",
    "--disable-component-update", "--disable-quic", "--remote-debugging-pipe",
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


class Browser:
    """One page of a headless Chromium."""

    def __init__(self, profile: Path) -> None:
        down, self._out = os.pipe()
        self._in, up = os.pipe()
        if PROGRAM is None:
            msg = f"no Chromium on PATH under any of {', '.join(NAMES)}"
            raise FileNotFoundError(msg)
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
        """End the browser."""
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
        if "error" in answer:
            msg = f"{method}: {answer['error']}"
            raise RuntimeError(msg)
        result: dict[str, Any] = answer["result"]
        return result

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._in, 1 << 16)
            if not more:
                msg = "the browser has ended"
                raise EOFError(msg)
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def open(self, page: Path, width: int, *, phone: bool = False, scale: int = 1) -> None:
        """Load a page in a window that wide [CSS pixels]; scale: pixels of a picture to one."""
        self.size(width, phone=phone, scale=scale)
        self.events.clear()
        self.call("Page.navigate", url=page.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def size(self, width: int, height: int = 900, *, phone: bool = False, scale: int = 1) -> None:
        """The window [CSS pixels]; scale: pixels of a picture to one."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height,
            deviceScaleFactor=scale, mobile=phone,
        )  # fmt: skip

    def js(self, expression: str) -> Any:  # noqa: ANN401 - any value of JSON
        """The value of an expression in the page."""
        found = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in found:
            msg = f"{expression}: {found['exceptionDetails']}"
            raise RuntimeError(msg)
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
        """One event of the pointer."""
        button = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type=kind, x=at[0], y=at[1], **button)

    def click(self, selector: str) -> None:
        """A click on the middle of an element."""
        at = self.at(selector)
        self.mouse("mousePressed", at)
        self.mouse("mouseReleased", at)

    def key(self, name: str) -> None:
        """A key pressed and let go."""
        codes = {"Tab": 9, "ArrowRight": 39, "Escape": 27, "Enter": 13}
        same = {"key": name, "code": name, "windowsVirtualKeyCode": codes[name]}
        text = {"text": "\r"} if name == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **same, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **same)

    def picture(self, width: float, top: float, height: float) -> bytes:
        """A PNG of a part of the page, from its left edge."""
        clip = {"x": 0, "y": top, "width": width, "height": height, "scale": 1}
        found = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        return base64.b64decode(found["data"])

    def printed(self, *, colour: bool = True) -> bytes:
        """The page on A4 as PDF; without colour, backgrounds are left out as printers do."""
        found = self.call(
            "Page.printToPDF", printBackground=colour, paperWidth=8.27, paperHeight=11.69
        )
        return base64.b64decode(found["data"])

    def trouble(self) -> list[dict[str, Any]]:
        """What the console would show."""
        return [event for event in self.events if event["method"] in TROUBLE]
