"""What a host lacks can be stated on the command line, and is what the answer says to type."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autotune.app.compare.compare import compare
from autotune.app.estimate import estimate, exit_status
from autotune.app.job.load import load_job, load_jobs, only_job
from autotune.app.tune.tune import Options, tune
from autotune.domain.errors import InputError
from autotune.domain.typed.overrides import Overrides

if TYPE_CHECKING:
    from autotune.domain.answer.recommendation import Relaxation
    from autotune.domain.job import Job

OPTIONS = Options(dry_run=True, fidelity="formula", trials=1)
AXOLOTL = Path(__file__).parents[3] / "jobs" / "trainers" / "axolotl.yml"
JOB = """\
model: Qwen/Qwen2.5-32B
method: full
data: {{rows: 20000, max_length: 2048, lengths: {{p50: 500, p95: 1500, max: 2048}}}}
train: {{epochs: 1, global_batch_size: 64}}
hardware: [{{gpu: h200, count: {count}, host: {{{host}}}}}]
"""


def written(folder: Path, host: str, count: int = 8) -> Path:
    path = folder / "job.yaml"
    path.write_text(JOB.format(host=host, count=count))
    return path


def typed(path: Path, change: Relaxation) -> Job:
    """The job with the options that a relaxation says to type."""
    words = change.apply.split()
    pairs = list(zip(words[::2], words[1::2], strict=True))
    sets = dict(value.split("=", 1) for flag, value in pairs if flag == "--set")
    allow = [value for flag, value in pairs if flag == "--allow"]
    assert {flag for flag, _ in pairs} <= {"--set", "--allow"}
    return load_job(path, set_values=sets, allow=allow)


@pytest.mark.parametrize(
    ("host", "count", "option"),
    [("disk: 200 GB", 8, "--set host.disk="), ("disk: 4 TB, ram: 300 GB", 2, "--set host.ram=")],
)
def test_what_a_host_is_short_of_is_typed_as_told_and_gives_what_was_told(
    tmp_path: Path, host: str, count: int, option: str
) -> None:
    path = written(tmp_path, host, count)
    answer = tune(load_job(path), OPTIONS)
    assert answer.best is None
    change = next(each for each in answer.rejected.relaxations if option in each.apply)
    best = tune(typed(path, change), OPTIONS).best
    assert best.duration_s.p50 == pytest.approx(change.duration_s, rel=2e-3)
    assert best.cost_usd.p50 == pytest.approx(change.cost_usd, rel=2e-3)


def test_estimate_and_compare_take_a_fact_of_the_host(tmp_path: Path) -> None:
    path = written(tmp_path, "disk: 200 GB")
    run = {"sharding": "fsdp", "micro_batch_size": "1", "activation_checkpointing": "full"}
    found = estimate(load_job(path, set_values=run))
    assert found.shortfall is not None
    assert found.shortfall.resource == "disk"  # not the memory, which is short of words alone
    change = next(each for each in found.relaxations if "--set host.disk=" in each.apply)
    stated = dict([change.apply.removeprefix("--set ").split("=")])
    fitting = estimate(load_job(path, set_values={**run, **stated}))
    assert (exit_status(found), exit_status(fitting)) == (3, 0)
    assert fitting.row.duration_s.p50 == pytest.approx(change.duration_s, rel=2e-3)
    compared = compare(load_jobs(path, Overrides(set_values=stated)))
    assert [row.row.offer.host.disk_bytes for row in compared.parts[0].rows] == [
        fitting.row.offer.host.disk_bytes
    ]


def test_a_fact_of_the_host_is_stated_of_every_machine_and_of_a_trainers_file() -> None:
    overrides = Overrides(
        gpus=("h100-sxm", "a100-80gb"), stated={"data.rows": 52_000},
        set_values={"host.cores": "6", "host.shm": "2GiB", "host.ram": "64GiB"},
    )  # fmt: skip
    for offer in only_job(load_jobs(AXOLOTL, overrides), "job").offers:
        host = offer.host
        assert (host.cores, host.shm_bytes, host.ram_bytes) == (6, 2 * 2**30, 64 * 2**30)
        assert not {"cores", "shm_bytes", "ram_bytes"} & set(host.assumed)
        assert "disk_bytes" in host.assumed


def test_a_misspelt_fact_of_the_host_names_the_ones_there_are(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"host\.disk"):
        load_job(written(tmp_path, "cores: 16"), set_values={"host.dsik": "4TB"})


def test_what_is_locked_may_exceed_an_assumed_host_and_is_told(tmp_path: Path) -> None:
    lock = {"num_dataloader_workers": "99"}
    answer = tune(load_job(written(tmp_path, "disk: 9 TB", 1), gpus=["h200:8"], set_values=lock),
                  OPTIONS)  # fmt: skip
    assert answer.best.config.num_dataloader_workers == 99
    assert any("--set host.cores=N" in text for text in answer.warnings)


@pytest.mark.parametrize(
    ("host", "lock", "option"),
    [
        ("cores: 16", {"num_dataloader_workers": "99"}, "--set host.cores=792"),
        (
            "shm: 10 MB",
            {"num_dataloader_workers": "64", "micro_batch_size": "8"},
            "--set host.shm=1GB",
        ),
    ],
)
def test_what_is_locked_beyond_a_stated_host_names_what_it_needs(
    tmp_path: Path, host: str, lock: dict[str, str], option: str
) -> None:
    path = written(tmp_path, f"disk: 9 TB, {host}")
    for answer in (lambda job: tune(job, OPTIONS), estimate):
        with pytest.raises(InputError) as caught:
            answer(load_job(path, set_values={"sharding": "fsdp", **lock}))
        assert option in caught.value.hint
    fact, _, value = option.removeprefix("--set ").partition("=")
    wide = {"sharding": "fsdp", "host.cores": "512", **lock, fact: value}
    assert tune(load_job(path, set_values=wide), OPTIONS).best is not None
