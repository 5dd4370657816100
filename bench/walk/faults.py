"""Defects that the product had, each as a change of its source that puts it back.

`python -m bench.walk --fault NAME` (or all) applies one to a copy of the package and walks the legs
that lead to it; the walk must fail there. The texts are those of the source today: a test asserts
that each still applies.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.walk.legs import LEGS, ROOT, Walk
from bench.walk.terminal import WalkError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

WIDTH = 100  # [characters] of what a leg said, in the table


@dataclass(frozen=True, slots=True)
class Change:
    """Text that stands once in the package, wherever that is, and what stands there instead."""

    now: str
    instead: str


@dataclass(frozen=True, slots=True)
class Fault:
    """A defect: what a user met, the legs that lead to it, and what the last of them says.

    says: part of that leg's message, so that the walk fails for this reason and no other.
    """

    what: str
    legs: tuple[str, ...]
    says: str
    changes: tuple[Change, ...]


# A processor that the cost model knows badly, so that the model's figure is not the measured one.
_FAR_OFF = Change("\nPROCESSOR_ISSUE = 0.4", "\nPROCESSOR_ISSUE = 40.0")
# Rows that take a second each, so that the model has every run bound by its data.
_SLOW_ROWS = Change("\nROW_S = 150e-6", "\nROW_S = 1.0")

FAULTS: dict[str, Fault] = {
    "relative_run": Fault(
        "measured mode crashes in its default folder, as in every relative one",
        ("probe",),
        "probes broke",
        (
            Change(
                'return whole(os.environ.get("AUTOTUNE_RUNS") or "runs")',
                'return Path(os.environ.get("AUTOTUNE_RUNS") or "runs")',
            ),
            Change(
                "place = replace(place, folder=whole(place.folder))",
                "place = replace(place)",
            ),
        ),
    ),
    "script_needs_evaluation": Fault(
        "run.sh cannot run as it is: it asks for EVAL_DATA",
        ("smoke",),
        "EVAL_DATA",
        (Change('"  EVAL_DATA=none",', '"  stop EVAL_DATA",'),),
    ),
    "no_byte_tokenizer": Fault(
        "run.sh cannot run as it is: the byte tokenizer is not exported",
        ("smoke",),
        "run.sh",
        (
            Change(
                "if plan.tokenizer == BYTES else {}",
                "if plan.tokenizer is BYTES and not BYTES else {}",
            ),
            Change("if plan.tokenizer == BYTES:", "if not BYTES:"),
            Change("if plan.tokenizer is None:", "if BYTES:"),
        ),
    ),
    "smoke_refused": Fault(
        "verify refuses run.sh's own smoke run as a log of another job",
        ("smoke",),
        "is of another job",
        (
            Change(
                "job, smoke = counted.job, _smoke(counted, log)", "job, smoke = counted.job, None"
            ),
        ),
    ),
    "no_prediction_on_cpu": Fault(
        "a plan for this machine's processor has no prediction",
        ("smoke",),
        "the run is on the CPU",
        (Change("        if here:\n            return here[0]\n", ""),),
    ),
    "store_by_path": Fault(
        "what verify learned does not reach the next tune: a model is known by the path as typed",
        ("smoke", "learn"),
        "is not mentioned by the next tune",
        (
            Change(
                'shape = replace(self, name="", source="", hf_config="",',
                'shape = replace(self, name="", hf_config="",',
            ),
            Change("folder = whole(base_dir)", "folder = Path(base_dir)"),
            Change(
                "path = stated_in(base_dir or Path(), wanted)",
                "path = (base_dir or Path()) / Path(wanted).expanduser()",
            ),
        ),
    ),
    "noise_as_fact": Fault(
        "what was measured on a busy machine is taken as fact",
        ("busy",),
        "own pace",
        (
            Change(
                "    return why\n\n\ndef unexplained",
                "    return []\n\n\ndef unexplained",
            ),
        ),
    ),
    "steps_as_modelled": Fault(
        "a measured answer says what all steps take by the model, beside a bill that was measured",
        ("probe",),
        "all steps are said to take",
        (
            _FAR_OFF,
            Change(
                "modelled = Pricing(priced.job, priced.calibration)",
                "modelled = Pricing(priced.job)",
            ),
            Change(
                "    found |= explain.derived_reasons(bill.job, best.row)\n",
                "    found |= explain.derived_reasons(bill.job, bill.estimate(best.index))\n",
            ),
        ),
    ),
    "bound_as_modelled": Fault(
        "a measured answer says what it is bound by as the model had it",
        ("probe",),
        "bound by",
        (
            _SLOW_ROWS,
            Change(
                '"bound_by": bound_of(parts, row.step_bound),',
                '"bound_by": row.bound_by,',
            ),
        ),
    ),
    "budget_as_left": Fault(
        "a budget for probes is reported as another than was asked for",
        ("probe",),
        "a probe budget of",
        (
            Change(
                "probe_budget_s=(options.probing or ProbeOptions()).seconds,",
                "probe_budget_s=(options.probing or ProbeOptions()).seconds * 0.5,",
            ),
        ),
    ),
    "script_needs_its_folder": Fault(
        "run.sh depends on the folder that it is called from",
        ("smoke",),
        "run.sh",
        (
            Change(
                "return str(folder) if folder else self.job.model.name",
                'return __import__("os").path.relpath(folder or self.job.model.name)',
            ),
        ),
    ),
    "bytes_as_tokens": Fault(
        "dataset FILE counts bytes as tokens unless told otherwise",
        ("rows",),
        "counts",
        (
            Change(
                "if tokenizer.vocabulary is not None:\n        found",
                "if not tokenizer:\n        found",
            ),
        ),
    ),
    "fits_beside_an_alarm": Fault(
        "it fits with a probability over 0.99, and its cache would fill the memory",
        ("one_line",),
        "contradicts itself",
        (
            Change(
                "return np.minimum(probability, most)",
                "return np.minimum(probability, most + 1.0)",
            ),
            Change(
                "if fits and row.crowded:",
                'if row.verdict == "crowded":',
            ),
        ),
    ),
}


def changed(sources: Mapping[Path, str], changes: Iterable[Change]) -> dict[Path, str]:
    """The files that the changes touch, with them. Raises ValueError where one is not at one place.

    sources: a package's text by file.
    """
    found: dict[Path, str] = {}
    for change in changes:
        places = {
            path: count
            for path, text in sources.items()
            if (count := found.get(path, text).count(change.now))
        }
        if list(places.values()) != [1]:
            msg = f"{change.now!r} stands {sum(places.values())} times in the package"
            raise ValueError(msg)
        (path,) = places
        found[path] = found.get(path, sources[path]).replace(change.now, change.instead)
    return found


def sources_of(package: Path) -> dict[Path, str]:
    """The text of every module below a folder."""
    return {path: path.read_text(encoding="utf-8") for path in sorted(package.rglob("*.py"))}


def put_back(fault: Fault, package: Path) -> None:
    """A copy of the package with the defect in it, below `package`."""
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("autotune", "search_spaces"):
        shutil.copytree(ROOT / name, package / name, ignore=ignored)
    for path, text in changed(sources_of(package / "autotune"), fault.changes).items():
        path.write_text(text, encoding="utf-8")


def try_fault(fault: Fault, probes: int) -> tuple[str, str]:
    """The leg at which the walk failed, and what it said; two empty texts where it did not."""
    with tempfile.TemporaryDirectory(prefix="autotune fault ", ignore_cleanup_errors=True) as top:
        package = Path(top) / "package"
        put_back(fault, package)
        walk = Walk(Path(top) / "walk", package, probes)
        for leg in fault.legs:
            try:
                LEGS[leg](walk)
            except WalkError as wrong:
                return leg, str(wrong)
    return "", ""


def try_faults(name: str, probes: int) -> int:
    """Zero where the named fault, or each of all, is caught where and as it should be."""
    if name != "all" and name not in FAULTS:
        print(f"no fault {name}: it is one of all, {', '.join(FAULTS)}", file=sys.stderr)
        return 2
    missed = 0
    for each in FAULTS if name == "all" else [name]:
        fault, begun = FAULTS[each], time.monotonic()
        leg, said = try_fault(fault, probes)
        caught = leg == fault.legs[-1] and fault.says in said
        missed += not caught
        verdict = "caught" if caught else "MISSED"
        print(f"{each:<24} {verdict} {leg or 'nowhere':<9} {time.monotonic() - begun:6.1f} s")
        print(f"    {fault.what}")
        print(f"    {_line_with(fault.says, said)}", flush=True)
    return 1 if missed else 0


def _line_with(says: str, said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if says in line] or said.splitlines()
    return lines[0][:WIDTH] if lines else "the walk holds"
