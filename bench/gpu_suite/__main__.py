"""Measurements worth a GPU's time: `python -m bench.gpu_suite [--seconds 480] [--dry-run]`.

One command, offline, resumable: work is ordered by worth (`items.py`), every finished probe is on
the disk (runs/recorded/<device>/probes.jsonl) before the next starts, and a call starts no new work
when its seconds are over. Call it again until it says that nothing is left. --dry-run does the same
on a processor with a tiny model. --only WORD[,WORD]: the items whose names begin so; --tag WORD
names them apart, where another installation measures them again. --inside: in this process where
that is possible, which saves importing the libraries for each.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.probe import device as devices
from autotune.probe.outcomes import INTERRUPTED
from autotune.probe.record import ProbeLog
from autotune.probe.runner import Place
from autotune.probe.session import Session

from .inside import run_inside, stays_apart
from .items import every

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.probe.device import LocalDevice
    from autotune.probe.record import ProbeRecord

    from .items import Item

ROOT = Path(__file__).resolve().parents[2]
CALL_S, DRY_CALL_S = 480.0, 110.0
LEAST_S = 12.0  # left of a call, for another probe to begin


def run_suite(
    folder: Path, wanted: Sequence[Item], *, seconds: float, dry: bool, tag: str = "",
    inside: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Make as many probes as fit into the seconds; what was made and what is left."""
    folder.mkdir(parents=True, exist_ok=True)
    local = device_here(dry=dry)
    gpu = local.device.name if local.device else local.name
    log = ProbeLog(folder / "probes.jsonl")
    done = {record.role for record in log.records}
    begun, made = time.monotonic(), 0
    named = [(f"{item.name}+{tag}" if tag else item.name, item) for item in wanted]
    with Session(Place(local, folder / "probing")) as session:
        for name, item in named:
            left = seconds - (time.monotonic() - begun)
            if name in done or (item.needs and not importlib.util.find_spec(item.needs)):
                continue
            if left < LEAST_S:
                break
            config, request = item.config(on_cpu=local.is_cpu), item.request(gpu, dry=dry)
            if inside and not stays_apart(request):
                record = run_inside(local, request, config)
            else:
                record = session.run(request, config.as_record(), timeout_s=left)
            if record.status == INTERRUPTED:
                break
            log.append(replace(record, role=name))
            done.add(name)
            made += 1
            print(_line(name, record, left), flush=True)
            if inside and record.status == "cuda_error":
                break  # nothing works in this process any more
    return {"made": made, "left": [name for name, _ in named if name not in done]}


def device_here(*, dry: bool) -> LocalDevice:
    """The GPU that is measured, or in a dry run the processor."""
    if dry:
        return devices.cpu()
    found = [gpu for gpu in devices.gpus() if gpu.device is not None]
    if not found:
        msg = "no GPU of the catalogue is here; --dry-run tries the suite on the processor"
        raise SystemExit(msg)
    return found[0]


def _line(name: str, record: ProbeRecord, left: float) -> str:
    words = [name, record.status]
    if record.ok:
        step, memory = record.result["step"], record.result["memory"]
        words += [f"{step['step_s'] * 1e3:.1f} ms", *(
            f"{kind} {memory[f'{kind}_bytes'] / 1e9:.2f}" for kind in ("allocated", "driver")
        )]  # fmt: skip
    else:
        words.append(record.message[-160:].replace("\n", " "))
    return " | ".join([*words, f"{record.wall_s:.1f} s", f"{left:.0f} s left"])


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=None, help="of this call")
    parser.add_argument("--dry-run", action="store_true", help="a tiny model on the processor")
    parser.add_argument("--folder", type=Path, default=None, help="where records are kept")
    parser.add_argument("--only", default="", help="items whose names begin with one of these")
    parser.add_argument("--inside", action="store_true", help="in this process where possible")
    parser.add_argument("--tag", default="", help="of an installation that measures again")
    options = parser.parse_args()
    dry = options.dry_run
    local = device_here(dry=dry)
    name = local.device.name if local.device else local.name
    folder = options.folder or ROOT / "runs" / ("gpu-suite-dry" if dry else f"recorded/{name}")
    only = tuple(word for word in options.only.split(",") if word)
    wanted = [item for item in every() if not only or item.name.startswith(only)]
    seconds = options.seconds or (DRY_CALL_S if dry else CALL_S)
    report = run_suite(
        folder, wanted, seconds=seconds, dry=dry, tag=options.tag, inside=options.inside
    )
    print(json.dumps(report))


if __name__ == "__main__":
    main()
