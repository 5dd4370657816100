"""The run that a piece of a user's evidence speaks of, in the cost model's terms.

What an Observation does not state is as in the job, and as today's configuration where the job has
one. Rows of public tables state all of it themselves: `record/`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from autotune.catalog.devices import default_host, find_device
from autotune.domain.candidates import Candidate, Candidates
from autotune.domain.config import KNOBS, Config
from autotune.domain.device import Offer
from autotune.domain.errors import InputError
from autotune.domain.job import Evaluation
from autotune.domain.observation import EVALUATED
from autotune.domain.units import is_number
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.cost.bill import Bill
    from autotune.domain.job import Job, Lengths
    from autotune.domain.observation import Observation
    from autotune.evidence.cases import Price

    Facts = Mapping[str, object]

DEFAULT_MICRO_BATCH = 8  # transformers' Trainer: per_device_train_batch_size
DEFAULT_SAVE_STEPS = 500  # transformers' Trainer: save_steps


@dataclass(frozen=True, slots=True)
class Run(Candidate):
    """A run in the cost model's terms. elsewhere: on hardware that its job does not offer."""

    elsewhere: bool


@dataclass(frozen=True, slots=True)
class Reference(Run):
    """The run that one observation was measured on."""

    observation: Observation


def bills_together(runs: Sequence[Run], price: Price) -> list[Bill]:
    """The bill of each run, each of one row; the runs of one job are priced in one pass."""
    found: dict[int, Bill] = {}
    groups: list[tuple[Job, list[int]]] = []
    for number, run in enumerate(runs):
        same = next((members for job, members in groups if job == run.job), None)
        if same is None:
            groups.append((run.job, [number]))
        else:
            same.append(number)
    for job, members in groups:
        pairs = [(runs[number].offer, runs[number].config) for number in members]
        bill = price(job, Candidates.of(pairs))
        for place, number in enumerate(members):
            found[number] = bill.take(np.asarray([place]), job, runs[number].candidates)
    return [found[number] for number in range(len(runs))]


def reference_of(job: Job, observation: Observation) -> Reference | None:
    """What the observation was measured on, or None where it names what nobody knows."""
    run = described_run(job, observation.knobs, observation.facts)
    if run is None:
        return None
    return Reference(run.job, run.offer, run.config, run.elsewhere, observation)


def described_run(job: Job, knobs: Facts, facts: Facts) -> Run | None:
    """The run that stated knobs and facts make of the job, or None where nobody knows it.

    What is not stated is as in the job, and as today's configuration where the job has one.
    facts: those of an Observation.
    """
    offer, elsewhere = _offer(job, facts)
    if offer is None:
        return None
    run = _job(job, facts)
    config = _config(run, knobs, offer, None if elsewhere else job.today_here)
    return None if config is None else Run(run, offer, config, elsewhere)


def _offer(job: Job, facts: Facts) -> tuple[Offer | None, bool]:
    gpu, count = facts.get("gpu"), _count(facts, "n_gpus")
    if gpu is None:
        return (job.offers[0], False) if job.offers else (None, True)
    known = _known_offer(job, str(gpu), count)
    if known is not None:
        return known
    try:
        device = find_device(str(gpu))
    except InputError:
        return None, True
    known = _known_offer(job, device.name, count)
    if known is not None:
        return known
    count = count or 1
    host = default_host(count, device, job.storage)
    return Offer(device, count, 0.0, host, price_source="evidence"), True


def _known_offer(job: Job, name: str, count: int | None) -> tuple[Offer, bool] | None:
    """The job's machine with that device, by the catalogue's name; whether it is not offered."""
    for place, offer in enumerate((*job.offers, *job.seen_on)):
        if offer.device.name == name and offer.count == (count or offer.count):
            return offer, place >= len(job.offers)
    return None


def _count(facts: Facts, name: str) -> int | None:
    value = facts.get(name)
    if is_number(value) and value >= 1:
        return int(value)
    return None


TOKENS, BATCH = "evaluation_generate_tokens", "evaluation_batch_size"  # beside its rows


