"""A user's own measurements scale what they speak of, and nothing else.

Within a factor of two the difference between measured and predicted is efficiency (kernels,
versions, clocks) and becomes a factor on the component concerned; on a device that the model hardly
knows, within what it itself calls likely. Beyond it something else is going on: the factor is not
applied, the interval grows (to what the job's own run took, where that was measured), and the
warning names what could explain the gap, each priced. Two exceptions: a measured save is the way to
learn a write speed that nobody stated, and the implied speed is said; a measured evaluation holds
what is in no formula (metrics on the host), and so does the next one of the same rows.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.cost.bill import step_log_sd
from autotune.cost.model import CostModel
from autotune.domain.answer.recommendation import Decisive
from autotune.domain.observation import LOG_SD, TIMES, Calibration
from autotune.domain.outcome import Z90
from autotune.domain.units import MB, format_bytes, format_seconds
from autotune.evidence.cases import READ_AS
from autotune.evidence.explanations import (
    explanations_of,
    measured_seconds,
    predicted_seconds,
)
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.cost.bill import Bill
    from autotune.domain.answer.verification import Explained
    from autotune.domain.candidates import Candidates
    from autotune.domain.config import Config
    from autotune.domain.job import Job
    from autotune.domain.observation import Observation
    from autotune.evidence.reference import Reference

LARGEST_FACTOR = 2.0  # what efficiency alone can explain, each way
UNEXPLAINED_LOG_SD = 0.54  # ln 2 / 1.28: the 80 % interval reaches a factor of two at least
SURPRISE = 2.0  # the model's own standard deviations that still are its error, not something else
MOST_NOISE = 3.0
HERE_LOG_SD = 0.08  # assumption: the same machine
# Efficiency transferred between devices leaves this one unmeasured.
ELSEWHERE_LOG_SD = math.log(1.5) / Z90  # assumption
BEYOND_NOISE = 3.29  # half a 99.9 % interval
CHECKPOINT_LOG_SD, EVALUATION_LOG_SD, MEMORY_LOG_SD = 0.15, 0.15, 0.03
CACHE_LOG_SD = 0.08  # assumption: a peak that may hold what the allocator caches
SHOWN = 4  # explanations in a warning


class _Learned:
    """Factors, spreads, provenance and warnings as they are found."""

    def __init__(self) -> None:
        self.factors: dict[str, float] = {}
        self.log_sds: dict[str, float] = {}
        self.provenance: list[str] = []
        self.warnings: list[str] = []
        self.explanations: list[Explained] = []

    def learn(self, component: str, factor: float, log_sd: float, why: str) -> None:
        self.factors[component] = factor
        self.log_sds[component] = log_sd
        self.provenance.append(why)


def calibration_from_evidence(
    job: Job, references: Sequence[Reference | None]
) -> tuple[Calibration, tuple[str, ...], tuple[Explained, ...]]:
    """What a job's evidence teaches: factors, warnings, and explanations of what it cannot.

    references: the run that each piece of it speaks of; None where nobody knows that run. They are
    held against the plain cost model. Evidence is read in the order saves, evaluations, time,
    memory, so that what is known of the first two is not explained as slow training.
    """
    learned = _Learned()
    known: list[Reference] = []
    for observation, reference in zip(job.evidence, references, strict=True):
        if reference is None:
            why = "its hardware or batch split is unknown, so nothing can be learned from it"
            learned.warnings.append(f"{observation.id}: {why}")
        else:
            known.append(reference)
    _checkpoints(known, learned)
    _evaluations(job, known, learned)
    _times(known, learned)
    _memory(known, learned)
    calibration = Calibration(learned.factors, learned.log_sds, tuple(learned.provenance))
    return calibration, tuple(learned.warnings), tuple(learned.explanations)


def _bill(job: Job, candidates: Candidates) -> Bill:
    """Under nothing that was measured."""
    return CostModel(job).price(candidates)


def _plausible(ratio: float) -> bool:
    return 1 / LARGEST_FACTOR <= ratio <= LARGEST_FACTOR


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(math.log(value) for value in values) / len(values))


def _checkpoints(known: Sequence[Reference], learned: _Learned) -> None:
    """Seconds of a save scale the saves; a speed that was only assumed is learned whole."""
    ratios: list[float] = []
    for reference in known:
        if reference.observation.quantity != "checkpoint_save_s" or reference.elsewhere:
            continue
        bill = _bill(reference.job, reference.candidates)
        measured, expected = reference.observation.value, predicted_seconds(reference, bill)
        if expected is None or expected <= 0 or measured <= 0:
            continue
        size = float(bill.tables["checkpoint"].gather("bytes")[0])
        assumed = "checkpoint_write_bytes_per_s" in reference.offer.host.assumed
        ratio = measured / expected
        if not _plausible(ratio):
            learned.warnings.append(_save_warning(reference, ratio, size, assumed=assumed))
            if not assumed:
                learned.log_sds["checkpoint"] = UNEXPLAINED_LOG_SD
                continue
        ratios.append(ratio)
    if ratios:
        factor = _geometric_mean(ratios)
        learned.learn("checkpoint", factor, CHECKPOINT_LOG_SD, f"measured saves: {factor:.2f}x")


def _save_warning(reference: Reference, ratio: float, size: float, *, assumed: bool) -> str:
    measured = reference.observation.value
    times = f"{ratio:.1f}" if ratio >= 1.0 else f"{ratio:.2g}"
    speed = f"{size / measured / MB:.1f} MB/s for a checkpoint of {format_bytes(size)}"
    head = (
        f"{reference.observation.id}: a save took {format_seconds(measured)}, {times} times "
        f"what was predicted; that is {speed}"
    )
    if assumed:
        return f"{head}; the write speed was an assumption and is replaced by this"
    return (
        f"{head}; that contradicts the stated checkpoint_write, so it is not applied: "
        "either the speed is wrong, or a save holds more than trained weights and their states"
    )


def _evaluations(job: Job, known: Sequence[Reference], learned: _Learned) -> None:
    """Seconds of an evaluation scale the job's evaluations.

    Where the job evaluates otherwise (more rows, generated tokens), what was measured beyond the
    prediction may come once or with every row: the factor lies in the middle, and the spread
    reaches both.
    """
    found: list[tuple[float, float]] = []  # log factor, half of what is open
    for reference in known:
        observation = reference.observation
        if (
            observation.quantity != "evaluation_s"
            or reference.elsewhere
            or job.timed_evaluation is None
        ):
            continue
        then = predicted_seconds(reference, _bill(reference.job, reference.candidates))
        planned = replace(reference.job, evaluation=job.evaluation)
        now = predicted_seconds(reference, _bill(planned, reference.candidates))
        if not then or not now or observation.value <= 0:
            continue
        ratio = observation.value / then
        once = max(observation.value + now - then, min(ratio, 1.0) * now) / now
        found.append((math.log(ratio * once) / 2.0, abs(math.log(ratio / once)) / 2.0))
    if found:
        mean = sum(log for log, _ in found) / len(found)
        reach = max(abs(log - mean) + half for log, half in found)
        factor, log_sd = math.exp(mean), math.hypot(EVALUATION_LOG_SD, reach / Z90)
        learned.learn("evaluation", factor, log_sd, f"measured evaluations: {factor:.2f}x")


@dataclass(frozen=True, slots=True)
class _Factor:
    """The logarithm of measured over predicted, of a step.

    noise: log sd beyond that of any measurement; model: the prediction's own log sd.
    """

    log: float
    noise: float
    model: float


def _times(known: Sequence[Reference], learned: _Learned) -> None:
    """Durations, step times and throughputs scale the training step.

    A gap that nothing explains widens the interval, unless it is of other hardware and a time on
    this one was measured too.
    """
    here: list[_Factor] = []
    elsewhere: list[_Factor] = []
    alike: dict[Config, list[tuple[_Factor, Reference]]] = {}
    unexplained = 0.0
    for reference in known:
        if reference.observation.quantity not in TIMES:
            continue
        bill = _bill(reference.job, reference.candidates)
        factor = step_factor(reference, bill, learned.factors)
        if factor is None:
            continue
        model_sd = float(step_log_sd(bill, slower=factor > 1.0)[0])
        if abs(math.log(factor)) <= _largest(reference, model_sd):
            found = _Factor(math.log(factor), _noise(reference.observation), model_sd)
            (elsewhere if reference.elsewhere else here).append(found)
            if not reference.elsewhere and len(reference.candidates) == 1:
                config = reference.candidates.config(0)
                alike.setdefault(config, []).append((found, reference))
        else:
            reach = UNEXPLAINED_LOG_SD
            if LOG_SD in reference.observation.facts:  # of this very job, by its own log
                reach = max(reach, model_sd, abs(math.log(factor)) / Z90)
            _unexplained(reference, bill, learned, reach)
            unexplained = max(unexplained, 0.0 if reference.elsewhere else reach)
    learned.warnings += filter(None, map(_contradiction, alike.values()))
    if not here:
        unexplained = learned.log_sds.get("compute", 0.0)
    factors, spread = (here, HERE_LOG_SD) if here else (elsewhere, ELSEWHERE_LOG_SD)
    if not factors:
        return
    log_factor, log_sd = _combined(factors, spread)
    where = "this hardware" if here else "other hardware, transferred"
    factor = math.exp(log_factor)
    why = f"{len(factors)} measured time(s) on {where}: training {factor:.2f}x"
    for component in ("compute", "collectives"):
        learned.learn(component, factor, max(log_sd, unexplained), why)


def _contradiction(runs: Sequence[tuple[_Factor, Reference]]) -> str:
    """That two times of one configuration differ by more than runs of one machine do."""
    low, high = (end(runs, key=lambda run: run[0].log) for end in (min, max))
    noise = math.hypot(HERE_LOG_SD, low[0].noise, HERE_LOG_SD, high[0].noise)
    apart = high[0].log - low[0].log
    if apart <= BEYOND_NOISE * noise:
        return ""
    names = f"{low[1].observation.id} and {high[1].observation.id}"
    return Decisive(
        f"{names} contradict each other: steps of one configuration, {math.exp(apart):.2g} times "
        "apart; their mean counts, and the range reaches both"
    )


def _largest(reference: Reference, model_sd: float) -> float:
    """|ln| of the largest factor that is taken for efficiency.

    A device whose speed is hardly known (a processor) may be further from its prediction than
    kernels, versions and clocks explain on one that was measured.
    """
    own = math.log(LARGEST_FACTOR)
    return own if reference.elsewhere else max(own, SURPRISE * model_sd)


def _noise(observation: Observation) -> float:
    """Log sd that a run's own log shows, beyond that of any measurement."""
    stated = observation.facts.get(LOG_SD)
    own = float(stated) if isinstance(stated, int | float) and 0 <= stated <= MOST_NOISE else 0.0
    return math.sqrt(max(own**2 - HERE_LOG_SD**2, 0.0))


