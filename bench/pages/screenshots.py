"""Write the pictures of docs/report.md: the pages of two runs as Chromium shows them.

    python -m bench.pages.screenshots [FOLDER]   docs/ if left out; needs Chromium on PATH

Debian: apt-get install chromium. The runs need no network and no GPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from bench.pages.browser import Browser

ROOT = Path(__file__).resolve().parents[2]
JOB = "jobs/h100_38h.yaml"
RUN = "runs/h100-38h"
DESKTOP_PX, PHONE_PX, PHONE_TALL_PX, PHONE_SCALE = 1000, 390, 844, 2
LIMIT_MISSED = 4  # exit code: an answer, but a limit of the job is missed


def page_of(folder: Path, *flags: str) -> Path:
    """The page of a run of `JOB`, started in `folder`."""
    folder.mkdir()
    environment = {**os.environ, "AUTOTUNE_OFFLINE": "1", "AUTOTUNE_HOME": str(folder / "home"),
                   "PYTHONPATH": str(ROOT)}  # fmt: skip
    command = [sys.executable, "-m", "autotune", "tune", str(ROOT / JOB), "--quiet", *flags]
    done = subprocess.run(
        [*command, "--run", RUN],
        cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    if done.returncode not in {0, LIMIT_MISSED}:
        done.check_returncode()
    return folder / RUN / "report.html"


def part(browser: Browser, first: str, last: str) -> tuple[float, float]:
    """[CSS pixels] From the top of one section of the page to the end of another: top, height."""
    ends = f"[document.getElementById('{first}'), document.getElementById('{last}')]"
    top, end = browser.js(f"(([a, b]) => [a.getBoundingClientRect().top + scrollY,"
                          f" b.getBoundingClientRect().bottom + scrollY])({ends})")  # fmt: skip
    return float(top), float(end) - float(top)


def pictures(browser: Browser, folder: Path) -> dict[str, bytes]:
    """The PNGs by name."""
    one, every = page_of(folder / "one"), page_of(folder / "all", "--gpu", "all")
    browser.open(one, DESKTOP_PX)
    _, why = part(browser, "what", "why")
    top, _ = part(browser, "what", "what")
    found = {"report.png": browser.picture(DESKTOP_PX, 0, top + why)}
    browser.open(one, PHONE_PX, phone=True, scale=PHONE_SCALE)
    found["report_phone.png"] = browser.picture(PHONE_PX, 0, PHONE_TALL_PX)
    browser.open(every, DESKTOP_PX)
    found["report_front.png"] = browser.picture(DESKTOP_PX, *part(browser, "machine", "machine"))
    return found


def main(folder: str = "docs") -> None:
    """Write them, and say how large they are."""
    with tempfile.TemporaryDirectory() as scratch:
        with closing(Browser(Path(scratch) / "profile")) as browser:
            found = pictures(browser, Path(scratch))
        for name, data in found.items():
            path = ROOT / folder / name
            path.write_bytes(data)
            print(f"{path}: {len(data) / 1000:.0f} kB")


if __name__ == "__main__":
    main(*sys.argv[1:])
