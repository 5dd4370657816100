"""Measurements worth a GPU's time: `python -m bench.gpu_suite [--seconds 480] [--dry-run]`.

One command, offline, resumable: work is ordered by priority, every finished probe is on the disk
(runs/recorded/gpu-suite/probes.jsonl) before the next starts, and a call starts no new work when
its seconds are over. Call it again until it says that nothing is left. --dry-run does the same on a
processor with tiny models, in about two minutes.

Items, by priority:
  smoke     one small model: does anything run at all
  repeat    one configuration four times: what repeating a probe leaves over
  memory    context, and peaks that the memory model has to reproduce: full and LoRA, with and
            without activation checkpointing, sdpa and eager, 16-bit and 32-bit base
  depth     two small depths and the full depth of one model: does the line hold
  deep      the full depth of the 8B model, beside the two depths that the next grid measures
  lora      a grid of at least 40 configurations: LoRA of an 8B model by two depths
  full      a grid of at least 40 configurations: full fine-tuning of a 0.5B model
  nf4       a few of the LoRA grid on a 4-bit base, where bitsandbytes can be imported
  compiled  the best of each grid with torch.compile; at most six a call

A configuration that fits or misses narrowly is run up to three times; repeats carry a # and number.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.app.job.load import jobs_of_line
from autotune.domain.config import Config
from autotune.domain.typed.overrides import Overrides
from autotune.probe import device as devices
from autotune.probe.outcomes import INTERRUPTED
from autotune.probe.record import ProbeLog, until_sure
from autotune.probe.request import Effort, key_of, request_for
from autotune.probe.runner import Place
from autotune.probe.session import Session
from autotune.probe.two_depth import agreement, extrapolated, requests_at_depths

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.domain.device import Offer
    from autotune.domain.job import Job
    from autotune.probe.device import LocalDevice
    from autotune.probe.record import ProbeRecord

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "runs" / "recorded" / "gpu-suite"
DRY_FOLDER = ROOT / "runs" / "gpu-suite-dry"
CALL_S, DRY_CALL_S = 480.0, 110.0
MOST_COMPILED = 6  # a call: compiling takes a minute and measures one thing
EFFORT = Effort(measured=16, seconds=6.0, patience_s=20.0, loader=False)
COMPILED = Effort(measured=12, seconds=6.0, patience_s=150.0, loader=False, evaluation=False,
                  checkpoint_max_bytes=0.0)  # fmt: skip
DRY = Effort(most=8, measured=4, least=2, seconds=0.5, patience_s=2.0, loader=False)
REPEATS = 4
SMALL, LARGE = "Qwen/Qwen2.5-0.5B", "meta-llama/Llama-3.1-8B"
TINY = str(ROOT / "jobs" / "data" / "tiny_model")


@dataclass(frozen=True, slots=True)
class Item:
    """One probe to make. name is unique: what is recorded under it is not made again."""

    name: str
    job: Job
    config: Config
    effort: Effort
    depth: int | None = None

    @property
    def group(self) -> str:
        """The item's priority class: the first word of its name."""
        return self.name.partition("/")[0]


def fit_share(records: list[ProbeRecord]) -> float | None:
    """The share of runs that fitted, of those that say anything about it."""
    told = [record.fits for record in records if record.fits is not None]
    return sum(told) / len(told) if told else None


def jobs(gpu: str, *, dry: bool) -> dict[str, Job]:
    """The jobs of the suite on this device; tiny ones in a dry run."""
    small, large = (TINY, TINY) if dry else (SMALL, LARGE)
    length = 64 if dry else 1024
    found = {
        "full": _job(gpu, small, "full", length),
        "lora": _job(gpu, large, "lora", length),
    }
    if dry:
        return {name: _shrunk(job) for name, job in found.items()}
    found["nf4"] = _job(gpu, large, "qlora", length)
    return found


def _job(gpu: str, model: str, method: str, max_length: int) -> Job:
    stated: dict[str, object] = {
        "model": model, "method.kind": method, "data.rows": 4096, "data.max_length": max_length,
        "train.epochs": 1, "train.global_batch_size": 32,
    }  # fmt: skip
    return jobs_of_line(Overrides(gpus=(gpu,), price="free", stated=stated))[0].job


def _shrunk(job: Job) -> Job:
    """The dry run's model: weights in fp32, and deep enough for two depths."""
    model = replace(job.model, num_layers=8)
    return replace(job, model=model, method=replace(job.method, base="32bit"))


