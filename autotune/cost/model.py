"""The model of the finished run's bill: components composed over candidates.

    cost        = duration x price; duration: `run_time`

In here: which components there are, how they are composed, what calibration does to them, and the
component of prices. Not in here: the components (`time`, `memory`), what a bill answers (`bill`).
Does not cover: quality of the trained model; queueing for a machine.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from autotune.cost.bill import Bill, mostly_missed
from autotune.cost.columns import Columns, Component, Outputs, Table, Tables, tabulate
from autotune.cost.learned import as_learned
from autotune.cost.memory import component as memory
from autotune.cost.outputs import Later, split
from autotune.cost.run_time import RunTime, knob_values, micro_steps
from autotune.cost.spread.fitting import memory_violation
from autotune.cost.time import checkpoint, collectives, compute, data, evaluation, startup
from autotune.domain.candidates import OFFER
from autotune.domain.observation import Calibration
from autotune.domain.units import HOUR_S
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from autotune.cost.columns import BoolArray
    from autotune.domain.candidates import Candidates
    from autotune.domain.job import Job


def price_offer(job: Job, columns: Columns) -> Outputs:  # noqa: ARG001 - one signature for all
    """[USD/h] of the whole offer and [1/s] interruptions (0 on demand)."""
    return {
        "usd_per_hour": columns.number("offer.price"),
        "interruptions_per_s": columns.number("offer.spot") / HOUR_S,
        "log_sd": np.zeros(columns.rows),
    }


PRICE = Component("price", ("offer.price", "offer.spot"), price_offer, of_job=())

COMPONENTS: tuple[Component, ...] = (
    memory.COMPONENT,
    compute.COMPONENT,
    collectives.COMPONENT,
    data.COMPONENT,
    checkpoint.COMPONENT,
    evaluation.COMPONENT,
    startup.COMPONENT,
    PRICE,
)


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    """Some of the candidates: where they were among all, and their tables that are known."""

    places: NDArray[np.intp]
    candidates: Candidates
    known: dict[str, Table]

    def at(self, kept: NDArray[np.intp]) -> _Asked:
        """Some of these."""
        if len(kept) == len(self.places):
            return self
        known = {name: Table(own.outputs, own.row_of[kept]) for name, own in self.known.items()}
        return _Asked(self.places[kept], self.candidates.take(kept), known)


class CostModel:
    """Prices candidates of one job. Calibration multiplies components; empty: the plain model."""

    def __init__(self, job: Job, calibration: Calibration | None = None) -> None:
        """Keep the job and what evidence taught."""
        self.job = job
        self.calibration = calibration or Calibration()

    def price(self, candidates: Candidates) -> Bill:
        """The bill of every candidate. [n] candidates cost a few array passes."""
        return self._bill(candidates, self._tables(candidates))

    def price_held(
        self, candidates: Candidates, *, late: bool = True
    ) -> tuple[NDArray[np.intp], Bill]:
        """Which candidates a device holds, and the bill of those: no time of the others is priced.

        late: False leaves out offers on which computing alone misses a limit, whatever the
        candidate: of those no memory is priced either.
        """
        asked = _Asked(np.arange(len(candidates)), candidates, {})
        if not late:
            asked = self._in_time(self._with(compute.COMPONENT, asked))
        asked = self._with(memory.COMPONENT, asked)
        table = self._tables(asked.candidates, asked.known)[memory.COMPONENT.name]
        needed = (table.gather(output) for output in ("total", "usable", "fits_probability"))
        asked = asked.at(np.flatnonzero(memory_violation(*needed) <= 0))
        if not late:
            asked = self._in_time(asked)
        return asked.places, self._bill(
            asked.candidates, self._tables(asked.candidates, asked.known)
        )

    def _with(self, component: Component, asked: _Asked) -> _Asked:
        """With the modelled table of a component."""
        own = tabulate(component, self.job, asked.candidates)
        return replace(asked, known=asked.known | {component.name: own})

    def _in_time(self, asked: _Asked) -> _Asked:
        """Those on offers where computing alone keeps the limits for one of them."""
        return asked.at(np.flatnonzero(self._may_keep_limits(asked.candidates, asked.known)))

    def _may_keep_limits(self, candidates: Candidates, known: Mapping[str, Table]) -> BoolArray:
        """[n] on an offer where some candidate's training steps alone keep the job's limits.

        Every other part of a run only makes it longer (`RunTime.duration_s`).
        """
        table = self._tables(candidates, known)[compute.COMPONENT.name]
        each_s = micro_steps(self.job, candidates) * table.gather("micro_step_s")
        steps_s = table.gather("steps") * (each_s + table.gather("optimizer_s"))
        offers, codes = candidates.levels[OFFER], candidates.codes[OFFER]
        least_s = np.full(len(offers), np.inf)
        np.minimum.at(least_s, codes, steps_s)
        rates = np.asarray([offer.usd_per_hour for offer in offers])
        nothing = np.zeros(len(offers))  # [USD] on one's own machine, however long it takes
        least_usd = np.multiply(least_s / HOUR_S, rates, out=nothing, where=rates > 0)
        kept: BoolArray = ~mostly_missed(self.job.limits, least_s, least_usd)[codes]
        return kept

    def _bill(self, candidates: Candidates, tables: Tables) -> Bill:
        job = self.job
        run = RunTime.of(job, tables, candidates)
        interval = run.interval_steps(job.limits)
        duration = run.duration_s(job.limits, interval)
        saved = tables["checkpoint"]
        on_disk = checkpoint.on_disk(
            knob_values(candidates, "save_total_limit"),
            saved.gather("bytes"),
            saved.gather("final_bytes") * (job.steps > 0),
            saved.gather("stated_disk_bytes"),
            checkpoint.saves(run.steps, interval),
        )
        return Bill(
            job=job,
            candidates=candidates,
            tables=tables,
            basis="modelled" if self.calibration.is_empty else "calibrated",
            run=run,
            interval_steps=interval,
            save_total_limit=on_disk.limit,
            disk_checkpoints=on_disk.checkpoints,
            disk_final_bytes=on_disk.final_bytes,
            disk_bytes=on_disk.total(saved.gather("bytes")),
            duration_s=duration,
            cost_usd=duration / HOUR_S * tables["price"].gather("usd_per_hour"),
        )

    def _tables(self, candidates: Candidates, known: Mapping[str, Table] | None = None) -> Tables:
        """Every component's table, under what was learned. known: those that are modelled."""
        job, named = self.job, {component.name: component for component in COMPONENTS}
        before = known or {}
        modelled = Tables(lambda name: before.get(name) or tabulate(named[name], job, candidates))

        def taught(name: str) -> Table:
            learned = self.calibration.on_machines(name)
            own = as_learned(name, modelled, learned, job, candidates) if learned else None
            return self._calibrated(name, own or modelled[name])

        return Tables(taught)

    def _calibrated(self, component: str, table: Table) -> Table:
        """A component's table under what the job's own evidence taught."""
        factor = self.calibration.factors.get(component, 1.0)
        if component == memory.COMPONENT.name:
            return self._remembered(table, factor)
        if not len(table.row_of) or (factor == 1.0 and component not in self.calibration.log_sds):
            return table
        now, later = split(table.outputs)
        outputs = self._measured(component, now, factor)
        if later:
            outputs = Later(
                outputs,
                later,
                lambda: self._measured(component, {n: table.outputs[n] for n in later}, factor),
            )
        return Table(outputs, table.row_of)

    def _measured(self, component: str, outputs: Outputs, factor: float) -> Outputs:
        """Outputs of a component times what was measured of it, and as sure as that makes them."""
        found = dict(outputs)
        if factor != 1.0:
            found |= {name: own * factor for name, own in outputs.items() if name.endswith("_s")}
        if component not in self.calibration.log_sds:
            return found
        if "log_sd" in found:
            log_sd = np.full_like(found["log_sd"], self.calibration.log_sds[component])
            found["log_sd"] = np.hypot(log_sd, found.get("knob_log_sd", np.zeros_like(log_sd)))
        if "slow_variance" in found:
            found["slow_variance"] = np.zeros_like(found["slow_variance"])
        if "unseen_device" in found:  # measured steps settle it
            found["unseen_device"] = np.ones_like(found["unseen_device"])
        return found

    def _remembered(self, table: Table, factor: float) -> Table:
        """Memory under what was measured of it."""
        log_sd = self.calibration.log_sds.get(memory.COMPONENT.name)
        if not len(table.row_of) or (factor == 1.0 and log_sd is None):
            return table
        return Table(memory.learned_memory(table.outputs, factor, log_sd), table.row_of)
