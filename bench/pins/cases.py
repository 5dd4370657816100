"""The commands that are pinned, as tests/pins/commands.toml lists them, and their folders."""

from __future__ import annotations

import os
import shutil
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[2]
PINS = ROOT / "tests" / "pins"
OWN = ROOT / "tests" / "trainers" / "own"
LENGTH = 48  # [letters] of the folder of a case on every machine: lines break where they broke
TOKEN = "/folder/of/this/case".ljust(LENGTH, ".")  # stands for that folder in what is recorded
STATE = "trainer_state.json"
EVERY, DONE = 50, 1200  # [steps] of the run that is half-way
BEGUN = 1.7e9  # [s] since 1970


@dataclass(frozen=True)
class Case:
    """Lines by the name of their pin, and what lies in the folder beside `jobs`.

    inputs: names in tests/pins/inputs. whole: files of more than a screen are pinned line by
    line, else by their hash. earlier: the commit at which the run folders and the store of
    user-level state were written that the folder begins with. checkpoints: [s] between those of a
    run that is half-way; 0 is none.
    """

    lines: Mapping[str, str]
    inputs: tuple[str, ...] = ()
    whole: bool = False
    earlier: str = ""
    checkpoints: float = 0.0

    def furnish(self, here: Path) -> None:
        """Lay out what the lines name."""
        shutil.copytree(ROOT / "jobs", here / "jobs")
        for name in self.inputs:
            source = OWN if name == "own" else PINS / "inputs" / name
            if source.is_dir():
                shutil.copytree(source, here / name)
            else:
                shutil.copy(source, here / name)
        if self.earlier:
            self._lay(PINS / f"written_at_{self.earlier}", here)
        for script in here.glob("own/*_script.txt"):
            script.rename(script.with_suffix(".py"))

    @staticmethod
    def _lay(written: Path, here: Path) -> None:
        """Files of an earlier version, as if they had been written here."""
        shutil.copytree(written, here, dirs_exist_ok=True)
        for path in written.rglob("*"):
            if path.is_file():
                text = path.read_text(encoding="utf-8").replace(TOKEN, str(here))
                (here / path.relative_to(written)).write_text(text, encoding="utf-8")

    def train_half_way(self, here: Path) -> None:
        """Write the checkpoints of a run, dated as they would have been."""
        text = (PINS / "inputs" / "logs" / "half_way.json").read_text(encoding="utf-8")
        for step in range(EVERY, DONE + 1, EVERY) if self.checkpoints else ():
            state = here / "output" / f"checkpoint-{step}" / STATE
            state.parent.mkdir(parents=True)
            state.write_text(text.replace(f'"global_step": {DONE}', f'"global_step": {step}'))
            written = BEGUN + step / EVERY * self.checkpoints
            os.utime(state, (written, written))


@cache
def cases() -> dict[str, Case]:
    """Every case by its name, in the order of the file."""
    text = (PINS / "commands.toml").read_text(encoding="utf-8")
    return {
        name: Case(found["lines"], tuple(found.get("inputs", ())), found.get("whole", False),
                   found.get("earlier", ""), float(found.get("checkpoints", 0)))
        for name, found in tomllib.loads(text).items()
    }  # fmt: skip


def pins() -> list[str]:
    """Every pin, as CASE/LINE."""
    return [f"{name}/{line}" for name, case in cases().items() for line in case.lines]