def _combined(factors: Sequence[_Factor], spread: float) -> tuple[float, float]:
    """Logarithm of the factor and its log sd, from measurements that are not all equally sure.

    Formula: mean weighted by 1 / (spread^2 + noise^2), shrunk to the model by the least noise:
    m^2 / (m^2 + noise^2), m the model's own log sd. Source: normal prior and likelihood; noise is
    taken as common to all, so it does not shrink with their number.
    """
    weights = [1.0 / (spread**2 + own.noise**2) for own in factors]
    total = sum(weights)
    mean = sum(own.log * weight for own, weight in zip(factors, weights, strict=True)) / total
    widest = max(abs(own.log - mean) - own.noise for own in factors)
    noise, model = min(own.noise for own in factors), max(own.model for own in factors)
    if not noise:
        return mean, max(spread, widest)
    kept = model**2 / (model**2 + noise**2)
    return mean * kept, max(math.hypot(spread, noise * math.sqrt(kept)), widest)


def step_factor(reference: Reference, bill: Bill, known: Mapping[str, float]) -> float | None:
    """What multiplies the busy time of training to give the measured time.

    Formula: (measured - everything else) / (train - waiting for data); saves and evaluations at the
    factors that are known of them.
    Of a step: (measured - waiting for data) / (predicted - waiting for data). Source: derived. At
    most zero becomes a factor near zero: even an instant step is too slow.
    """
    measured, expected = measured_seconds(reference, bill), predicted_seconds(reference, bill)
    if measured is None or expected is None or measured <= 0 or expected <= 0:
        return None
    parts = bill.time_parts(0)
    if reference.observation.quantity != "duration_s":
        wait = parts.data_wait / max(float(bill.steps[0]), 1.0)
        return max((measured - wait) / (expected - wait), 1e-3) if expected > wait else None
    if parts.train <= 0:
        return None
    rest = parts.total - parts.train
    rest += (known.get("checkpoint", 1.0) - 1.0) * (parts.checkpoint + parts.final_save)
    rest += (known.get("evaluation", 1.0) - 1.0) * parts.evaluation
    return max((measured - rest) / parts.train, 1e-3)


