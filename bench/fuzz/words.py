"""Readers of what is typed: texts, `--set`, command lines."""

from __future__ import annotations

import json
import os
import shlex
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from bench.fuzz import damage
from bench.fuzz.reading import (
    JOBS,
    LOGGED,
    Reader,
    environment,
    of_texts,
    reader,
    typed,
)

if TYPE_CHECKING:
    from random import Random

# --- what is typed


@reader
def _texts() -> Reader:
    from autotune.app.learn.described import named_machine
    from autotune.app.recompute.recompute import software_of, vary_of
    from autotune.catalog.models.models import find_model
    from autotune.catalog.prices.instances import find_instance
    from autotune.domain import units
    from autotune.domain.typed import values
    from autotune.domain.typed.machine import machine_entry, split_machine, split_machines

    seeds = (
        "h100", "8xH100", "h100-sxm:8", "2x l40s, spot", "NVIDIA A100-SXM4-80GB",
        "p4d.24xlarge@12USD/h",
        "a100 x 4", "1.5 h", "1h30m", "90 min", "2 d 4 h", "38 hours", "1-2 h", "40 GB", "1.5 GiB",
        "110 MB/s", "2 Gbit/s", "$2.50", "60 USD", "2.50USD/h", "1.99USD/gpu-h", "28K", "200-250",
        "1.5M", "0.8-1.2 s/step", "transformers=5.23.0,torch=2.9", "rank=8", "Qwen/Qwen2.5-7B",
        "meta-llama/Llama-3.1-8B", "gpt2", "0.12 USD/kWh", "3 it/s",
    )  # fmt: skip
    spans = [
        lambda text, parse=parse: units.parse_span(text, parse)
        for parse in (units.parse_seconds, units.parse_figure, values.parse_step_time)
    ]
    reads = (
        units.parse_seconds, units.parse_bytes, units.parse_bytes_per_s, units.parse_usd,
        units.parse_usd_per_hour, units.parse_figure, *spans, values.parse_usd_per_kwh,
        values.parse_step_time, values.parse_offer_price, split_machine, machine_entry,
        lambda text: split_machines([text]), named_machine, find_instance, software_of, vary_of,
        find_model,
        lambda text: values.whole_of_flag("--rows", text, 10**9, scaled=True),
    )  # fmt: skip
    return of_texts("texts", seeds, reads)  # type: ignore[arg-type]


@reader
def _set_values() -> Reader:
    from autotune.app.job.load import load_job
    from autotune.app.job.overrides import settable_keys
    from autotune.domain.config import KNOBS

    keys = (*settable_keys(), *KNOBS, "x", "", "hardware", "data.", ".rows")

    def draw(rng: Random, folder: Path) -> str:
        odd = (*damage.NUMBERS, *damage.TEXTS)
        pairs = {
            rng.choice(keys): str(rng.choice(odd if rng.random() < 0.5 else damage.USUAL))[:6000]
            for _ in range(rng.choice((1, 1, 2)))
        }
        (folder / "pairs.json").write_text(json.dumps(pairs))
        return str(pairs)[:300]

    def read(folder: Path) -> object:
        pairs = json.loads((folder / "pairs.json").read_text())
        return load_job(JOBS / "h100_38h.yaml", set_values=pairs)

    return Reader("set values", draw, read, 2.0)


LINES_TYPED = (
    f"estimate {JOBS}/h100_38h.yaml --gpu h100 --price 2.50USD/h --fidelity formula",
    "estimate --model Qwen2.5-7B --method lora --rows 50k --gpu l40s --fidelity formula",
    "estimate --model gpt2 --method full --rows 5k --gpu t4 --epochs 2 --global-batch 16",
    f"estimate {JOBS}/h100_38h.yaml --claim '38 h' --format csv",
    f"tune {JOBS}/tiny_cpu.yaml --dry-run --trials 3 --fidelity formula --set data.max_length=128",
    f"compare {JOBS}/h100_38h.yaml --gpu h100,a100-80gb --deadline 24h --budget 60USD",
    f"plan {JOBS}/campaigns/a100_llama7b.yaml --parallel 2 --budget 100USD --chart",
    f"dataset {JOBS}/data/tiny.jsonl --tokenizer bytes --max-length 64",
    f"learn {LOGGED} --gpu h100 --dry-run",
    "init --model Qwen2.5-7B",
    "recompute --gpu a100-40gb --software transformers=5.23.0",
    "prices h100 --format json", "devices --format md", "verify nothing.json --elapsed 3h",
    "models", "runs", "report", "export --to trl", "--version", "",
)  # fmt: skip
SLOW = frozenset(
    {
        "validate",
        "calibrate",
        "doctor",
        "--score",
        "--refresh",
        "refresh",
        "trace",
        "auto",
        "extended",
    }
)


@cache
def _options() -> tuple[str, ...]:
    import typer

    from autotune.cli.application import application

    commands = getattr(typer.main.get_command(application()), "commands", {})
    words = {word for command in commands.values() for own in command.params for word in own.opts}
    return tuple(sorted({*words, *commands} - SLOW - {"--install-completion"}))


@reader
def _command_lines() -> Reader:
    def draw(rng: Random, folder: Path) -> str:
        words = damage.words(rng, shlex.split(rng.choice(LINES_TYPED)), _options())
        words = [each for each in words if each not in SLOW and "\x00" not in each]
        (folder / "words.json").write_text(json.dumps(words))
        return " ".join(words)[:300]

    def read(folder: Path) -> None:
        words = json.loads((folder / "words.json").read_text())
        here = Path.cwd()
        try:
            os.chdir(folder)
            with environment(AUTOTUNE_RUNS=str(folder / "r"), AUTOTUNE_HOME=str(folder / "h")):
                typed(*words)
        finally:
            os.chdir(here)

    return Reader("command lines", draw, read, 0.8)
