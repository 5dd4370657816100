"""A row of a public table as something the cost model can predict, or why it cannot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.domain.config import Config
    from autotune.domain.device import Offer
    from autotune.domain.job import Job
    from autotune.domain.observation import MemoryKind

Group = tuple[str, str, str, str]  # source repository, model, GPU, task: as the table spells them


@dataclass(frozen=True, slots=True)
class MeasuredCase:
    """A measured run with the job, machine and configuration that reproduce it in the cost model.

    Cases that share a job hold the same Job object, so that they can be priced together.
    `step_time_s` is one optimizer step in steady state. `driver_bytes` is a second reading of the
    same run, by the driver, where the source gives one beside torch's own.
    """

    id: str
    group: Group
    job: Job
    offer: Offer
    config: Config
    tokens_per_s_per_gpu: float | None
    step_time_s: float | None
    peak_bytes: float | None
    peak_kind: MemoryKind | None
    oom: bool | None
    replicate_key: str
    driver_bytes: float | None = None
    longest_known: bool = True  # the longest row is stated, so the peak of memory can be predicted
    older: bool = False  # an earlier snapshot of a run that the table also has in a newer one
    assumed: tuple[str, ...] = ()
    sweep_key: str = ""  # equal where only knobs of a search differ
    partial: tuple[str, ...] = ()  # measured values of the row that cannot be compared, and why

    @property
    def ran(self) -> bool:
        """Whether the run finished, so its configuration fits the machine."""
        return not self.oom and (self.step_time_s is not None or self.peak_bytes is not None)


class Refused(Exception):  # noqa: N818 - not an error: the row is outside the cost model
    """A row that the cost model does not cover; the message is the reason to skip it."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A row that is not compared with the cost model, and the reason."""

    id: str
    reason: str
