"""Probes that were recorded before, answered again: search on real measurements without a device.

A replay knows a finite set of candidates and what each measured. Whoever asks for another one is
told that it was never run.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

from autotune.app.probing.plan import AnyRunner
from autotune.domain.config import Config
from autotune.domain.observation import value_of
from autotune.domain.outcome import Failed, Infeasible, Measured
from autotune.frozen import dataclass
from autotune.probe.record import ProbeRecord, config_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from autotune.domain.device import Offer
    from autotune.domain.job import Job
    from autotune.domain.observation import Observation
    from autotune.evidence.cases import MeasuredCase

NOT_RECORDED = "this candidate was never run"
CLOSED_FORMS = {"checkpoint_every_steps": 1, "save_total_limit": 1}  # no probe depends on them

Result = Measured | Infeasible | Failed


def replay_key(config: Config) -> str:
    """What two configurations must share to have the same probe."""
    return config.with_knobs(**CLOSED_FORMS).key


@dataclass(frozen=True, slots=True)
class Replay:
    """Recorded outcomes of one job by offer and configuration."""

    job: Job
    outcomes: dict[tuple[str, str], Result]

    def __len__(self) -> int:
        """Candidates that were run."""
        return len(self.outcomes)

    def __iter__(self) -> Iterator[Result]:
        """Every outcome, in the order of the record."""
        return iter(self.outcomes.values())

    def pairs(self) -> list[tuple[Offer, Config]]:
        """The candidates, for `Candidates.of`."""
        return [(found.offer, found.config) for found in self]

    def measure(self, offer: Offer, config: Config) -> Result:
        """What was measured; Failed of kind `not_recorded` where nothing was."""
        found = self.outcomes.get((offer.label, replay_key(config)))
        if found is None:
            return Failed(offer, config, "replay", "not_recorded", NOT_RECORDED)
        return found

    def best(self) -> Measured | None:
        """The one with the best pace: what an exhaustive search would have found."""
        ran = [found for found in self if isinstance(found, Measured)]
        return min(ran, key=pace_s, default=None)

    def regret(self, chosen: Measured) -> float:
        """Relative excess of a choice's pace over the best that was recorded."""
        best = self.best()
        return pace_s(chosen) / pace_s(best) - 1.0 if best else 0.0


def pace_s(found: Measured) -> float:
    """[s] of training for one row: compares steps of different global batches.

    Formula: step / (micro-batch x accumulation x devices).
    """
    config = found.config
    rows = config.micro_batch_size * config.gradient_accumulation_steps * found.offer.count
    return found.step_time_s / rows


class RecordedRunner(AnyRunner):
    """Stands in for a `Runner`: answers requests from records instead of running anything.

    Where a configuration was run several times, the seed decides in which order its runs answer;
    when all have, they answer again.
    """

    def __init__(self, records: Iterable[ProbeRecord], seed: int = 0) -> None:
        """Keep the records; they are found by configuration, not by key."""
        self._runs: dict[str, list[ProbeRecord]] = defaultdict(list)
        for record in records:
            self._runs[replay_key(config_of(record))].append(record)
        chance = Random(seed)  # noqa: S311 - which of two equal runs answers
        for key in sorted(self._runs):
            chance.shuffle(self._runs[key])
        self._asked: dict[str, int] = defaultdict(int)

    def run(
        self, request: dict[str, Any], config: dict[str, Any], *,
        predicted: dict[str, float] | None = None, role: str = "search",
        timeout_s: float | None = None,  # noqa: ARG002 - a runner's signature
    ) -> ProbeRecord:  # fmt: skip
        """The recorded probe of that configuration; `unsupported` where there is none."""
        key = replay_key(Config.of(config))
        runs = self._runs.get(key)
        if not runs:
            return ProbeRecord(
                request["key"], "unsupported", NOT_RECORDED, 0.0, config, "", "", {}, role=role
            )
        found = runs[self._asked[key] % len(runs)]
        self._asked[key] += 1
        return replace(
            found, key=request["key"], config=config, role=role, predicted=predicted or {}
        )


def outcome_of(
    offer: Offer, config: Config, seen: Sequence[Observation]
) -> Measured | Infeasible | None:
    """What Observations of one run say of its candidate; None where no step was measured.

    Of memory what torch read counts, allocated and reserved; one for the other where it is alone.
    """
    if any(each.quantity == "oom" for each in seen):
        available = offer.device.memory_torch_bytes
        return Infeasible(offer, config, available, available, "oom")
    step = next((each for each in seen if each.quantity == "step_time_s"), None)
    if step is None:
        return None
    first = value_of(seen, "memory_bytes") or 0.0
    return Measured(
        offer, config, step.value, value_of(seen, "memory_bytes", "allocated") or first,
        value_of(seen, "memory_bytes", "reserved") or first, step.provenance,
    )  # fmt: skip


def _joined(found: Sequence[Result]) -> Result:
    """One outcome of several runs: did not fit if any did not, else the mean of those that ran."""
    for item in found:
        if isinstance(item, Infeasible):
            return item
    ran = [item for item in found if isinstance(item, Measured)]
    if not ran:
        return found[0]
    first = ran[0]
    return Measured(
        first.offer, first.config, sum(r.step_time_s for r in ran) / len(ran),
        max(r.peak_allocated_bytes for r in ran), max(r.peak_reserved_bytes for r in ran),
        first.provenance,
    )  # fmt: skip


def sweeps(cases: Iterable[MeasuredCase], least: int = 8) -> list[Replay]:
    """Jobs of the public record that were run in at least so many configurations, largest first.

    Rows of one source belong together when model, method, lengths and software are the same; their
    global batches may differ, which is why they are compared by pace. `job` is the first row's.
    """
    grouped: dict[tuple[object, ...], list[MeasuredCase]] = defaultdict(list)
    for case in cases:
        job = case.job
        lengths = (job.max_length, job.padding, job.lengths.quantiles)
        key = (case.group[0], job.model.name, job.method, job.software, *lengths)
        if not case.older:
            grouped[key].append(case)
    found = [replay_of_cases(group) for group in grouped.values()]
    return sorted((r for r in found if len(r) >= least), key=len, reverse=True)


def replay_of_cases(cases: Sequence[MeasuredCase]) -> Replay:
    """A replay of public rows of one job."""
    grouped: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for case in cases:
        outcome = outcome_of(case.offer, case.config, case.observations)
        if outcome is not None:
            grouped[case.offer.label, replay_key(case.config)].append(outcome)
    return Replay(cases[0].job, {key: _joined(group) for key, group in grouped.items()})
