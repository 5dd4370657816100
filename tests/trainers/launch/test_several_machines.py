"""What starts a run on several machines: the launcher's config, run.sh, and a batch script."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from exportcases import LORA, config, job, offer

from autotune.app.runs.export import export
from autotune.app.runs.orchestrated import orchestrated
from autotune.catalog.networks import find_network
from autotune.domain.candidates import Candidate
from autotune.domain.errors import InputError
from autotune.domain.outcome import DiskUse

if TYPE_CHECKING:
    from pathlib import Path


def two(each: int = 8) -> Any:
    alone = offer(each)
    network, _ = find_network("efa", 2, alone.device, each)
    return replace(alone, count=2 * each, network=network)


def made(target: str = "hf", sharding: str = "fsdp") -> Any:
    what = replace(job(LORA), global_batch_size=16)
    knobs = config(sharding=sharding, micro_batch_size=1, gradient_accumulation_steps=1)
    return export(target, what, two(), knobs)


def test_accelerate_reads_the_machines_as_they_are(tmp_path: Path) -> None:
    launch = pytest.importorskip("accelerate.commands.launch")
    path = tmp_path / "accelerate.yaml"
    path.write_text(made().files["accelerate.yaml"])
    typed = ["--config_file", str(path), "--machine_rank", "1", "--main_process_ip", "10.0.0.1",
             "--main_process_port", "29511", "train.py"]  # fmt: skip
    args, _, _ = launch._validate_launch_command(launch.launch_command_parser().parse_args(typed))
    assert (args.num_machines, args.num_processes, args.machine_rank) == (2, 16, 1)
    assert (args.main_process_ip, int(args.main_process_port)) == ("10.0.0.1", 29511)
    assert args.rdzv_backend == "static"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The exported files, with an interpreter that prints what it was started with."""
    for name, text in made().files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n')
    fake = tmp_path / "python"
    fake.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        "if any('accelerate.yaml' in word for word in sys.argv):\n"
        "    print('STARTED', json.dumps([sys.argv[1:], dict(os.environ)]))\n"
    )
    fake.chmod(0o755)
    return tmp_path


def started(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    own = {"PATH": os.environ["PATH"], "HOME": str(folder), "DATA": str(folder / "rows.jsonl"),
           "MODEL": str(folder), "PYTHON": str(folder / "python"), "PREPARE": "0"}  # fmt: skip
    return subprocess.run(
        ["bash", str(folder / "run.sh")], env={**own, **environment}, text=True,
        capture_output=True, check=False, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize(
    "environment",
    [{}, {"MASTER_ADDR": "10.0.0.1"}, {"NODE_RANK": "0"},
     {"MASTER_ADDR": "10.0.0.1", "NODE_RANK": "2"}, {"MASTER_ADDR": "a", "NODE_RANK": "x"}],
)  # fmt: skip
def test_a_machine_that_does_not_know_its_place_does_not_start(
    folder: Path, environment: dict[str, str]
) -> None:
    found = started(folder, **environment)
    assert found.returncode == 1
    assert "2 machines train together" in found.stderr
    assert "STARTED" not in found.stdout


def test_each_machine_starts_its_own_processes_at_its_place(folder: Path) -> None:
    found = started(folder, MASTER_ADDR="10.0.0.1", SLURM_NODEID="1")
    assert found.returncode == 0, found.stderr
    line = next(x for x in reversed(found.stdout.splitlines()) if x.startswith("STARTED"))
    argv, environment = json.loads(line.removeprefix("STARTED"))
    text = " ".join(argv)
    assert "--machine_rank 1 --main_process_ip 10.0.0.1 --main_process_port 29500" in text
    assert environment["CUDA_VISIBLE_DEVICES"] == "0,1,2,3,4,5,6,7"


def test_a_format_that_starts_on_one_machine_is_refused_with_those_that_do_not() -> None:
    with pytest.raises(InputError, match="axolotl starts on one machine") as error:
        made("axolotl")
    assert "hf, trl" in error.value.hint


def test_slurm_asks_for_the_machines_and_starts_the_script_on_each() -> None:
    what = replace(job(LORA), global_batch_size=16)
    knobs = config(sharding="fsdp", micro_batch_size=1, gradient_accumulation_steps=1)
    pick = Candidate(what, two(), knobs)
    files = orchestrated(
        ("slurm",), pick, made(), "hf", disk=DiskUse(), slow_end_s=0.0, writes_to=None
    ).files
    text = files["run.sbatch"]
    assert "#SBATCH --nodes=2" in text
    assert "#SBATCH --ntasks-per-node=1" in text
    assert re.search(r"--gpus-per-node=\w+:8$", text, re.MULTILINE)
    assert text.index("MASTER_ADDR=") < text.index("exec srun")


def test_the_note_says_how_the_machines_are_started() -> None:
    assert any("NODE_RANK=0..1" in note for note in made().notes)
