"""What else today's measured time may mean: the readings, what each implies, and what decides.

Two looks cost nothing: the shape of a batch and the arguments that the script really passes. What
they leave open is left to a probe, the cheapest configuration whose measured parts differ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from autotune.cost.model import CostModel
from autotune.cost.work import knob_values
from autotune.domain.candidates import Candidates
from autotune.domain.errors import InputError
from autotune.domain.units import format_seconds
from autotune.domain.waterfall import Competing, DecidingCheck, MeasuredGap
from autotune.evidence.calibrate import TIMES
from autotune.evidence.explanations import predicted_seconds
from autotune.evidence.readings import AS_STATED, OTHER_CONFIG, padded_tokens, readings_of
from autotune.evidence.reference import reference_of
from autotune.search.axes import ParameterSpace
from autotune.search.billed import BilledCandidates
from autotune.search.deciding import deciding_probe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.cost.columns import FloatArray
    from autotune.cost.model import Bill
    from autotune.domain.job import Job
    from autotune.domain.outcome import Estimated
    from autotune.domain.space import SearchSpace
    from autotune.evidence.readings import Reading
    from autotune.evidence.reference import Reference

PROBE_STEPS = 30  # optimizer steps: enough for a median behind the first, slow ones
SHAPES_ALIKE = 1.1  # batch sizes closer than this look the same in a handful of batches
ARGUMENTS = ("attention", "activation_checkpointing", "micro_batch_size", "precision",
             "gradient_accumulation_steps", "num_dataloader_workers")  # fmt: skip
NEEDED = 2  # readings: fewer need no decision


@dataclass(frozen=True, slots=True)
class _Told:
    """What one reading shows under one check, as text and as something to compare."""

    text: str
    values: tuple[object, ...]


def measured_gaps(job: Job, space: SearchSpace, pick: Estimated) -> tuple[MeasuredGap, ...]:
    """One entry for each time that was measured of today's run."""
    found = []
    for observation in job.evidence:
        if not observation.today or observation.quantity not in TIMES:
            continue
        reference = reference_of(job, observation)
        if reference is not None and not reference.elsewhere:
            gap = _gap(reference, job, space, pick)
            if gap is not None:
                found.append(gap)
    return tuple(found)


def _gap(reference: Reference, job: Job, space: SearchSpace, pick: Estimated) -> MeasuredGap | None:
    readings = readings_of(reference, _price)
    if not readings:
        return None
    told = tuple(_competing(reading, reference, pick) for reading in readings)
    standing = {_key(reading, i): reading for i, reading in enumerate(readings) if reading.open}
    checks = _checks(standing, reference, job, space) if len(standing) >= NEEDED else ()
    return MeasuredGap(reference.observation.id, readings[0].measured_s, told, checks)


def _price(job: Job, candidates: Candidates) -> Bill:
    return CostModel(job).price(candidates)


def _key(reading: Reading, number: int) -> str:
    """A name of its own: two readings may be of one kind."""
    return reading.name if reading.name != "micro_batch" else f"micro_batch {number}"


def _competing(reading: Reading, stated: Reference, pick: Estimated) -> Competing:
    """What a reading implies: of today's run once its cause is gone, and of the pick."""
    calibration = reading.calibration

    def at(job: Job, candidates: Candidates) -> Bill:
        return CostModel(job, calibration).price(candidates)

    fixed = None
    if reading.open and reading.name not in {AS_STATED, OTHER_CONFIG, "lengths"}:
        fixed = predicted_seconds(stated, stated.bill(at))
        if fixed is not None and fixed >= reading.measured_s:
            fixed = None
    job = replace(
        reading.reference.job,
        steps=stated.job.steps,
        global_batch_size=stated.job.global_batch_size,
    )
    there = at(job, Candidates.of([(pick.offer, pick.config)]))
    return Competing(
        name=reading.name,
        text=reading.text,
        predicted_s=reading.predicted_s,
        efficiency=reading.factor,
        peak_share=reading.share,
        verdict=reading.verdict,
        fixed_s=fixed,
        pick_s=float(there.duration_s[0]) if reading.open else None,
    )


def _checks(
    standing: dict[str, Reading], reference: Reference, job: Job, space: SearchSpace
) -> tuple[DecidingCheck, ...]:
    """Checks that tell something apart, the cheapest first; a probe only for what is left."""
    free = [
        _look(
            "arguments",
            "print the training arguments that the script really passes "
            "(attention, checkpointing, batch, accumulation, workers)",
            {name: _arguments(reading) for name, reading in standing.items()},
        ),
        _look(
            "batch shape",
            "print input_ids.shape of ten batches of the training script's loader; it needs no GPU",
            {name: _shape(reading) for name, reading in standing.items()},
        ),
    ]
    useful = sorted((c for c in free if c.tells_apart), key=lambda c: -len(c.tells_apart))
    left = _left(standing, useful)
    if left:
        among = {name: standing[name] for name in standing if any(name in pair for pair in left)}
        probe = _probe(among, reference, job, space)
        if probe is not None:
            useful.append(probe)
    return tuple(useful)


