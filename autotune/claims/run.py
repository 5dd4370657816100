"""The run that a plan's statement speaks of, priced: what its figures are held against.

Figures are told as ranges, because plans state ranges: "0.8 to 1.2 s", "2.3 to 3.5 times".
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.domain.config import split_of
from autotune.domain.units import HOUR_S, MINUTE_S, format_count, format_range
from autotune.evidence.reference import Run, described_run
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from autotune.domain.config import Config
    from autotune.domain.job import Job
    from autotune.domain.outcome import Estimated
    from autotune.domain.statement import About, Span, Statement
    from autotune.evidence.cases import Price

LEAST_SHARE = 1e-4
ALIKE = 1.25  # figures nearer than this to one another are not told apart


@dataclass(frozen=True, slots=True)
class PricedRun:
    """A run as it is stated, and the cost model's bill of it."""

    job: Job
    row: Estimated

    @property
    def config(self) -> Config:
        """Every knob of it."""
        return self.row.config

    @property
    def machine(self) -> str:
        """Where it runs, in a few characters."""
        return self.row.offer.label

    @property
    def tokens_per_step(self) -> float:
        """Real tokens of one optimizer step."""
        return self.row.tokens_per_s * self.row.step_time_s


class PricedRuns:
    """Runs of one job, each priced once."""

    def __init__(self, job: Job, price: Price) -> None:
        """Keep the job and what prices it."""
        self.job, self._price = job, price
        self._known: dict[str, PricedRun | None] = {}

    def of(self, about: About) -> PricedRun | None:
        """The run that `about` describes; None where what is stated makes no run."""
        key = repr(about)
        if key not in self._known:
            self._known[key] = run_of(self.job, about, self._price)
        return self._known[key]


@dataclass(frozen=True, slots=True)
class Checked:
    """A statement, and what its figures are held against. measured_s: of today's run, if known."""

    statement: Statement
    runs: PricedRuns
    measured_s: float | None = None

    @property
    def job(self) -> Job:
        """The job that the statement is made in."""
        return self.runs.job

    @property
    def run(self) -> PricedRun | None:
        """The run that it speaks of; None where what it states makes none."""
        return self.runs.of(self.statement.about)

    @property
    def run_s(self) -> float:
        """[s] the duration that shares are of: today's measured one, else the modelled one."""
        modelled = self.run.row.duration_s.p50 if self.run else 0.0
        return self.measured_s or modelled


def run_of(job: Job, about: About, price: Price) -> PricedRun | None:
    """The run that `about` describes. None where what is stated makes no run."""
    if about.kind is not None and not job.method.is_lora:
        return None
    varied = _varied(job, about)
    home = job.today_offer or job.offers[0]
    gpu, count = (about.gpu, about.count) if about.gpu else (home.device.name, home.count)
    if gpu != home.device.name:
        varied = replace(varied, today=None)  # another card's precision and split
    elif home not in varied.offers:
        varied = replace(varied, offers=(home, *varied.offers))
    facts: dict[str, object] = {"gpu": gpu, "n_gpus": count, "epochs": job.epochs}
    facts |= {
        name: value
        for name, value in (("rows", about.rows), ("max_length", about.max_length))
        if value is not None
    }
    batch = stated_batch(about, count)
    if batch is not None:
        facts["global_batch"] = batch
    if about.rows is None and batch in {None, job.global_batch_size}:
        facts["steps"] = job.steps
    run = described_run(varied, about.knobs, facts)
    if run is None or not run.job.steps:
        return None
    return priced(run, price)


def priced(run: Run, price: Price) -> PricedRun:
    """A known run with its bill."""
    return PricedRun(run.job, price(run.job, run.candidates).estimate(0))


def stated_batch(about: About, count: int) -> int | None:
    """The global batch that a stated split makes; None where no whole split is stated."""
    split = split_of(about.knobs)
    return None if split is None else math.prod((*split, count))


def _varied(job: Job, about: About) -> Job:
    """The job with the method that is spoken of."""
    method = job.method
    if about.kind == "qlora":
        method = replace(method, base="nf4")
    elif about.kind == "lora" and method.base == "nf4":
        method = replace(method, base="16bit")
    if about.rank is not None and method.is_lora:
        method = replace(method, rank=about.rank)
    return job if method == job.method else replace(job, method=method)


def apart(left: Span, right: Span) -> bool:
    """Whether two ranges differ, both ends the same way: what a rounded end does not explain."""
    low, high = left.low / right.low, left.high / right.high
    return min(low, high) > ALIKE or max(low, high) < 1.0 / ALIKE


def seconds_text(span: Span) -> str:
    """A duration in one unit for both ends: "40 to 50 min"."""
    hours = HOUR_S if span.low >= HOUR_S else 2.0 * HOUR_S
    units = ((hours, HOUR_S, "h"), (2.0 * MINUTE_S, MINUTE_S, "min"), (0.1, 1.0, "s"))
    fitting = ((unit, name) for least, unit, name in units if span.high >= least)
    unit, name = next(fitting, (1e-3, "ms"))
    return f"{figures_text(span.scaled(1.0 / unit))} {name}"


def figures_text(span: Span) -> str:
    """Both ends with three digits: "21.3 to 48"."""
    return format_range(span.low, span.high, _digits)


def percent_text(span: Span) -> str:
    """Both ends in percents of two digits: "9.9 to 20 %"."""
    if span.high < LEAST_SHARE:
        return "under 0.01 %"
    text = format_range(
        span.low, span.high, lambda end: f"{100 * end:.2g}" if end < 1.0 else f"{100 * end:.0f}"
    )
    return f"{text} %"


def _digits(value: float) -> str:
    if value >= 100.0:  # noqa: PLR2004 - three digits are enough
        places = max(3 - len(str(int(value))), 0)
        return format_count(round(value, places))
    whole = f"{value:.{max(2 - math.floor(math.log10(max(value, 1e-9))), 0)}f}"
    return whole.rstrip("0").rstrip(".") if "." in whole else whole