def grid(job: Job, offer: Offer, *, dry: bool) -> list[Config]:
    """Micro-batch x checkpointing x attention x precision, in a fixed order."""
    micros = (1, 2) if dry else (1, 2, 4, 8, 16)
    precisions = ("fp32",) if offer.device.is_cpu else ("bf16",)
    optimizers = ("adamw_torch_fused",) if dry else ("adamw_torch_fused", "adamw_torch")
    axes = itertools.product(("none", "full"), ("sdpa", "eager"), precisions, optimizers, micros)
    return [
        Config(
            micro_batch_size=micro, gradient_accumulation_steps=job.global_batch_size // micro,
            checkpoint_every_steps=1000, precision=precision, attention=attention,
            activation_checkpointing=kept, optimizer=optimizer,
            pin_memory=not offer.device.is_cpu,
        )
        for kept, attention, precision, optimizer, micro in axes
    ]  # fmt: skip


def items(found: dict[str, Job], *, dry: bool) -> Iterator[Item]:
    """Everything to measure, the most valuable first."""
    offer = found["full"].offers[0]
    grids = {name: grid(found[name], offer, dry=dry) for name in ("full", "lora")}
    yield from _questions(found, grids, dry=dry)
    yield from _grids(found, grids, dry=dry)
    for name in ("lora", "full"):
        for config in grids[name][1:4]:
            compiled = config.with_knobs(compile="default")
            depth = 2 if name == "lora" else None
            yield Item(f"compiled/{name}/{config.micro_batch_size}", found[name], compiled,
                       DRY if dry else COMPILED, depth)  # fmt: skip


def _questions(
    found: dict[str, Job], grids: dict[str, list[Config]], *, dry: bool
) -> Iterator[Item]:
    """Does it run, how well does it repeat, do the models of memory and depth hold."""
    full, effort = found["full"], DRY if dry else EFFORT
    first = grids["full"][1]
    yield Item("smoke/full", full, first, effort)
    for number in range(2 if dry else REPEATS):
        yield Item(f"repeat/{number}", full, first, effort)
    for name, depth in (("full", None), ("lora", 2)):
        for config in grids[name][:: 8 if dry else 5]:
            yield Item(f"memory/{name}/{config.key}", found[name], config, effort, depth)
    pair = requests_at_depths(full, full.offers[0], first, effort)
    for depth in (*((r["num_layers"] for r in pair) if pair else ()), None):
        yield Item(f"depth/{depth or 'all'}", full, first, effort, depth)
    yield Item("deep/all", found["lora"], grids["lora"][1], effort)


def _grids(
    found: dict[str, Job], grids: dict[str, list[Config]], *, dry: bool
) -> Iterator[Item]:  # fmt: skip
    """Every configuration of the two jobs; some of one of them on a 4-bit base."""
    lora, effort = found["lora"], DRY if dry else EFFORT
    pair = requests_at_depths(lora, lora.offers[0], grids["lora"][1], effort)
    depths = [request["num_layers"] for request in pair] if pair else [None]
    for config, depth in itertools.product(grids["lora"], depths):
        yield Item(f"lora/{depth or 'all'}/{config.key}", lora, config, effort, depth)
    for config in grids["full"]:
        yield Item(f"full/all/{config.key}", found["full"], config, effort)
    if "nf4" in found and importlib.util.find_spec("bitsandbytes"):
        for config in grids["lora"][::5]:
            yield Item(f"nf4/2/{config.key}", found["nf4"], config, effort, 2)