def _left(standing: dict[str, Reading], checks: Sequence[DecidingCheck]) -> list[tuple[str, str]]:
    told = {pair for check in checks for pair in check.tells_apart}
    return [pair for pair in combinations(standing, 2) if pair not in told]


def _look(name: str, text: str, shown: dict[str, _Told]) -> DecidingCheck:
    """A look at the user's own script: free, and as sharp as what differs in it."""
    pairs = list(combinations(shown, 2))
    apart = [pair for pair in pairs if _differ(shown[pair[0]].values, shown[pair[1]].values)]
    return DecidingCheck(
        name, text, 0.0, 0.0, {key: told.text for key, told in shown.items()},
        tuple(apart), tuple(pair for pair in pairs if pair not in apart),
    )  # fmt: skip


def _differ(left: tuple[object, ...], right: tuple[object, ...]) -> bool:
    for one, other in zip(left, right, strict=True):
        if isinstance(one, float) and isinstance(other, float):
            if max(one, other) > SHAPES_ALIKE * min(one, other):
                return True
        elif one != other:
            return True
    return False


def _shape(reading: Reading) -> _Told:
    rows = reading.reference.config.micro_batch_size
    tokens = padded_tokens(reading.reference)
    steady = reading.reference.job.padding == "max_length"
    text = f"({rows}, {tokens:.0f})" + (" every time" if steady else " on average")
    return _Told(text, (rows, tokens))


def _arguments(reading: Reading) -> _Told:
    knobs = reading.reference.config.as_dict()
    values = tuple(knobs[name] for name in ARGUMENTS)
    text = ", ".join(f"{name} {knobs[name]}" for name in ARGUMENTS[:3])
    return _Told(text, values)


def _probe(
    standing: dict[str, Reading], reference: Reference, job: Job, space: SearchSpace
) -> DecidingCheck | None:
    """The cheapest configuration of the user's own script whose measured parts would differ."""
    from autotune.space.enumerate import enumerate_candidates

    here = replace(reference.job, offers=(reference.offer,), lock={}, today=None)
    try:
        candidates = enumerate_candidates(here, space).candidates
    except InputError:
        return None
    models: dict[str, BilledCandidates] = {}
    parameters = ParameterSpace(candidates)
    for name, reading in standing.items():
        believed = replace(
            here, padding=reading.reference.job.padding, lengths=reading.reference.job.lengths
        )
        bill = CostModel(believed, reading.calibration).price(candidates)
        models[name] = BilledCandidates(bill, parameters, "cost")
    bill = next(iter(models.values())).bill
    if not len(bill):
        return None
    seconds = _probe_seconds(bill)
    dollars = seconds / 3600.0 * reference.offer.usd_per_hour
    everywhere = np.logical_and.reduce([model.bill.feasible for model in models.values()])
    found = deciding_probe(models, seconds, everywhere)
    if found is None:
        return None
    config = bill.candidates.config(found.index, checkpoint_every_steps=1, save_total_limit=1,
                                    gradient_accumulation_steps=1)  # fmt: skip
    per_device = job.global_batch_size // reference.offer.count
    text = (
        f"run {PROBE_STEPS} steps of the training script on {reference.offer.label} with "
        f"micro-batch {config.micro_batch_size}, accumulation "
        f"{max(per_device // config.micro_batch_size, 1)}, compile {config.compile}, "
        f"activation checkpointing {config.activation_checkpointing}, and time a step"
    )
    return DecidingCheck(
        "probe", text, float(seconds[found.index]), float(dollars[found.index]),
        {name: f"{format_seconds(parts['compute'])} a step" for name, parts in found.shows.items()},
        found.told_apart, found.together,
    )  # fmt: skip


def _probe_seconds(bill: Bill) -> FloatArray:
    """[s] load, compile, `PROBE_STEPS` steps and one save of every candidate."""
    once = bill.tables["startup"].gather("load_s") + bill.tables["startup"].gather("compile_s")
    save: FloatArray = bill.tables["checkpoint"].gather("save_s")
    simpler = 1e-6 * knob_values(bill.candidates, "num_dataloader_workers")  # of equals, fewer
    found: FloatArray = once + PROBE_STEPS * bill.step_s + save + simpler
    return found