def _unexplained(reference: Reference, bill: Bill, learned: _Learned, log_sd: float) -> None:
    """Not applied: say so, widen the interval, and name what could explain it."""
    measured = measured_seconds(reference, bill) or 0.0
    expected = predicted_seconds(reference, bill) or 1.0
    for component in ("compute", "collectives"):
        learned.log_sds[component] = max(log_sd, learned.log_sds.get(component, 0.0))
    found = explanations_of(reference, _bill, saves_known="checkpoint" in learned.factors)
    learned.explanations.extend(found)
    learned.warnings.append(_gap_warning(reference, measured, expected, found))


def _gap_warning(
    reference: Reference, measured: float, expected: float, found: Sequence[Explained]
) -> str:
    factor = max(measured / expected, expected / measured)
    slower = "longer" if measured > expected else "shorter"
    where = f" on {reference.offer.label}" if reference.elsewhere else ""
    head = (
        f"{reference.observation.id}: {format_seconds(measured)} was measured{where}, "
        f"{format_seconds(expected)} predicted: {factor:.2g} times {slower}. "
        "Efficiency does not explain that much, so it was not used to scale the prediction"
    )
    if not found:
        return Decisive(f"{head}; no setting that the cost model knows explains it")
    lines = "; ".join(
        f"{item.text} (then {format_seconds(item.predicted_s)})" for item in found[:SHOWN]
    )
    alike = sum(item.explains for item in found)
    tail = f". {alike} of these explain the measurement equally well" if alike > 1 else ""
    could = "What could" if alike else "None of what was tried explains it alone"
    return Decisive(f"{head}. {could}: {lines}{tail}")


