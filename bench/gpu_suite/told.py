"""What was said beside what was measured: `python -m bench.gpu_suite.told`, a table in Markdown.

Every record of the suite under runs/recorded, priced as a job that states the software it ran on.
Nothing that was measured there goes into the prices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.cost.bill import step_log_sd
from autotune.pricing import Pricing
from autotune.probe.record import read_records

from .items import every

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from autotune.cost.bill import Bill
    from autotune.probe.record import ProbeRecord

    from .items import Item

ROOT = Path(__file__).resolve().parents[2] / "runs" / "recorded"
Z80 = 1.2816  # of a normal value's 80 % interval
SHORT = (  # what a page shows that has no room for all
    "smoke/small", "full/16x1024", "full/8b/1x1024/kept", "lora/1x1024", "lora/4x1024",
    "lora/4x1024/kept", "lora/1x8192/kept", "qlora/2x1024", "family/qwen2.5-7b/4x1024/kept",
    "kinds/olmoe/2x1024", "room/full-8b",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Beside:
    """One record and its bill."""

    item: Item
    gpu: str
    record: ProbeRecord
    bill: Bill

    @property
    def step_s(self) -> tuple[float, float, float]:
        """[s] a step as it is said: the low end, the middle, the high end of four in five."""
        middle = float(self.bill.step_s[0])
        low, high = (float(step_log_sd(self.bill, slower=slower)[0]) for slower in (False, True))
        return middle * math.exp(-Z80 * low), middle, middle * math.exp(Z80 * high)

    @property
    def said_bytes(self) -> dict[str, float]:
        """[bytes] allocated, reserved, driver."""
        own = self.bill.estimate(0)
        context = own.memory_bytes.context
        allocated = own.memory_bytes.total - context - own.memory_bytes.fragmentation
        reserved = own.reserved_bytes
        return {"allocated": allocated, "reserved": reserved, "driver": reserved + context}


def recorded() -> Iterator[Beside]:
    """Every record of an item, in the order of the files."""
    items = {item.name: item for item in every()}
    for path in sorted(ROOT.glob("*/probes.jsonl")):
        for record in read_records(path):
            item = items.get(record.role.partition("+")[0])
            if item is None:
                continue
            gpu, versions = path.parent.name, record.result.get("versions", {})
            job = item.of(gpu, versions=versions)
            bill = Pricing(job).of([(job.offers[0], item.config())])
            yield Beside(item, gpu, record, bill)


def table(names: Collection[str] = ()) -> str:
    """The Markdown, of the items of these names; of all where none is given."""
    titles = (
        "run", "step, said [s]", "measured", "allocated, said [GB]", "measured",
        "reserved, said", "measured", "driver, said", "measured",
    )  # fmt: skip
    lines = [f"| {' | '.join(titles)} |", f"| --- |{' ---: |' * (len(titles) - 1)}"]
    for found in recorded():
        if names and found.item.name not in names:
            continue
        item, (low, middle, high) = found.item, found.step_s
        micro, length = item.rows
        settings = [*item.knobs.values(), *(["ragged"] if item.ragged else [])]
        settings += ["32-bit weights"] if item.job.get("method.base") == "32bit" else []
        settings += [f"accumulation {item.accumulation}"] if item.accumulation > 1 else []
        name = ", ".join(
            [
                item.model.rpartition("/")[2],
                item.method,
                f"{micro} x {length}",
                *map(_word, settings),
            ]
        )
        if not found.record.ok:
            said = found.bill.estimate(0).fits_probability
            lines.append(f"| {name} | | ran out | P(fits) {said:.2f} | | | | | |")
            continue
        step, memory = found.record.result["step"], found.record.result["memory"]
        cells = [
            f"{middle:.3f} ({low:.3f} to {high:.3f})",
            f"{step['step_s']:.3f}{'*' if item.ragged else ''}",
        ]
        for kind, said_bytes in found.said_bytes.items():
            cells += [f"{said_bytes / 1e9:.2f}", f"{memory[f'{kind}_bytes'] / 1e9:.2f}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def summary() -> str:
    """How near all of it is: runs of equal rows that ended, by what their step waits for."""
    ran = [f for f in recorded() if f.record.ok and not f.item.ragged]
    steps = [(f, float(f.record.result["step"]["step_s"])) for f in ran]
    inside = sum(low < took < high for f, took in steps for low, _, high in [f.step_s])
    host = [f.bill.estimate(0).step_bound == "launch" for f in ran]
    ratios = [took / f.step_s[1] for f, took in steps]
    waits = [ratio for ratio, own in zip(ratios, host, strict=True) if own]
    device = [ratio for ratio, own in zip(ratios, host, strict=True) if not own]
    return (
        f"Of {len(ran)} typical steps {inside} are inside the 80 % interval. Measured over said: "
        f"{min(device):.2f} to {max(device):.2f} where the device is waited for ({len(device)}), "
        f"{min(waits):.2f} to {max(waits):.2f} where the host is ({len(waits)})."
    )


def _word(value: object) -> str:
    return {"full": "recomputed"}.get(str(value), str(value))


if __name__ == "__main__":
    print(f"{table()}\n\n{summary()}")
