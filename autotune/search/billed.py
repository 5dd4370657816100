"""A bill as the calibrated sampler sees it: the parts that a probe measures, and what they make.

compute   an optimizer step without waiting for data: micro-steps, communication, optimizer
data      a micro-batch in one loader worker
save      one checkpoint
compile   torch.compile, once
evaluation  one evaluation of the model
memory    the device's peak

Of an optimizer step, forward and backward, communication and the optimizer are summands with reads
of their own. A knob of the user's own is read by every part and every summand, though no prediction
varies with it: what it does is learned from measurements alone. The job's deadline, session, budget
and disk are limits besides memory.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.cost.bill import step_log_sd
from autotune.cost.memory import component as memory
from autotune.cost.run_time import RunTime, links_s
from autotune.cost.time import checkpoint, collectives, compute, data, evaluation, startup
from autotune.domain.candidates import OFFER
from autotune.domain.config import KNOBS
from autotune.search.alternatives import neighbours, proposal_order
from autotune.search.priced import MEMORY, Dimension, Part, Term, part_of
from autotune.search.selection import Objective, score_name, simplicity, violations

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from autotune.cost.bill import Bill
    from autotune.cost.columns import FloatArray
    from autotune.domain.device import Offer
    from autotune.search.axes import ParameterSpace

    Indices = NDArray[np.intp]

# Declared by the components; what a step takes is computing and communication together. The host,
# which decides only how soon a processor steps through what is offloaded, goes with the device.
READS: dict[str, tuple[str, ...]] = {
    "compute": tuple(
        name for name in dict.fromkeys((*compute.READS, *collectives.READS)) if name != "offer.host"
    ),
    "data": data.READS,
    "save": checkpoint.READS,
    "compile": startup.READS,
    "evaluation": evaluation.READS,
    MEMORY: memory.READS,
}
NETWORK = "offer.network"  # no column where every offer is one machine
TABLE = {"compute": "compute", "data": "data", "save": "checkpoint", "compile": "startup",
         "evaluation": "evaluation", MEMORY: "memory"}  # fmt: skip
# sd of the log of one measurement. Source: probe noise of the engine study's simulation.
NOISE = {"compute": 0.03, "data": 0.06, "save": 0.08, "compile": 0.08, "evaluation": 0.06,
         MEMORY: 0.005}  # fmt: skip
LEVERS = ("kernels", "offload")  # opened for few searches


class BilledCandidates:
    """The candidates of a bill as a `Priced`. Built when the first measurement asks for it."""

    grows = ("micro_batch_size",)
    measured = tuple(READS)  # the parts there are

    def __init__(self, bill: Bill, space: ParameterSpace, objective: Objective) -> None:
        """Keep the bill and its parameters; objective: dollars or seconds."""
        self.bill, self.space, self.objective = bill, space, objective
        self.limit = bill.usable_bytes
        self._last: tuple[Indices, RunTime] | None = None

    def __len__(self) -> int:
        return len(self.bill)

    @cached_property
    def identity(self) -> str:
        """A digest of the job's contract and of the parameters."""
        job = self.bill.job
        axes = [(axis.name, [str(v) for v in axis.values]) for axis in self.space.axes]
        facts = [
            job.model.fingerprint, repr(job.method), job.rows, job.max_length, job.steps,
            job.global_batch_size, repr(job.lengths), job.padding, repr(job.software), axes,
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """Compute, data, save, compile and memory."""
        columns, dimensions = self._columns
        own = self.bill.candidates.extra
        found = (
            part_of(
                name, [dimensions[read] for read in (*self._open(READS[name]), *own)], columns,
                self._predicted[name],
                spread=self._spread(name),
                noise=NOISE[name], terms=self._summands if name == "compute" else None,
            )
            for name in self.measured
        )  # fmt: skip
        return tuple(_with_free(part, own) for part in found)

    def _spread(self, name: str) -> float:
        """Log sd of what is predicted of a part; of steps as slower ones have it.

        Rows of unknown length make runs faster, and no probe: those are measured at their rows.
        """
        if name == "compute":
            return _median(step_log_sd(self.bill, slower=True))
        return _median(self.bill.tables[TABLE[name]].outputs["log_sd"])

    def _open(self, reads: Sequence[str]) -> list[str]:
        """The columns without levers that the job keeps closed: at one value they vary nothing."""
        levels = self.bill.candidates.levels
        alone = all(offer.network is None for offer in levels[OFFER])
        return [
            name for name in reads
            if (name not in LEVERS or len(levels[name]) > 1) and not (alone and name == NETWORK)
        ]  # fmt: skip

    @cached_property
    def _columns(self) -> tuple[dict[str, NDArray[np.int64]], dict[str, Dimension]]:
        """Level codes, ascending for counts, and the dimensions, of every column that is read."""
        candidates = self.bill.candidates
        columns: dict[str, NDArray[np.int64]] = {}
        dimensions: dict[str, Dimension] = {}
        declared = dict.fromkeys(read for reads in READS.values() for read in reads)
        for name in (*declared, *candidates.extra):
            if name.startswith("offer."):
                offers = candidates.levels[OFFER]
                of_level = [_offer_text(offer, name[6:]) for offer in offers]
                codes, ordinal = candidates.codes[OFFER], name in {"offer.count", "offer.price"}
            else:
                of_level = [str(value) for value in candidates.levels[name]]
                codes = candidates.codes[name]
                ordinal = name in KNOBS and KNOBS[name].kind == "count"
            texts = sorted(set(of_level), key=float) if ordinal else list(dict.fromkeys(of_level))
            rank = np.asarray([texts.index(text) for text in of_level], np.int64)
            columns[name] = rank[codes]
            dimensions[name] = Dimension(name, tuple(texts), ordinal)
        return columns, dimensions

    @cached_property
    def _usd_per_hour(self) -> FloatArray:
        return self.bill.tables["price"].gather("usd_per_hour")

    @cached_property
    def _predicted(self) -> dict[str, FloatArray]:
        run = self.bill.run
        return {
            "compute": run.accumulation * run.busy_s + run.per_step_s,
            "data": run.batch_s,
            "save": run.save_s,
            "compile": run.compile_s,
            "evaluation": run.evaluation_s * (run.evaluations > 0),
            MEMORY: self.bill.memory_bytes,
        }

    @cached_property
    def _summands(self) -> dict[str, FloatArray]:
        """[n] s of an optimizer step: computing, communication, optimizer."""
        tables, accumulation = self.bill.tables, self.bill.run.accumulation
        return {
            "computing": accumulation * tables["compute"].gather("micro_step_s"),
            "communication": links_s(tables, accumulation),
            "optimizer": tables["compute"].gather("optimizer_s"),
        }

    def totals(self, factors: Mapping[str, FloatArray], at: Indices) -> FloatArray:
        """[USD or s] the finished run with each part multiplied by its factor."""
        duration = self._duration_s(factors, at)
        if self._score != "cost_usd":
            return duration
        return duration / 3600.0 * self._usd_per_hour[at]

    @cached_property
    def _score(self) -> str:
        return score_name(self.bill, self.objective)

    @property
    def confidence(self) -> float:
        """As the job asks."""
        return self.bill.job.limits.confidence

    def excesses(self, factors: Mapping[str, FloatArray], at: Indices) -> dict[str, FloatArray]:
        """The log of the run's figures over the job's limits, for limits that any can miss."""
        limits = self.bill.job.limits
        found: dict[str, FloatArray] = {}
        if self._short_of_disk is not None:
            found["disk"] = self._short_of_disk[at]
        if not any((limits.deadline_s, limits.max_session_s, limits.budget_usd)):
            return found
        duration = self._duration_s(factors, at)
        for name, limit in (
            ("deadline", limits.deadline_s), ("max_session", limits.max_session_s),
        ):  # fmt: skip
            if limit:
                found[name] = _log_over(duration, limit)
        if limits.budget_usd:
            cost = duration / 3600.0 * self._usd_per_hour[at]
            found["budget"] = _log_over(cost, limits.budget_usd)
        return found

    @cached_property
    def _short_of_disk(self) -> FloatArray | None:
        _, disk = violations(self.bill)
        return np.log1p(np.maximum(disk, -0.99)) if (disk > 0).any() else None

    def _duration_s(self, factors: Mapping[str, FloatArray], at: Indices) -> FloatArray:
        """[s] The run with its parts so many times as long, its saves as far apart as is best."""
        if self._last is None or self._last[0] is not at:  # the same are asked for again
            self._last = (at, self.bill.run.at(at))
        limits, run = self.bill.job.limits, self._last[1].times(factors)
        return run.duration_s(limits, run.interval_steps(limits))

    def params(self, index: int) -> dict[str, Any]:
        """The parameters of a candidate."""
        found: dict[str, Any] = self.space.params(index)
        return found

    def find(self, params: Mapping[str, Any]) -> int | None:
        """The candidate with those parameters."""
        return self.space.find(params)

    def order(self) -> Iterator[int]:
        """The order that the bill suggests."""
        return proposal_order(self.bill, self.objective)

    def neighbours(self, index: int) -> list[int]:
        """One knob changed, on the same offer."""
        return [near.index for near in neighbours(self.bill, index)]

    def plainness(self, indices: Sequence[int]) -> list[tuple[float, ...]]:
        """As a modelled answer has it (`simplicity`), then own knobs as today."""
        bill, candidates = self.bill, self.bill.candidates
        keys = simplicity(bill, np.asarray(indices, np.intp))
        return [
            (
                *(float(key[place]) for key in keys),
                *(float(candidates.codes[name][i]) for name in candidates.extra),
            )
            for place, i in enumerate(indices)
        ]


def _median(values: FloatArray) -> float:
    """Of plain numbers: numpy's own loads masked arrays first."""
    ordered = np.sort(values)
    return float((ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2.0)


def _with_free(part: Part, names: Sequence[str]) -> Part:
    """The part with columns that may move every summand of it."""
    free = {k for k, dimension in enumerate(part.reads) if dimension.name in names}
    terms = tuple(Term(t.name, tuple(sorted({*t.reads, *free})), t.share) for t in part.terms)
    return replace(part, terms=terms) if free else part


def _log_over(values: FloatArray, limit: float) -> FloatArray:
    found: FloatArray = np.log(np.maximum(values, 1e-300) / limit)
    return found


def _offer_text(offer: Offer, field: str) -> str:
    if field == "device":
        return offer.device.name
    if field == "host":
        return hashlib.sha256(repr(offer.host).encode()).hexdigest()[:12]
    if field == "network":
        return offer.network.name if offer.network else "one machine"
    value = {"count": offer.count, "price": offer.usd_per_hour}.get(field)
    if value is None:
        value = offer.interruptions_per_hour if offer.spot else 0.0
    return str(value)