def run_suite(folder: Path, *, seconds: float, dry: bool) -> dict[str, Any]:
    """Make as many probes as fit into the seconds; what was made and what is left."""
    local = _device(dry=dry)
    name = local.device.name if local.device else local.name
    found = jobs(name, dry=dry)
    log = ProbeLog(folder / "probes.jsonl")
    done = {record.role for record in log.records}
    begun, made, compiled = time.monotonic(), 0, 0
    slowest = 0.0
    every = [item for item in items(found, dry=dry) if not (dry and item.group == "compiled")]
    with Session(Place(local, folder / "probing")) as session:
        for item in every:
            if item.name in done:
                continue
            if item.group == "compiled" and compiled >= MOST_COMPILED:
                continue
            left = seconds - (time.monotonic() - begun)
            if left < min(1.5 * slowest, 60.0) or left <= 0:
                break
            record = _probe(session, item, timeout_s=max(left, 20.0))
            if record.status == INTERRUPTED:
                break
            log.append(replace(record, role=item.name))
            done.add(item.name)
            made, compiled = made + 1, compiled + (item.group == "compiled")
            slowest = max(slowest, record.wall_s)
            print(_line(item, record, left), flush=True)
            _repeat(session, item, record, log, left - record.wall_s)
    left_over = [item.name for item in every if item.name not in done]
    report = {"made": made, "left": len(left_over), "next": left_over[:1],
              **summary(log.records, found)}  # fmt: skip
    (folder / "summary.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return report


def _device(*, dry: bool) -> LocalDevice:
    gpus = [] if dry else [gpu for gpu in devices.gpus() if gpu.device is not None]
    if not dry and not gpus:
        msg = "no GPU of the catalogue is here; --dry-run tries the suite on the processor"
        raise SystemExit(msg)
    return gpus[0] if gpus else devices.cpu()


def _probe(session: Session, item: Item, timeout_s: float) -> ProbeRecord:
    request = request_for(
        item.job, item.job.offers[0], item.config, effort=item.effort, num_layers=item.depth
    )
    if item.config.compile != "off":
        request["checkpoint_max_bytes"] = 0
    request["key"] = key_of(request)
    return session.run(request, item.config.as_dict(), timeout_s=timeout_s)


def _repeat(session: Session, item: Item, first: ProbeRecord, log: ProbeLog, left: float) -> None:
    """Run a narrow fit or miss again: its share of fits is what is known about it."""
    limit = max(left / 2, 20.0)
    for number, again in enumerate(until_sure(first, lambda: _probe(session, item, limit)), 2):
        log.append(replace(again, role=f"{item.name}#{number}"))
        print(_line(item, again, left), flush=True)


def _line(item: Item, record: ProbeRecord, left: float) -> str:
    words = [item.name.partition("micro_batch_size")[0].rstrip("/"), record.status]
    if record.ok:
        step, memory = record.result["step"], record.result["memory"]
        words += [f"{step['step_s'] * 1e3:.1f} ms", f"{memory['allocated_bytes'] / 2**30:.2f} GiB"]
    return " | ".join([*words, f"{record.wall_s:.1f} s", f"{left:.0f} s left"])


def summary(records: list[ProbeRecord], found: dict[str, Job]) -> dict[str, Any]:
    """Repeat error, overhead of a probe, and how well two depths agree with the full one."""
    groups: dict[str, list[ProbeRecord]] = {}
    for record in records:
        groups.setdefault(record.role.partition("/")[0], []).append(record)
    answer: dict[str, Any] = {
        "records": len(records),
        "outcomes": {s: sum(r.status == s for r in records) for s in {r.status for r in records}},
    }
    steps = [r.result["step"]["step_s"] for r in groups.get("repeat", []) if r.ok]
    if len(steps) > 1:
        mean = sum(steps) / len(steps)
        answer["repeat_error"] = (
            sum((s - mean) ** 2 for s in steps) / (len(steps) - 1)
        ) ** 0.5 / mean  # fmt: skip
    ok = [r for r in records if r.ok]
    if ok:
        walls = sorted(r.wall_s for r in ok)
        answer["probe_s_median"] = walls[len(walls) // 2]
    depth = {r.role: r for r in groups.get("depth", []) if r.ok}
    shallow = sorted((r for n, r in depth.items() if n != "depth/all"),
                     key=lambda r: int(r.request["num_layers"]))  # fmt: skip
    if "depth/all" in depth and len(shallow) > 1:
        line = extrapolated(shallow[0], shallow[1], found["full"].model.num_layers)
        answer["two_depth_over_full"] = agreement(line, depth["depth/all"])
    answer |= _deep(records, found["lora"].model.num_layers)
    narrow = {r.role.partition("#")[0] for r in records if "#" in r.role}
    answer["fit_shares"] = {
        name: fit_share([r for r in records if r.role.partition("#")[0] == name])
        for name in sorted(narrow)
    }
    return answer


def _deep(records: list[ProbeRecord], num_layers: int) -> dict[str, Any]:
    """The 8B model's full depth beside the two depths of the same configuration in the grid."""
    whole = [r for r in records if r.role == "deep/all" and r.ok]
    pair = [
        r
        for r in records
        if whole and r.ok and r.role.startswith("lora/") and r.config == whole[0].config
    ]
    if len(pair) < 2:  # noqa: PLR2004 - two depths
        return {}
    low, high = sorted(pair[:2], key=lambda r: int(r.request["num_layers"]))
    line = extrapolated(low, high, num_layers)
    return {"two_depth_over_full_deep": agreement(line, whole[0])}


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=None, help="of this call")
    parser.add_argument("--dry-run", action="store_true", help="tiny models on the processor")
    parser.add_argument("--folder", type=Path, default=None, help="where records are kept")
    options = parser.parse_args()
    dry = options.dry_run
    folder = options.folder or (DRY_FOLDER if dry else FOLDER)
    folder.mkdir(parents=True, exist_ok=True)
    seconds = options.seconds or (DRY_CALL_S if dry else CALL_S)
    report = run_suite(folder, seconds=seconds, dry=dry)
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
