"""The question of `tune` as it is priced: candidates, their bill, its notes; and whose run it is.

Not here: which candidate is best and what is told of it (`answer`), and the run itself (`tune`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.app.hardware.price_notes import price_notes
from autotune.app.runs import folder as runs
from autotune.app.tune.method_notes import method_notes, silent_note
from autotune.app.whatif.levers import last_resort
from autotune.domain.errors import unknown
from autotune.domain.units import format_count
from autotune.frozen import dataclass
from autotune.pricing import Pricing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from autotune.app.probing.plan import ProbeOptions
    from autotune.cost.bill import Bill
    from autotune.domain.answer.recommendation import Asked
    from autotune.domain.candidates import SearchSpace
    from autotune.domain.config import KnobValue
    from autotune.domain.job import Job
    from autotune.domain.observation import Calibration
    from autotune.search.selection import Objective
    from autotune.space.enumerate import Enumeration

CHOICES = {  # words that the command line lists; a program may give any
    "objective": ("cost", "time"),
    "fidelity": ("auto", "formula", "trace"),
    "score": ("model", "probe"),
    "hours": ("model", "stated"),
}


def check_choices(**chosen: str | None) -> None:
    """Raises InputError for a word that is none of its option's; None chooses nothing."""
    for option, word in chosen.items():
        known = CHOICES[option]
        if word is not None and word not in known:
            raise unknown(option, str(word)[:80], known, f"{option} is one of {', '.join(known)}")


@dataclass(frozen=True, slots=True)
class Options:
    """How to tune: what is minimised, who proposes, where the run is kept."""

    space: str | None = None
    objective: Objective = "cost"
    sampler: str = "calibrated"
    trials: int = 100
    seed: int = 0
    run_dir: Path | None = None
    resume: bool = False
    storage: str | None = None
    exports: tuple[str, ...] = ()
    fidelity: str = "auto"
    trust_remote_code: bool = False
    score: str = "model"
    dry_run: bool = False
    probing: ProbeOptions | None = None  # with score probe: how much may be probed, and where
    present: tuple[tuple[str, KnobValue], ...] = ()  # levels of own knobs, where not the first
    asked: Asked | None = None  # the command line, to name what to type next
    usual: frozenset[str] = frozenset()  # of sampler and seed: those that nobody stated


@dataclass(frozen=True, slots=True)
class Priced:
    """Everything the answer is made of, before it is made."""

    job: Job
    space: SearchSpace
    found: Enumeration
    bill: Bill
    calibration: Calibration
    warnings: tuple[str, ...]
    asked: Job  # the job before anything was opened because nothing fitted


def price(
    job: Job,
    space_name: str | None,
    progress: Callable[[str], None],
    *,
    present: Mapping[str, KnobValue] | None = None,
    measured: bool = False,
) -> Priced:
    """Every candidate of a job under what its evidence teaches.

    Where nothing fits, a closed knob that only costs time is opened.

    space_name: shipped, or a file; None: the default. present: levels of own knobs, where they are
    not the first. measured: probes try what the cost model cannot tell apart.
    """
    from autotune.space.enumerate import enumerate_candidates
    from autotune.space.file import load_space, with_present

    space = with_present(load_space(space_name), present or {})
    found = enumerate_candidates(job, space)
    progress(f"pricing {format_count(len(found.candidates))} candidates")
    pricing = Pricing.learned(job)
    calibration = pricing.calibration
    bill = pricing.bill(found.candidates)
    asked = job
    opened = None if bill.feasible.any() else last_resort((job, space), calibration)
    if opened is not None:
        job, _ = opened
        found = enumerate_candidates(job, space)
        bill = pricing.variant(job).bill(found.candidates)
    notes = [
        *found.warnings,
        *pricing.warnings,
        *price_notes(job),
        *method_notes(job),
        *silent_note(job),
    ]
    if space_name is not None:
        notes += [
            f"{name} {', '.join(map(str, values))} is in the space, but needs --allow {name}"
            for name, values in found.opt_in_ignored.items()
        ]
    if space.extra and not measured:
        levels = ((name, str(values[0])) for name, values in space.extra.items())
        shown = ", ".join(f"{name} {level}" for name, level in levels)
        notes.append(
            "the cost model does not know extra knobs and prices all their values alike: each "
            f"stays as it is today ({shown}); --score probe measures the others"
        )
    if not job.lengths.known:
        notes.append(
            "row lengths are unknown: every row is counted at max_length, an upper bound for time"
        )
    return Priced(job, space, found, bill, calibration, tuple(notes), asked)


def asked_of(priced: Priced, options: Options, *how: str) -> runs.Identity:
    """The job with the question that a run folder answers. how: it is scored, if not priced."""
    own = options.space is not None and Path(options.space).is_absolute()
    space = repr((priced.space.values, priced.space.extra)) if own else ""
    by = {"sampler": options.sampler, "seed": options.seed}
    question = options.space or "", options.objective, *how
    return runs.Identity(priced.job, question, space, proposed_by=by)


def as_begun(
    asked: runs.Identity, priced: Priced, options: Options, folder: Path | None
) -> tuple[runs.Identity, Priced, Options]:
    """The same, with the sampler and the seed of the run that goes on, unless others are stated.

    folder: of the run. Others are noted in the answer.
    """
    if not options.resume or folder is None or not runs.is_run(folder):
        return asked, priced, options
    begun = runs.load_record(folder).proposed_by
    kept = {name: begun[name] for name in options.usual if name in begun}
    options = replace(options, **kept)
    asked = replace(asked, proposed_by={**asked.proposed_by, **kept})
    other = [
        f"--{name} {asked.proposed_by[name]} from here on; before it was {value}"
        for name, value in begun.items()
        if asked.proposed_by[name] != value
    ]
    return asked, replace(priced, warnings=(*priced.warnings, *other)), options


def run_dir_of(asked: runs.Identity, options: Options) -> Path | None:
    """The folder of this run: the stated one, or that of the run to go on with; None: a new one."""
    if options.run_dir is not None:
        return options.run_dir
    if not options.resume:
        return None
    from autotune.app.runs.find import to_resume

    return to_resume(asked)
