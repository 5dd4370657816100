"""The exact text for old and new spellings. To accept a change: AUTOTUNE_UPDATE_SNAPSHOTS=1."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from exportcases import config, evaluation, job, offer

from autotune.app.runs.export import export
from autotune.domain.outcome import DiskUse

SNAPSHOTS = Path(__file__).parent / "snapshots"
CONFIG = config(
    activation_checkpointing="full",
    length_grouping="on",
    num_dataloader_workers=2,
    compile="default",
)
CASES = {
    f"{target}{suffix}.json": (target, name)
    for target, name, suffix in (
        ("hf@4.57.6", "training_args.json", ""),
        ("hf@5.0.0", "training_args.json", ""),
        ("hf@5.10.0", "training_args.json", ""),
        ("hf@5.20.0", "training_args.json", ""),
        ("hf@5.23.0", "training_args.json", ""),
        ("trl@1.16.0", "sft_config.json", ""),
    )
}


def check(name: str, text: str) -> None:
    path = SNAPSHOTS / name
    if os.environ.get("AUTOTUNE_UPDATE_SNAPSHOTS") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", CASES)
def test_arguments_of_a_version_are_these(name: str) -> None:
    target, file = CASES[name]
    exported = export(target, job(evaluation=evaluation()), offer(), CONFIG)
    check(name, exported.files[file])


@pytest.mark.parametrize("sharding", ["none", "ddp", "fsdp", "zero2", "zero3"])
def test_launcher_of_a_sharding_is_this(sharding: str) -> None:
    count = 1 if sharding == "none" else 2
    chosen = config(sharding=sharding, gradient_accumulation_steps=2 // count)
    exported = export(
        "hf",
        job(),
        offer(count),
        chosen,
        DiskUse(2, 2.5e9, 1.0e9),
        risk="the probability that it fits is 0.93",
    )
    check(f"accelerate-{sharding}.yaml", exported.files["accelerate.yaml"])
    check(f"run-{sharding}.sh", exported.files["run.sh"])
