"""Every pinned command prints and writes what was recorded; `python -m bench.pins` records anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from autotune.probe.record import read_records
from autotune.search.measured import prior as past
from bench.pins.cases import PINS, cases, pins
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


WRITTEN = PINS / "written_at_cda109b"
REFUSED = {"resume", "resume-a100"}  # a study goes on under the version that began it


@pytest.mark.parametrize("line", cases()["earlier"].lines)
def test_run_folders_and_prices_of_an_earlier_version_are_read(line: str) -> None:
    told = (GOLDEN / "earlier" / line / "command.txt").read_text(encoding="utf-8")
    error = GOLDEN / "earlier" / line / "stderr.txt"
    if line in REFUSED:
        assert "holds a run of an earlier version of autotune" in error.read_text(encoding="utf-8")
    else:
        assert told.endswith(("exit code 0\n", "exit code 4\n"))


def test_probes_of_an_earlier_version_are_read() -> None:
    for path in (WRITTEN / "home" / "autotune", WRITTEN / "runs" / "probed"):
        found = read_records(path / "probes.jsonl")
        assert [record.status for record in found] == ["ok"] * len(found)
        assert {record.config["precision"] for record in found} == {"fp32", "bf16"}


def test_residuals_of_an_earlier_version_are_read() -> None:
    (path,) = (WRITTEN / "home" / "autotune" / "residuals").iterdir()
    kept, damaged = past._read(path)
    assert not damaged
    assert {entry["part"] for entry in kept.observed} >= {"compute", "data"}


def test_verified_runs_of_an_earlier_version_teach_later_answers() -> None:
    told = (GOLDEN / "earlier" / "learned" / "stdout.txt").read_text(encoding="utf-8")
    assert "2 verified runs" in told  # the one that was kept then, and the one verified before it
