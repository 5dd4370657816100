"""A machine that answers from a formula, and a probed search on it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.app.probing.plan import AnyRunner, ProbeOptions
from autotune.app.probing.study import StudySettings, probe_candidates
from autotune.cost.model import CostModel
from autotune.probe import device as devices
from autotune.probe.record import PROBES_FILE, ProbeRecord, read_records
from autotune.space.enumerate import enumerate_candidates
from autotune.space.file import at_every_level, load_space

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.app.probing.study import Probed
    from autotune.cost.bill import Bill
    from autotune.domain.job import Job

ROOT = Path(__file__).parents[3]
TINY = ROOT / "jobs" / "tiny_cpu.yaml"


class Killed(BaseException):
    """The process is gone."""


def bill_of(job: Job, space: Path | None = None) -> Bill:
    values = load_space(space)
    candidates = enumerate_candidates(job, values).candidates
    return CostModel(job).price(at_every_level(candidates, values.extra))


def step_of(config: dict[str, Any]) -> float:
    """[s] of 8 rows: bf16 is emulated, checkpointing recomputes, eager is slower."""
    each = 0.02 + 0.03 * config["micro_batch_size"] ** 0.9
    each *= 2.5 if config["precision"] == "bf16" else 1.0
    each *= 1.3 if config["activation_checkpointing"] == "full" else 1.0
    each *= 1.1 if config["attention"] == "eager" else 1.0
    return float(each * 8 / config["micro_batch_size"] + 0.004 * config["num_dataloader_workers"])


class Machine(AnyRunner):
    """A runner whose probes follow `step_of`. `dies(number, when)` is asked before and after."""

    def __init__(
        self,
        step: Callable[[dict[str, Any]], float] = step_of,
        dies: Callable[[int, str], None] = lambda _n, _w: None,
        status: Callable[[dict[str, Any], str], str] = lambda _c, _r: "ok",
        wall_s: float = 5.0,
    ) -> None:
        self.step, self.dies, self.status, self.wall_s = step, dies, status, wall_s
        self.count = 0
        self.asked: list[dict[str, Any]] = []

    def run(
        self, request: dict[str, Any], config: dict[str, Any], *,
        predicted: dict[str, float] | None = None, role: str = "search",
        timeout_s: float | None = None,  # noqa: ARG002 - a runner's signature
    ) -> ProbeRecord:  # fmt: skip
        self.dies(self.count, "before")
        self.count += 1
        self.asked.append(request)
        layers = int(request["num_layers"])
        accumulation = request["gradient_accumulation_steps"]
        full = 8 // config["micro_batch_size"]
        step_s = self.step(config) * accumulation / full * layers / 2
        memory = 1e9 + 1e8 * layers * config["micro_batch_size"]
        result = {
            "step": {"step_s": step_s, "micro_s": step_s, "optimizer_s": 0.0, "data_s": 0.0,
                     "accumulation": accumulation, "tokens": 1000, "relative_error": 0.01},
            "memory": {"allocated_bytes": memory, "reserved_bytes": memory,
                       "driver_bytes": memory + 2e8, "context_bytes": 2e8, "total_bytes": 2e10},
            "checkpoint": {"save_s": 0.1, "bytes": 1000},
            "loader": [{"workers": 0, "batch_s": 0.001, "start_s": 0.0, "batches": 9}],
        }  # fmt: skip
        status = self.status(config, role)
        record = ProbeRecord(
            request["key"], status, "", self.wall_s, config, "cpu", "", request, result,
            when=str(self.count), role=role, predicted=predicted or {},
        )  # fmt: skip
        self.dies(self.count - 1, "after")
        return record


def options_of(machine: Machine, **changes: Any) -> ProbeOptions:
    return ProbeOptions(**{"runner": lambda _: machine, "reuse": False, **changes})


def search(
    bill: Bill, machine: Machine, folder: Path, *, resume: bool = False, **changes: Any
) -> Probed:
    own = {
        name: changes.pop(name) for name in ("storage", "sampler", "objective") if name in changes
    }
    study = StudySettings(folder, "job", resume=resume, **own)
    return probe_candidates(
        bill, devices.cpu(), options_of(machine, **changes), study, lambda _: None
    )


def search_in_pieces(
    bill: Bill, folder: Path, machine: Callable[[int], Machine], **changes: Any
) -> int:
    """Search and resume what is killed, at most forty times: how often it was. machine: of each."""
    for kills in range(40):
        try:
            search(bill, machine(kills), folder, resume=kills > 0, **changes)
        except Killed:
            continue
        return kills
    raise AssertionError(folder)


def dies_before_the_second(number: int, when: str) -> None:
    if number == 1 and when == "before":
        raise Killed


def sequence(folder: Path) -> list[tuple[str, str]]:
    return [(record.key, record.role) for record in read_records(folder / PROBES_FILE)]
