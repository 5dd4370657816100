"""Readers of files that a person has or a trainer wrote."""

from __future__ import annotations

import contextlib
import json
from functools import cache
from typing import TYPE_CHECKING

from bench.fuzz import damage
from bench.fuzz.logged import ARGUMENTS, seeds_made
from bench.fuzz.reading import (
    DATA,
    EARLIER,
    JOBS,
    LOGGED,
    OWN,
    READERS,
    ROOT,
    Reader,
    of_files,
    of_folder,
    put,
    reader,
    typed,
)

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

# --- jobs and campaigns


@reader
def _jobs() -> Reader:
    from autotune.app.job.load import load_jobs
    from autotune.domain.typed.overrides import Overrides

    seeds = [*JOBS.glob("*.yaml"), ROOT / "tests" / "app" / "job" / "whole_job.json"]
    return of_files(
        "jobs", seeds, lambda path: load_jobs(path, Overrides()), share=3.0, beside=DATA
    )


@reader
def _priced_jobs() -> Reader:
    seeds = [*JOBS.glob("*.yaml"), ROOT / "tests" / "app" / "job" / "whole_job.json"]

    def read(path: Path) -> object:
        return typed("estimate", str(path), "--fidelity", "formula", "-q")

    return of_files("priced jobs", seeds, read, share=0.6, beside=DATA)


@reader
def _campaigns() -> Reader:
    from autotune.app.campaign.file import load_campaign

    return of_files("campaigns", (JOBS / "campaigns").glob("*.yaml"), load_campaign, share=1.5)


@reader
def _planned_campaigns() -> Reader:
    def read(path: Path) -> object:
        return typed("plan", str(path), "-q")

    return of_files("planned campaigns", (JOBS / "campaigns").glob("*.yaml"), read, share=0.15)


@reader
def _spaces() -> Reader:
    from autotune.space.file import load_space

    return of_files("spaces", (ROOT / "search_spaces").glob("*.yaml"), load_space)


# --- trainers' files


@reader
def _trainer_files() -> Reader:
    from autotune.app.job.load import load_jobs
    from autotune.domain.typed.overrides import Overrides

    stated = {"data.rows": 1000, "model": "Qwen/Qwen2.5-7B", "method.kind": "lora"}

    def read(path: Path) -> None:
        from autotune.domain.errors import AutotuneError

        with contextlib.suppress(AutotuneError):
            load_jobs(path, Overrides(gpus=("h100",), stated={"data.rows": 1000}))
        load_jobs(path, Overrides(gpus=("h100",), stated=stated))

    seeds = [path for path in [*OWN.iterdir(), *(JOBS / "trainers").iterdir()] if path.is_file()]
    scripts = {path.name: ".py" for path in seeds if path.suffix == ".txt"}
    return of_files("trainer files", seeds, read, share=4.0, suffix=scripts)


@reader
def _configs_beside() -> Reader:
    from autotune.app.job.load import load_jobs
    from autotune.domain.typed.overrides import Overrides

    stated = {"data.rows": 1000, "model": "Qwen/Qwen2.5-7B", "method.kind": "lora"}

    arguments = seeds_made() / "arguments.json"
    arguments.write_text(json.dumps(ARGUMENTS))

    def read(path: Path) -> object:
        overrides = Overrides(gpus=("8xh100",), stated=stated, beside=(str(path),))
        return load_jobs(arguments, overrides)

    return of_files("configs beside", (OWN / "beside").iterdir(), read)


@reader
def _launch_commands() -> Reader:
    from autotune.app.job.load import jobs_of_command
    from autotune.domain.typed.overrides import Overrides

    def read(path: Path) -> object:
        command = path.read_bytes().decode("utf-8", "surrogateescape")
        return jobs_of_command(command, Overrides(gpus=("h100",), stated={"data.rows": 1000}))

    def draw(rng: Random, folder: Path) -> str:
        script = (OWN / "launch.sh").read_bytes()
        content = damage.text(rng, script[script.index(b"accelerate launch") :])
        (folder / "command").write_bytes(content)
        return repr(content[-300:])

    return Reader("launch commands", draw, lambda folder: read(folder / "command"))


# --- models, data, prices, measurements


@reader
def _model_configs() -> Reader:
    from autotune.catalog.models.models import find_model

    seeds = [JOBS / "data" / "tiny_model" / "config.json", LOGGED / "config.json"]
    return of_files(
        "model configs", seeds, lambda path: find_model(str(path)), called="config.json", share=1.5
    )


@reader
def _data_sets() -> Reader:
    from autotune.app.dataset.report import dataset_histogram

    seeds = [JOBS / "data" / "tiny.jsonl", LOGGED / "trainer_log.jsonl"]
    return of_files("data sets", seeds, lambda path: dataset_histogram(path, "bytes", 256))


@reader
def _price_tables() -> Reader:
    from autotune.catalog.prices.cache import read_cache_file
    from autotune.catalog.tables import CatalogDataError

    def read(path: Path) -> None:
        with contextlib.suppress(CatalogDataError, OSError, KeyError, ValueError):  # as its caller
            read_cache_file(path)

    home = EARLIER / "home" / "autotune"
    return of_files("price tables", (home / "prices").iterdir(), read, called="aws.csv")


@reader
def _measured_tables() -> Reader:
    from autotune.evidence.record.table import read_cases

    def draw(rng: Random, folder: Path) -> str:
        head, *rows = _measured()
        (folder / "seed.csv").write_bytes(b"".join([head, *rng.sample(rows, 3)]))
        said = put(rng, folder / "rows.csv", folder / "seed.csv")
        (folder / "seed.csv").unlink()
        return said

    return Reader("measured tables", draw, lambda folder: read_cases(folder / "rows.csv"), 1.5)


@cache
def _measured() -> list[bytes]:
    table = ROOT / "autotune" / "evidence" / "data" / "measured.csv"
    return table.read_bytes().splitlines(keepends=True)


@reader
def _logs() -> Reader:
    from autotune.evidence.log.read import read_log

    return of_files("logs", (seeds_made() / "logs").iterdir(), read_log, share=3.0)


def _learned(folder: str) -> Reader:
    from autotune.app.learn.learn import learn

    seed = seeds_made() / "tracked" / folder
    return of_folder(f"learn: {folder}", seed, lambda path: learn([path], dry_run=True))


for _source in ("wandb", "mlflow", "torchtune", "notebook", "output", "record"):
    READERS[f"learn: {_source}"] = lambda source=_source: _learned(source)  # type: ignore[misc]