def evaluation_facts(evaluation: Evaluation) -> dict[str, object]:
    """What an Observation states of the evaluations of its run."""
    return {
        EVALUATED: evaluation.rows,
        TOKENS: evaluation.generate_tokens,
        BATCH: evaluation.batch_size,
    }


def _evaluation(job: Job, facts: Facts) -> Evaluation | None:
    """The job's, of the rows, the tokens and the batch that were evaluated."""
    rows = _count(facts, EVALUATED)
    if rows is None:
        return job.evaluation
    tokens, batch = _count(facts, TOKENS) or 0, _count(facts, BATCH) or 0
    plan = job.evaluation or Evaluation(rows, 0)
    return replace(plan, rows=rows, generate_tokens=tokens, batch_size=batch)


def _job(job: Job, facts: Facts) -> Job:
    """The job at the stated rows, epochs, batch and maximum length, with what was evaluated."""
    job = replace(job, evaluation=_evaluation(job, facts))
    rows = _count(facts, "rows") or job.rows
    batch = _count(facts, "global_batch") or job.global_batch_size
    stated_epochs = facts.get("epochs")
    epochs = float(stated_epochs) if isinstance(stated_epochs, int | float) else job.epochs
    steps = _count(facts, "steps") or math.ceil(epochs * math.ceil(rows / batch))
    length = _count(facts, "max_length") or job.max_length
    if (rows, batch, epochs, length) == (
        job.rows,
        job.global_batch_size,
        job.epochs,
        job.max_length,
    ):
        return replace(job, steps=steps)
    return replace(
        job,
        rows=rows,
        epochs=epochs,
        steps=steps,
        global_batch_size=batch,
        max_length=length,
        lengths=cut(job.lengths, length),
    )


def cut(lengths: Lengths, cap: int, scale: float = 1.0) -> Lengths:
    """The lengths times `scale`, cut off at `cap`."""
    values = np.minimum(np.asarray(lengths.quantiles) * scale, float(cap))
    maximum = min(math.ceil(lengths.maximum * scale), cap)
    mean = min(lengths.mean * scale, float((values[1:] + values[:-1]).mean() / 2))
    return replace(
        lengths, quantiles=tuple(float(v) for v in values), mean=mean, maximum=max(maximum, 1)
    )


def _config(job: Job, knobs: Facts, offer: Offer, today: Config | None) -> Config | None:
    """Stated knobs over today's, over the trainer's defaults; None if no split fits.

    Locks say what is asked, not what was run, so they change nothing of what was measured.
    """
    stated = {k: v for k, v in knobs.items() if k in KNOBS}
    known = {**(today.as_dict() if today else {}), **stated}
    per_device, rest = divmod(job.global_batch_size, offer.count)
    if rest:
        return None
    micro = _micro_batch(stated, known, per_device)
    if micro is None:
        return None
    made = {
        "checkpoint_every_steps": DEFAULT_SAVE_STEPS,
        "precision": _precision(job, offer),
        "sharding": "none" if offer.count == 1 else "ddp",
        "attention": "eager" if job.model.attention_softcap else "sdpa",
        **known,
        "micro_batch_size": micro,
        "gradient_accumulation_steps": per_device // micro,
    }
    return Config(**made)  # type: ignore[arg-type]  # names and kinds of KNOBS


def _micro_batch(
    stated: dict[str, object], known: dict[str, object], per_device: int
) -> int | None:
    if "micro_batch_size" in stated:
        micro = int(str(stated["micro_batch_size"]))
        return micro if per_device % micro == 0 else None
    if "gradient_accumulation_steps" in stated:
        accumulation = int(str(stated["gradient_accumulation_steps"]))
        return per_device // accumulation if per_device % accumulation == 0 else None
    wanted = int(str(known.get("micro_batch_size", DEFAULT_MICRO_BATCH)))
    return math.gcd(wanted, per_device)


def _precision(job: Job, offer: Offer) -> str:
    device = offer.device
    if device.bf16_flop_per_s:
        return "bf16"
    return "fp16" if device.fp16_flop_per_s and job.method.base != "32bit" else "fp32"
