"""Jobs that nothing is wrong with: every method, machine and setting beside every other.

Damage finds what a reader forgot; a whole job finds what its pricing forgot. One that asks for
what cannot be is refused in words, as a damaged one is.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from bench.fuzz.reading import Reader, reader, typed

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

MODELS = (
    "Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-7B", "huggyllama/llama-7b", "meta-llama/Llama-3.1-70B",
    "mistralai/Mixtral-8x7B-v0.1", "google/gemma-2-9b", "openai-community/gpt2",
    "openai/gpt-oss-20b", "Qwen/Qwen3-30B-A3B", "tiiuae/falcon-7b",
)  # fmt: skip
METHODS = (
    "lora", "qlora", "full", {"kind": "lora", "rank": 64}, {"kind": "lora", "base": "int8"},
    {"kind": "lora", "base": "32bit"}, {"kind": "full", "base": "32bit"},
    {"kind": "lora", "variant": "dora"}, {"kind": "lora", "modules_to_save": ["lm_head"]},
    {"kind": "qlora", "modules_to_save": "lm_head"},
)  # fmt: skip
MACHINES = (
    "h100", "8xh100", "rtx-4090", "2x4090", "l4", "4xt4", "8xa100", "4xh200", "2xa10g", "v100",
    "mi300x", "4xl40s", "cpu",
)  # fmt: skip
SECTIONS: dict[str, tuple[dict[str, Any], ...]] = {
    "evaluation": ({"rows": 500}, {"rows": 500, "every_steps": 50, "batch_size": 64}),
    "limits": ({"deadline": "2h"}, {"budget": "5USD"}, {"max_lost_work": "10min"}),
    "evidence": ({"today": True, "config": {"micro_batch_size": 2, "precision": "bf16"}},),
}
COUNTS = ("micro_batch_size", "gradient_accumulation_steps", "save_total_limit")


def drawn_job(rng: Random) -> dict[str, Any]:
    """A whole job: a method, one or two machines and settings, each drawn alone."""
    from autotune.domain.config import KNOBS

    machines = [
        {"gpu": gpu, "price": rng.choice(("0USD/h", "20USD/h"))}
        for gpu in rng.sample(MACHINES, rng.choice((1, 1, 2)))
    ]
    if rng.random() < 0.3:
        host = {"ram": rng.choice(("16 GB", "200 GB")), "disk": rng.choice(("50 GB", "500 GB"))}
        machines[0] |= {"host": host}
    named = {name: knob.choices for name, knob in KNOBS.items() if knob.choices}
    names = (*COUNTS, *named)
    lock = {
        name: rng.choice(named[name]) if name in named else rng.choice((1, 2, 4, 8))
        for name in rng.choices(names, [4] * len(COUNTS) + [1] * len(named), k=rng.randrange(4))
    }
    found: dict[str, Any] = {
        "model": rng.choice(MODELS),
        "method": rng.choice(METHODS),
        "data": {"rows": rng.choice((64, 20_000)), "max_length": rng.choice((256, 1024, 4096))},
        "train": {"global_batch_size": rng.choice((8, 16, 64))},
        "hardware": machines,
        "lock": lock,
    }
    for name, choices in SECTIONS.items():
        if rng.random() < 0.25:
            chosen = rng.choice(choices)
            found[name] = [chosen] if name == "evidence" else chosen
    if rng.random() < 0.3:
        found["software"] = rng.choice(("2024-05", "2025-02"))
    return found


@reader
def _drawn_jobs() -> Reader:
    def draw(rng: Random, folder: Path) -> str:
        text = json.dumps(drawn_job(rng))
        (folder / "job.json").write_text(text, encoding="utf-8")
        return text

    def read(folder: Path) -> object:
        form = ("text", "json", "md")[sum((folder / "job.json").read_bytes()) % 3]
        own = str(folder / "job.json")
        return typed("estimate", own, "--fidelity", "formula", "-q", "--format", form)

    return Reader("drawn jobs", draw, read, share=0.5)
