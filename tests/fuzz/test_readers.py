"""Whatever is read, damage is an error in words: a sample of `python -m bench.fuzz`."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.fuzz.__main__ import counts
from bench.fuzz.readers import READERS
from bench.fuzz.tried import try_reader

BOTH = {"jobs", "logs", "run folders", "command lines"}  # where some damage does no harm


@cache
def sample() -> dict[str, int]:
    return counts(list(READERS), 2000)


@pytest.mark.parametrize("name", READERS)
def test_no_damaged_input_ends_in_a_traceback_or_hangs(name: str) -> None:
    found = try_reader(READERS[name](), seed=1, numbers=range(sample()[name]))
    assert found.inputs == sample()[name]
    assert found.tracebacks == []
    assert found.hangs == []
    if name in BOTH:
        assert found.read
        assert found.refused


def test_an_input_is_drawn_the_same_wherever_it_is_drawn(tmp_path: Path) -> None:
    from random import Random

    reader = READERS["jobs"]()
    drawn = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        drawn.append(reader.draw(Random("jobs/1/7"), tmp_path / name))  # noqa: S311 - no secret
    assert drawn[0] == drawn[1]


def test_a_reader_that_raises_or_waits_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    from bench.fuzz import tried
    from bench.fuzz.reading import Reader

    monkeypatch.setattr(tried, "WALL_S", 0.05)
    broken = Reader("broken", lambda *_: "it", lambda _: 1 / 0)
    assert [each.what for each in try_reader(broken, 1, [0]).tracebacks] == [
        "ZeroDivisionError: division by zero"
    ]
    waiting = Reader("waiting", lambda *_: "it", lambda _: _wait())
    assert len(try_reader(waiting, 1, [0]).hangs) == 1


def _wait() -> None:
    import signal

    while True:
        signal.pause()
