"""Readers of what autotune wrote itself: run folders, and the user's store."""

from __future__ import annotations

import json
import shutil
from functools import cache
from typing import TYPE_CHECKING

from bench.fuzz.logged import seeds_made
from bench.fuzz.reading import (
    EARLIER,
    JOBS,
    Reader,
    environment,
    of_files,
    put,
    reader,
    typed,
)

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

# --- what autotune wrote itself: run folders and the user's store


@cache
def _run() -> Path:
    """A finished run of a small job, priced by the formulas."""
    path = seeds_made() / "run"
    typed(
        "tune", str(JOBS / "a100_llama7b_int8.yaml"), "--fidelity", "formula", "--trials", "5",
        "--run", str(path), "-q",
    )  # fmt: skip
    shutil.copy(seeds_made() / "logs" / "observations.jsonl", path)
    answer = json.loads((path / "recommendation.json").read_text())
    answer["search"]["wall_seconds"] = 1.0  # as long in every run: damage has a place
    (path / "recommendation.json").write_text(json.dumps(answer, indent=1) + "\n")
    return path


COMMANDS_OF_RUN: tuple[tuple[str, ...], ...] = (
    ("report", "RUN"), ("report", "RUN", "--verbose"), ("report", "RUN", "--format", "json"),
    ("report", "RUN", "--format", "md"), ("report", "RUN", "--format", "html"),
    ("report", "RUN", "--format", "csv"), ("export", "RUN", "--to", "axolotl"),
    ("export", "RUN", "--to", "torchtune"), ("verify", "RUN"), ("learn", "RUN", "--dry-run"),
    ("runs",),
    ("recompute", "RUN", "--fidelity", "formula"),
    ("tune", "JOB", "--run", "RUN", "--resume", "--fidelity", "formula", "--trials", "5"),
)  # fmt: skip
READ_OF_RUN = (
    "job.json", "recommendation.json", "recommendation.json", "trials.jsonl", "search.json",
    "study.log", "observations.jsonl", "verified.json", "failure.json",
)  # fmt: skip


def _type_words(folder: Path) -> None:
    """Type the command that was drawn beside the runs and the home of the folder."""
    words = json.loads((folder / "words.json").read_text())
    with environment(AUTOTUNE_RUNS=str(folder / "runs"), AUTOTUNE_HOME=str(folder / "home")):
        typed(*words)


@reader
def _run_folders() -> Reader:
    seed = _run()

    def draw(rng: Random, folder: Path) -> str:
        run = folder / "runs" / "run"
        shutil.copytree(seed, run)
        name = rng.choice([name for name in READ_OF_RUN if (seed / name).exists()])
        said = put(rng, run / name, seed / name)
        words = rng.choice(COMMANDS_OF_RUN)
        places = {"RUN": str(run), "JOB": str(JOBS / "a100_llama7b_int8.yaml")}
        (folder / "words.json").write_text(json.dumps([places.get(each, each) for each in words]))
        return f"{' '.join(words)} | {said}"

    return Reader("run folders", draw, _type_words, 0.8)


@cache
def _home() -> Path:
    """A home that holds something of every kind, for the job of `_run`."""
    home = seeds_made() / "home"
    shutil.copytree(EARLIER / "home" / "autotune", home)
    with environment(AUTOTUNE_HOME=str(home), AUTOTUNE_RUNS=str(seeds_made() / "runs")):
        run = _run()
        typed("verify", str(run), str(run / "observations.jsonl"), "-q")
        typed("learn", str(seeds_made() / "tracked"), "-q")
    return home


@reader
def _homes() -> Reader:
    home = _home()
    files = sorted(path for path in home.rglob("*") if path.is_file())
    commands = (
        ("estimate", str(JOBS / "a100_llama7b_int8.yaml"), "--fidelity", "formula", "-q"),
        ("estimate", str(JOBS / "tiny_cpu.yaml"), "--fidelity", "formula", "-q"),
        ("prices",), ("devices",),
        ("learn", str(seeds_made() / "tracked" / "wandb"), "-q"),
    )  # fmt: skip

    def draw(rng: Random, folder: Path) -> str:
        shutil.copytree(home, folder / "home")
        chosen = rng.choice(files)
        said = put(rng, folder / "home" / chosen.relative_to(home), chosen)
        words = rng.choice(commands)
        (folder / "words.json").write_text(json.dumps(words))
        return f"{' '.join(words)} | {said}"

    return Reader("homes", draw, _type_words, 0.8)


@reader
def _probes() -> Reader:
    from autotune.probe.record import SharedProbeLog, read_records

    def read(path: Path) -> None:
        SharedProbeLog(path)
        read_records(path)

    return of_files("probes", [EARLIER / "runs" / "probed" / "probes.jsonl"], read)


@reader
def _trials() -> Reader:
    from autotune.search.study.record import TrialLog

    def read(path: Path) -> None:
        header = json.loads((EARLIER / "runs" / "a100" / "search.json").read_text())
        shutil.copy(EARLIER / "runs" / "a100" / "search.json", path.parent)
        with TrialLog(path.parent, header, resume=True):
            pass

    seeds = [EARLIER / "runs" / "a100" / "trials.jsonl"]
    return of_files("trials", seeds, read, called="trials.jsonl")


@reader
def _probe_results() -> Reader:
    from autotune.probe.outcomes import read_result

    result = {
        "schema_version": 1, "key": "k", "status": "ok",
        "step": {"step_s": 1.0, "micro_s": 0.2, "optimizer_s": 0.1, "accumulation": 4,
                 "tokens": 512},
        "memory": {"allocated_bytes": 1e9, "reserved_bytes": 2e9, "driver_bytes": 3e9},
    }  # fmt: skip
    path = seeds_made() / "result.json"
    path.write_text(json.dumps(result))
    return of_files("probe results", [path], lambda file: read_result(file, "k"))
