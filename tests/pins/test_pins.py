"""Every pinned command prints and writes what was recorded; `python -m bench.pins` records anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.pins.cases import cases, pins
from bench.pins.golden import GOLDEN, differences, play

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the cases of the chosen tests do now, all typed in one process."""
    calls = [getattr(item, "callspec", None) for item in request.session.items]
    asked = [call.params.get("pin", "") for call in calls if call is not None]
    chosen = {pin.partition("/")[0] for pin in asked}
    out = tmp_path_factory.mktemp("pins")
    play([name for name in cases() if name in chosen], out)
    return out


@pytest.mark.parametrize("pin", pins())
def test_a_command_prints_and_writes_what_was_recorded(pin: str, played: Path) -> None:
    changed = differences(pin, played)
    assert not changed, f"{pin}: python -m bench.pins records what stands now\n{changed}"


def test_every_pin_is_recorded_and_nothing_else() -> None:
    recorded = {path.parent.relative_to(GOLDEN).as_posix() for path in GOLDEN.rglob("command.txt")}
    assert recorded == set(pins())
