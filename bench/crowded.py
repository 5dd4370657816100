"""What becomes of runs whose cached memory would fill the card: `python -m bench.crowded`.

Drawn jobs of rows of many lengths whose formula says "fits" and whose allocator is expected to hold
all of usable memory. Each is traced through the simulated caching allocator of `trace.answers`
on a card of that size: a request that finds no room gives cached segments back and asks again, and
the run fails where that is not enough. The bound of crowded claims (`memory.claims` of
`cost/calibration.toml`) rests on measured runs alone; this is the independent look at it.

Does not cover: more than three steps, several devices.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.app.estimate import estimate
from autotune.app.job.load import load_job
from autotune.cost.constants import Claims

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.domain.job import Job

MODELS = (
    "Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-1.5B", "meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.2-3B",
    "mistralai/Mistral-7B-v0.1",
)  # fmt: skip
METHODS = ("lora", "full", "{kind: lora, rank: 16, base: nf4}")
GPUS = ("l4", "a100-sxm4-40gb", "a100-sxm4-80gb", "l40s")
LENGTHS = ((512, 150, 400), (1024, 220, 700), (2048, 300, 1500))  # longest, median, 95 % below
LEAST = 0.7  # of usable memory: less is far from any limit
JOB = """\
name: crowded
model: {model}
method: {method}
data: {{rows: 5000, max_length: {most}, padding: longest,
       lengths: {{p50: {p50}, p95: {p95}, max: {most}}}}}
train: {{global_batch_size: 64}}
hardware: [{{gpu: {gpu}, price: 1 USD/h}}]
lock: {{micro_batch_size: {micro}, activation_checkpointing: {checkpointing}}}
"""


def drawn(seed: int) -> Iterator[str]:
    """Job files in a drawn order."""
    every = list(product(MODELS, METHODS, ("none", "full"), (1, 2, 4, 8, 16, 32), GPUS, LENGTHS))
    random.Random(seed).shuffle(every)  # noqa: S311 - a draw, no secret
    for model, method, checkpointing, micro, gpu, (most, p50, p95) in every:
        yield JOB.format(
            model=model, method=method, checkpointing=checkpointing, micro=micro, gpu=gpu,
            most=most, p50=p50, p95=p95,
        )  # fmt: skip


def simulated(job: Job) -> dict[str, Any] | None:
    """What the allocator does with a crowded claim, in shares of the card; None for other jobs."""
    claim = estimate(job, fidelity="formula").row
    need = claim.memory_bytes.total / claim.usable_bytes
    if not (claim.crowded and claim.verdict == "fits" and need >= LEAST):
        return None
    traced = estimate(job, fidelity="trace", full_trace=True).row.traced
    run = traced.allocator if traced else None
    if run is None:
        return None
    return {
        "model": job.model.name, "method": job.method.kind, "base": job.method.base,
        "micro_batch_size": claim.config.micro_batch_size, "device": claim.offer.device.name,
        "max_length": job.max_length, "claimed_need": need,
        "in_use": run.in_use_bytes / run.capacity_bytes,
        "would_hold": run.reserved_bytes / run.capacity_bytes,
        "flushes": run.flushes, "out_of_memory": run.out_of_memory is not None,
        "expandable_out_of_memory": run.expandable_out_of_memory is not None,
    }  # fmt: skip


def answer(seconds: float, seed: int) -> dict[str, Any]:
    """As many crowded claims as the time allows, and how many of them the simulation fails."""
    begun, found = time.perf_counter(), []
    with tempfile.TemporaryDirectory() as folder:
        for text in drawn(seed):
            if time.perf_counter() - begun > seconds:
                break
            path = Path(folder) / "job.yaml"
            path.write_text(text, encoding="utf-8")
            own = simulated(load_job(path))
            found += [own] if own else []
    failures = sum(each["out_of_memory"] for each in found)
    return {
        "claims": found, "n": len(found), "failures": failures,
        "expandable_failures": sum(each["expandable_out_of_memory"] for each in found),
        "bears": Claims(len(found), failures).bears,
    }  # fmt: skip


def main() -> None:
    """Print the table or the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument("--quick", action="store_true", help="a minute instead of ten")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    found = answer(60.0 if arguments.quick else 600.0, arguments.seed)
    if arguments.format == "json":
        print(json.dumps(found))
        return
    for each in found["claims"]:
        ended = "out of memory" if each["out_of_memory"] else "ran"
        what = f"{each['model']} {each['method']} {each['base']} x{each['micro_batch_size']}"
        print(
            f"{what:<48} {each['device']:<16} in use {each['in_use']:.2f}, would hold "
            f"{each['would_hold']:.2f}, {each['flushes']} flushes: {ended}"
        )
    print(
        f"{found['failures']} of {found['n']} crowded claims failed, "
        f"{found['expandable_failures']} with segments that grow; such a count bears "
        f"{found['bears']:.3f}"
    )


if __name__ == "__main__":
    main()
