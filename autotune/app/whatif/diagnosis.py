"""What else today's measured time may mean: the readings, what each implies, and what decides.

Three looks cost nothing: the shape of a batch, the arguments that the script really passes, and the
times of a checkpoint's files. What they leave open is left to a probe, the cheapest configuration
whose measured parts differ.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from autotune.app.whatif.hypotheses import AS_STATED, OTHER_CONFIG, hypotheses_of, padded_tokens
from autotune.cost.run_time import knob_values
from autotune.domain.answer.waterfall import Competing, DecidingCheck, MeasuredGap
from autotune.domain.candidates import OFFER, Candidates
from autotune.domain.errors import InputError
from autotune.domain.observation import TIMES
from autotune.domain.units import HOUR_S, format_seconds
from autotune.evidence.explanations import predicted_seconds
from autotune.evidence.reference import reference_of
from autotune.frozen import dataclass
from autotune.pricing import Pricing, plain_bill
from autotune.search.axes import ParameterSpace
from autotune.search.billed import BilledCandidates
from autotune.space.rules import violations

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.app.whatif.hypotheses import Hypothesis
    from autotune.cost.bill import Bill
    from autotune.cost.columns import BoolArray, FloatArray
    from autotune.domain.candidates import SearchSpace
    from autotune.domain.job import Job
    from autotune.domain.outcome import Estimated
    from autotune.evidence.reference import Reference
    from autotune.search.priced import Priced

Z95 = 1.96
MEMORY_FREE = ("memory",)  # explanations of a time say nothing about memory


@dataclass(frozen=True, slots=True)
class Deciding:
    """A probe and what it tells apart.

    told_apart: pairs of explanations; together: pairs that this probe leaves open. shows: for each
    explanation, what the probe would measure, by part.
    """

    index: int
    told_apart: tuple[tuple[str, str], ...]
    together: tuple[tuple[str, str], ...]
    shows: dict[str, dict[str, float]]


def deciding_probe(
    explanations: Mapping[str, Priced], cost: FloatArray, fits: BoolArray | None = None
) -> Deciding | None:
    """The cheapest candidate whose measured parts would differ under every two explanations.

    explanations: name -> the cost model under that belief, all over the same candidates. cost: [n]
    of a probe. fits: [n] candidates that may be probed; all when left out. Two explanations are
    told apart where the log ratio of a part exceeds 1.96 sd of a measurement's noise from the
    middle between them, on either side. Where no candidate decides, the one that tells most pairs
    apart, the cheapest of those; None when none tells anything.
    """
    pairs = list(combinations(explanations, 2))
    apart = np.stack([_apart(explanations[a], explanations[b]) for a, b in pairs])
    allowed = np.ones(len(cost), np.bool_) if fits is None else fits
    count = np.where(allowed, apart.sum(axis=0), 0)
    if not count.any():
        return None
    at = np.flatnonzero(count == count.max())
    index = int(at[np.argmin(cost[at])])
    return Deciding(
        index=index,
        told_apart=tuple(p for p, row in zip(pairs, apart, strict=True) if row[index]),
        together=tuple(p for p, row in zip(pairs, apart, strict=True) if not row[index]),
        shows={
            name: {
                part.name: float(part.predicted[part.row_of[index]])
                for part in model.parts
                if part.name not in MEMORY_FREE
            }
            for name, model in explanations.items()
        },
    )


def _apart(left: Priced, right: Priced) -> BoolArray:
    """[n] candidates at which some part would be measured differently under both."""
    others = {part.name: part for part in right.parts}
    found = np.zeros(len(left), np.bool_)
    for part in left.parts:
        if part.name in MEMORY_FREE or part.name not in others:
            continue
        other = others[part.name]
        one, two = part.predicted[part.row_of], other.predicted[other.row_of]
        both = (one > 0) & (two > 0)
        gap = np.abs(np.log(np.where(both, one, 1.0) / np.where(both, two, 1.0)))
        found |= (gap > 2.0 * Z95 * part.noise) | ((one > 0) != (two > 0))
    return found


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
    readings = hypotheses_of(reference, plain_bill)
    if not readings:
        return None
    told = tuple(_competing(reading, reference, pick) for reading in readings)
    standing = {_key(reading): reading for reading in readings if reading.open}
    checks = _checks(standing, reference, job, space) if len(standing) >= NEEDED else ()
    return MeasuredGap(reference.observation.id, readings[0].measured_s, told, checks)


def _key(reading: Hypothesis) -> str:
    """A name of its own: several micro-batches may be read into one measurement."""
    if reading.name != "micro_batch":
        return reading.name
    return f"micro_batch {reading.reference.config.micro_batch_size}"


def _competing(reading: Hypothesis, stated: Reference, pick: Estimated) -> Competing:
    """What a reading implies: of today's run once its cause is gone, and of the pick."""
    pricing = Pricing(stated.job, reading.calibration)
    fixed, there = None, None
    if reading.open and reading.name not in {AS_STATED, OTHER_CONFIG, "lengths"}:
        fixed = predicted_seconds(stated, pricing.price(stated.job, stated.candidates))
        if fixed is not None and fixed >= reading.measured_s:
            fixed = None
    job = replace(
        reading.reference.job,
        steps=stated.job.steps,
        global_batch_size=stated.job.global_batch_size,
    )
    runs = set(violations(job, pick.offer, pick.config)) <= set(
        violations(replace(job, padding=stated.job.padding), pick.offer, pick.config)
    )
    if reading.open and runs:
        there = pricing.variant(job).of([(pick.offer, pick.config)])
    return Competing(
        name=_key(reading),
        text=reading.text,
        predicted_s=reading.predicted_s,
        efficiency=reading.factor,
        peak_share=reading.share,
        verdict=reading.verdict,
        fixed_s=fixed,
        pick_s=None if there is None else float(there.duration_s[0]),
    )