def _memory(known: Sequence[Reference], learned: _Learned) -> None:
    """Measured bytes scale the memory of the same kind; an out-of-memory that fits is warned of.

    A peak beyond a factor of two is not applied: it is told, and where more was measured than
    predicted, nothing is taken to fit safely any more.
    """
    found: list[tuple[float, float]] = []  # ratio, spread
    for reference in known:
        quantity = reference.observation.quantity
        if quantity == "oom":
            _out_of_memory(reference, learned)
        if quantity != "memory_bytes" or reference.elsewhere:
            continue
        kind = READ_AS.get(reference.observation.kind or "unknown", "total")
        ratio = _memory_ratio(reference, kind)
        if _plausible(ratio):
            found.append((ratio, MEMORY_LOG_SD if kind == "allocated" else CACHE_LOG_SD))
            continue
        learned.warnings.append(_memory_warning(reference, ratio, kind))
        if ratio > 1.0:
            learned.log_sds["memory"] = UNEXPLAINED_LOG_SD
    if found:
        factor = _geometric_mean([ratio for ratio, _ in found])
        widest = max(abs(math.log(ratio / factor)) for ratio, _ in found)
        spread = max(widest, min(sd for _, sd in found), learned.log_sds.get("memory", 0.0))
        learned.learn("memory", factor, spread, f"measured memory: {factor:.2f}x")


def _memory_ratio(reference: Reference, kind: str) -> float:
    """What multiplies allocated bytes to give the measured ones."""
    table = _bill(reference.job, reference.candidates).tables["memory"]
    beside = float(table.gather("context")[0]) if kind in {"total", "driver"} else 0.0
    tensors = max(reference.observation.value - beside, 1.0)
    return tensors / (float(table.gather(kind)[0]) - beside)


def _memory_warning(reference: Reference, ratio: float, kind: str) -> str:
    unsafe = "; until that is clear, no configuration surely fits" if ratio > 1.0 else ""
    return Decisive(
        f"{reference.observation.id}: {format_bytes(reference.observation.value)} were measured, "
        f"{ratio:.2f} times the {kind} memory predicted for that configuration; "
        "not applied. Another model, base, length, micro-batch, or another process on the "
        f"device would explain it{unsafe}"
    )


def _out_of_memory(reference: Reference, learned: _Learned) -> None:
    bill = _bill(reference.job, reference.candidates)
    if bill.memory_violation[0] > 0:
        return
    learned.log_sds["memory"] = max(learned.log_sds.get("memory", 0.0), UNEXPLAINED_LOG_SD)
    text = (
        f"{reference.observation.id}: that configuration ran out of memory, but "
        f"{format_bytes(float(bill.memory_bytes[0]))} of "
        f"{format_bytes(float(bill.usable_bytes[0]))} are predicted; longer rows, a larger "
        "micro-batch or another process on the device would explain it"
    )
    learned.warnings.append(Decisive(text))
