"""Every configuration of the tiny CPU job, measured once for all: `python -m bench.replay.grid`.

Each configuration of the job's space (compile is off: on a processor compiling takes longer than
all steps of this job) is measured at least twice, in shuffled order, each time in a fresh process,
into runs/recorded/tiny-cpu/. Resumable; half an hour on an idle machine. A measurement during which
other programs kept the processor busy is kept and marked; such a configuration is measured again in
a later round. --seconds ends a call early.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import resource
import time
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.app.job.load import load_job
from autotune.catalog.files import write_whole
from autotune.domain.device import Device, Host
from autotune.probe import device as devices
from autotune.probe.record import ProbeLog
from autotune.probe.request import request_for
from autotune.probe.runner import Place, Runner
from autotune.space.enumerate import enumerate_candidates
from autotune.space.file import load_space
from bench.replay.recorded import replay_key

if TYPE_CHECKING:
    from autotune.domain.config import Config
    from autotune.domain.job import Job
    from autotune.probe.record import ProbeRecord

ROOT = Path(__file__).resolve().parents[2]
JOB = ROOT / "jobs" / "tiny_cpu.yaml"
FOLDER = ROOT / "runs" / "recorded" / "tiny-cpu"
MACHINE, RECORD = "machine.json", "probes.jsonl"
ROUNDS, WANTED = 6, 2  # shuffled passes at most; undisturbed measurements of each configuration
DISTURBED = 0.6  # cores that other programs used on average
WAIT_S = 600.0  # for other programs to end, before each measurement
KEPT = {
    "step": ("step_s", "micro_s", "optimizer_s", "data_s", "accumulation", "tokens", "steps",
             "relative_error", "steady"),
    "memory": ("allocated_bytes", "reserved_bytes", "driver_bytes", "context_bytes", "total_bytes"),
    "evaluation": ("batch_s", "rows", "tokens"),
    "checkpoint": ("save_s", "load_s", "bytes"),
}  # fmt: skip


def tiny_job(folder: Path = FOLDER) -> Job:
    """The job whose space was measured, on the machine that it was measured on."""
    job = load_job(JOB, set_values={"compile": "off"})
    path = folder / MACHINE
    if not path.exists():
        return job
    about = json.loads(path.read_text(encoding="utf-8"))
    device = Device(**{**about["device"], "aliases": tuple(about["device"]["aliases"])})
    host = Host(**{**about["host"], "assumed": tuple(about["host"]["assumed"])})
    return replace(job, offers=(replace(job.offers[0], device=device, host=host),))


def configurations(job: Job) -> list[Config]:
    """Every configuration of the job's default space."""
    found = enumerate_candidates(job, load_space(None)).candidates
    closed = {"checkpoint_every_steps": max(job.steps, 1), "save_total_limit": 2}
    return [found.config(index, **closed) for index in range(len(found))]


def undisturbed(record: ProbeRecord) -> bool:
    """Whether nobody else kept the processor busy while it was measured.

    Where only the load average was read, the probe itself is one of it.
    """
    load = float(record.readings.get("load", 1.0)) - 1.0
    return float(record.readings.get("others", load)) <= DISTURBED


def compact(record: ProbeRecord, role: str, others: float) -> ProbeRecord:
    """What a replay needs of a record. others: cores that other programs used meanwhile."""
    result: dict[str, Any] = {}
    for part, names in KEPT.items():
        found = record.result.get(part)
        if found:
            result[part] = {n: _short(found[n]) for n in names if n in found}
    result["loader"] = [
        {name: _short(value) for name, value in entry.items()}
        for entry in record.result.get("loader") or []
    ]
    result["versions"] = record.result.get("versions", {})
    return replace(
        record, role=role, request={}, result=result, readings={"others": round(others, 3)},
        predicted={}, wall_s=_short(record.wall_s),
    )  # fmt: skip


def _short(value: Any) -> Any:  # noqa: ANN401 - a number or a truth value
    return float(f"{value:.6g}") if isinstance(value, float) else value


class Others:
    """[cores] what programs other than our own children used since the last look (Linux)."""

    def __init__(self) -> None:
        """Begin to count."""
        self._last = self._now()

    @staticmethod
    def _now() -> tuple[float, float, float]:
        ticks = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:]
        idle = float(ticks[3]) + float(ticks[4])
        busy = (sum(map(float, ticks[:8])) - idle) / 100.0
        own = sum(
            getattr(resource.getrusage(who), name)
            for who in (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF)
            for name in ("ru_utime", "ru_stime")
        )
        return time.monotonic(), busy, own

    def look(self) -> float:
        """Since the last look."""
        now, last = self._now(), self._last
        self._last = now
        wall, busy, own = (b - a for a, b in zip(last, now, strict=True))
        return max(busy - own, 0.0) / max(wall, 1e-9)

    def wait(self, seconds: float) -> None:
        """Until they leave the processor alone, at most so long."""
        deadline = time.monotonic() + seconds
        self.look()
        while time.monotonic() < deadline:
            time.sleep(2.0)
            if self.look() <= DISTURBED / 2:
                break


def record_all(folder: Path, seconds: float) -> None:
    """Measure what is not on the record yet, one configuration after another."""
    folder.mkdir(parents=True, exist_ok=True)
    job = tiny_job(folder)
    offer, every = job.offers[0], configurations(job)
    about = {"device": asdict(offer.device), "host": asdict(offer.host)}
    write_whole(folder / MACHINE, json.dumps(about, indent=1) + "\n")
    log = ProbeLog(folder / RECORD)
    done = {(record.role, record.key) for record in log.records}
    good = Counter(record.key for record in log.records if undisturbed(record))
    runner, others = Runner(Place(devices.cpu(), folder / "probing")), Others()
    begun = time.monotonic()
    for number in range(ROUNDS):
        role = f"round/{number}"
        for config in random.Random(number).sample(every, len(every)):  # noqa: S311 - an order
            key = key_of(config)
            if (role, key) in done or (number >= WANTED and good[key] >= WANTED):
                continue
            if time.monotonic() - begun > seconds:
                return
            others.wait(WAIT_S)
            others.look()
            record = runner.run(request_for(job, offer, config), config.as_dict())
            record = compact(replace(record, key=key), role, others.look())
            log.append(record)
            good[key] += undisturbed(record)
            said = record.result["step"]["step_s"] if record.ok else record.message[:200]
            print(role, len(log.records), record.status, said, record.readings, flush=True)


def key_of(config: Config) -> str:
    """A configuration's name in the record, the same on every machine."""
    return hashlib.sha256(replay_key(config).encode()).hexdigest()[:24]


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the record is kept")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of this call")
    options = parser.parse_args()
    record_all(options.folder, options.seconds)


if __name__ == "__main__":
    main()