def _checks(
    standing: dict[str, Hypothesis], reference: Reference, job: Job, space: SearchSpace
) -> tuple[DecidingCheck, ...]:
    """Looks that tell something apart, the sharpest first, and the probe that would decide.

    Each look tells what it and those before it leave open.
    """
    looks = (
        (
            "arguments",
            "print the training arguments that the script really passes",
            {name: _arguments(reading, standing) for name, reading in standing.items()},
        ),
        (
            "batch shape",
            "print input_ids.shape of ten batches of the script's loader (no GPU needed)",
            {name: _shape(reading) for name, reading in standing.items()},
        ),
        (
            "saves",
            "compare the times of the first and the last file of one checkpoint folder",
            {name: _save(reading) for name, reading in standing.items()},
        ),
    )
    free = [_look(*look) for look in looks]
    useful: list[DecidingCheck] = []
    open_pairs = tuple(combinations(standing, 2))
    for check in sorted(free, key=lambda c: -len(c.tells_apart)):
        left = tuple(pair for pair in open_pairs if pair not in check.tells_apart)
        if len(left) < len(open_pairs):
            useful.append(replace(check, leaves=left))
            open_pairs = left
    probe = _probe(standing, reference, job, space)
    return (*useful, probe) if probe is not None else tuple(useful)


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


def _shape(reading: Hypothesis) -> _Told:
    rows = reading.reference.config.micro_batch_size
    tokens = padded_tokens(reading.reference)
    steady = reading.reference.job.padding == "max_length"
    text = f"({rows}, {tokens:.0f})" + (" every time" if steady else " on average")
    return _Told(text, (rows, tokens))


def _save(reading: Hypothesis) -> _Told:
    """How long the run took to write one checkpoint."""
    return _Told(f"{format_seconds(reading.save_s)} a save", (reading.save_s,))


def _arguments(reading: Hypothesis, standing: dict[str, Hypothesis]) -> _Told:
    """The arguments in which any two readings differ."""
    configs = [other.reference.config.as_dict() for other in standing.values()]
    names = [name for name in ARGUMENTS if len({config[name] for config in configs}) > 1]
    knobs = reading.reference.config.as_dict()
    text = ", ".join(f"{name} {knobs[name]}" for name in names)
    return _Told(text, tuple(knobs[name] for name in names))


def _probe(
    standing: dict[str, Hypothesis], reference: Reference, job: Job, space: SearchSpace
) -> DecidingCheck | None:
    """The cheapest configuration whose step or save would be measured differently.

    A clean run of a known configuration shows how fast the kernels are, and each reading needs
    another speed of them to give what was measured.
    """
    from autotune.space.enumerate import enumerate_candidates

    here = replace(reference.job, offers=(reference.offer,), lock={}, today=None)
    try:
        candidates = enumerate_candidates(here, space).candidates
    except InputError:
        return None
    models: dict[str, _Timed] = {}
    parameters = ParameterSpace(candidates)
    for name, reading in standing.items():
        levels = {**candidates.levels, OFFER: (reading.reference.offer,)}
        there = Candidates(levels, candidates.codes)
        bill = Pricing(here, reading.calibration).bill(there)
        models[name] = _Timed(bill, parameters, "cost")
    bill = next(iter(models.values())).bill
    if not len(bill):
        return None
    seconds = _probe_seconds(bill)
    dollars = seconds / HOUR_S * reference.offer.usd_per_hour
    everywhere = np.logical_and.reduce([model.bill.feasible for model in models.values()])
    found = deciding_probe(models, seconds, everywhere)
    if found is None:
        return None
    config = bill.candidates.config(found.index, checkpoint_every_steps=1, save_total_limit=1,
                                    gradient_accumulation_steps=1)  # fmt: skip
    per_device = job.global_batch_size // reference.offer.count
    text = (
        f"time {PROBE_STEPS} clean steps on {reference.offer.label}, rows padded as stated, with "
        f"micro-batch {config.micro_batch_size}, accumulation "
        f"{max(per_device // config.micro_batch_size, 1)}, compile {config.compile}, "
        f"activation checkpointing {config.activation_checkpointing} (tune --score probe)"
    )
    return DecidingCheck(
        "probe", text, float(seconds[found.index]), float(dollars[found.index]),
        {
            name: f"{format_seconds(parts['compute'])} a step, "
            f"{format_seconds(parts['save'])} a save"
            for name, parts in found.shows.items()
        },
        found.told_apart, found.together,
    )  # fmt: skip


class _Timed(BilledCandidates):
    """What a short probe times surely; a loader's milliseconds decide nothing."""

    measured = ("compute", "save")


def _probe_seconds(bill: Bill) -> FloatArray:
    """[s] load, compile, `PROBE_STEPS` steps and one save of every candidate."""
    once = bill.tables["startup"].gather("load_s") + bill.tables["startup"].gather("compile_s")
    save: FloatArray = bill.tables["checkpoint"].gather("save_s")
    simpler = 1e-6 * knob_values(bill.candidates, "num_dataloader_workers")  # of equals, fewer
    found: FloatArray = once + PROBE_STEPS * bill.step_s + save + simpler
    return found
