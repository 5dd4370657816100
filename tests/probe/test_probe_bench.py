"""`bench.probe --beside`: two checkouts take turns, and what their figures mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.probe import beside as probe_beside

if TYPE_CHECKING:
    from pathlib import Path

OTHER = """
from types import SimpleNamespace
CONFIG = WHOLE = STEPS_ONLY = None
said = iter(range(100))
def small_job(): return SimpleNamespace(offers=[None])
def request_for(job, offer, config, effort=None): return {}
def parts_s(record): return {"window": 1.0, "import": {IMPORT}}
class Bench:
    def __init__(self, folder): pass
    def __enter__(self): return self
    def __exit__(self, *error): pass
    def probe(self, request):
        step = {"step_s": 0.25, "cpu_s": 0.5}
        return SimpleNamespace(wall_s=1.0 + {BEYOND} * (next(said) or 10), result={"step": step})
    def plain(self, request): return {"step_s": 0.125, "cpu_s": 0.5}
"""


def checkout(at: Path, beyond: float) -> Path:
    (at / "bench").mkdir(parents=True)
    (at / "bench" / "__init__.py").write_text("")
    text = OTHER.replace("{IMPORT}", "0.5").replace("{BEYOND}", str(beyond))
    (at / "bench" / "probe.py").write_text(text)
    return at


def test_two_checkouts_take_turns_and_the_first_run_of_each_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_beside, "ROOT", checkout(tmp_path / "here", 0.25))
    found = probe_beside.measure(checkout(tmp_path / "there", 1.0), 2)
    here, there = found["here"], found["there"]
    assert here["first_s"] == 2.5, "ten times as much"
    assert there["first_s"] == 10.0
    assert here["beyond_window_s"] == 0.25 * 3, "whole probes are every second one"
    assert found["here_over_there"] == 0.25
    assert there["over_plain"]["wall"]["ratio"] == 2.0
    assert there["over_plain"]["cpu"]["ratio"] == 1.0
    said = "\n".join(probe_beside.lines(found))
    assert "here over there: 0.25" in said
    assert "first_s                    2.50    10.00" in said


def test_a_checkout_that_ends_instead_of_answering_says_so(tmp_path: Path) -> None:
    root = checkout(tmp_path / "there", 1.0)
    (root / "bench" / "probe.py").write_text("raise SystemExit(3)\n")
    other = probe_beside.Checkout(root, tmp_path / "home")
    with pytest.raises(RuntimeError, match="ended with 3"):
        other.turn("whole")
