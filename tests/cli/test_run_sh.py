"""run.sh as it was written: from any folder, with nothing set, or with a first line that helps."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from builders import count_rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from commandline import Done

    Typed = Callable[..., Done]

PACKAGES = ("torch", "transformers", "peft", "accelerate", "datasets")


def run_sh(
    script: Path, cwd: Path, *, path: str = "/usr/bin:/bin", **environment: str
) -> subprocess.CompletedProcess[str]:
    """run.sh with nothing set but what is named; `path` holds no Python with the packages."""
    return subprocess.run(
        ["bash", str(script)], cwd=cwd, capture_output=True, text=True, timeout=900, check=False,
        env={"PATH": path, "HOME": str(cwd), "OMP_NUM_THREADS": "1", **environment},
    )  # fmt: skip


@pytest.fixture
def run(here: Path, typed: Typed) -> Path:
    """The run folder of the tiny job, by its default name."""
    done = typed("tune", "jobs/tiny_cpu.yaml", "--set", "precision=fp32", "--set", "compile=off")
    assert done.returncode == 0, done.stderr
    (folder,) = (here / "runs").iterdir()
    return folder


def state(output: Path, step: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        (output / f"checkpoint-{step}" / "trainer_state.json").read_text()
    )
    return found


@pytest.mark.slow
def test_the_tiny_job_trains_to_its_end_from_elsewhere_and_resumes_at_home(
    run: Path, here: Path, tmp_path: Path
) -> None:
    for module in PACKAGES:
        pytest.importorskip(module)
    elsewhere = tmp_path / "else where"
    elsewhere.mkdir()
    done = run_sh(run / "run.sh", elsewhere)
    assert done.returncode == 0, done.stderr[-3000:]
    first = done.stderr.splitlines()[0]
    assert first.startswith("run.sh: EVAL_DATA is not set: training without the evaluation")
    assert "holds no weights: training begins from random ones" in done.stderr
    assert state(run / "output", 50)["global_step"] == 50
    assert (run / "output" / "final" / "adapter_model.safetensors").is_file()
    assert not list(elsewhere.iterdir())

    import datasets

    tokens = datasets.load_from_disk(str(run / "tokens" / "train"))["length"]
    counted = count_rows(here / "jobs" / "data" / "tiny.jsonl").counts
    assert sorted(tokens) == sorted(min(n, 256) for n, rows in counted.items() for _ in range(rows))

    shutil.copytree(run / "output", run / "smoke")
    own = {"OUTPUT_DIR": "smoke", "EVAL_DATA": "none", "USE_CPU": "1"}
    tokenised = {"PREPARE": "0", "DATA": str(run / "tokens" / "train")}
    again = run_sh(run / "run.sh", here, MAX_STEPS="53", RESUME="1", **own, **tokenised)
    assert again.returncode == 0, again.stderr[-3000:]
    resumed = state(run / "smoke", 53)
    assert resumed["global_step"] == resumed["max_steps"] == 53
    assert not (run / "output" / "checkpoint-53").exists()


@pytest.mark.slow
def test_the_tiny_job_trains_in_trl_too(here: Path, typed: Typed) -> None:
    for module in (*PACKAGES, "trl"):
        pytest.importorskip(module)
    small = ("--set", "precision=fp32", "--set", "compile=off")
    done = typed("tune", "jobs/tiny_cpu.yaml", *small, "--export", "trl", "--run", "für trl")
    assert done.returncode == 0, done.stderr
    rows = str(here / "jobs" / "data" / "tiny.jsonl")
    own = {"MAX_STEPS": "3", "EVAL_DATA": rows, "USE_CPU": "1"}  # accelerate: test_smoke.py
    trained = run_sh(here / "für trl" / "run.sh", here, **own)
    assert trained.returncode == 0, trained.stderr[-3000:]
    assert state(here / "für trl" / "output", 3)["global_step"] == 3


def test_run_sh_moved_away_from_its_folder_says_so_first(run: Path, tmp_path: Path) -> None:
    moved = tmp_path / "run.sh"
    shutil.copy(run / "run.sh", moved)
    done = run_sh(moved, tmp_path)
    assert done.returncode == 1
    (said,) = done.stderr.splitlines()
    assert said.startswith(f"run.sh: training_args.json is not in {tmp_path}: start run.sh in its")
    (tmp_path / "link.sh").symlink_to(run / "run.sh")
    linked = run_sh(tmp_path / "link.sh", tmp_path, PYTHON="/no/python")
    assert "there is no /no/python: set PYTHON" in linked.stderr


def test_a_run_folder_taken_elsewhere_finds_its_rows_beside_it(
    run: Path, here: Path, tmp_path: Path
) -> None:
    rows = here / "jobs" / "data" / "tiny.jsonl"
    text = rows.read_text()
    shutil.rmtree(here / "jobs")
    lost = run_sh(run / "run.sh", tmp_path)
    assert lost.returncode == 1
    (said,) = lost.stderr.splitlines()
    assert said.startswith(f"run.sh: there is no {rows}: set DATA to a file")
    assert said.endswith("or put it beside run.sh")
    (run / "tiny.jsonl").write_text(text)
    tools = tmp_path / "tools"
    tools.mkdir()
    told = 'printf "%s\\n" "$MODEL" "$TOKENIZER" "$DATA" >&2'
    (tools / "python").write_text(
        f'#!/bin/bash\n[[ "$2" == *find_spec* ]] || {{ {told}; exit 9; }}\n'
    )
    (tools / "python").chmod(0o755)
    found = run_sh(run / "run.sh", tmp_path, path=f"{tools}:/usr/bin:/bin")
    assert found.returncode == 9
    kept = [str(run / name) for name in ("model", "tokenizer", "tiny.jsonl")]
    assert found.stderr.splitlines()[1:] == kept


def test_the_first_python_that_has_the_packages_runs_it(run: Path, tmp_path: Path) -> None:
    assert sys.executable in (run / "run.sh").read_text()
    without = tmp_path / "without"
    without.mkdir()
    for name in ("python", "python3"):
        (without / name).write_text("#!/bin/bash\necho torch\n")
        (without / name).chmod(0o755)
    stated = run_sh(run / "run.sh", tmp_path, PYTHON=str(without / "python"))
    assert stated.returncode == 1
    last = stated.stderr.splitlines()[-1]
    assert last.startswith(f"run.sh: {without}/python lacks torch: {without}/python -m pip install")
    text = (run / "run.sh").read_text().replace(sys.executable, "/gone/python")
    (run / "run.sh").write_text(text)
    none = run_sh(run / "run.sh", tmp_path, path=f"{without}:/usr/bin:/bin")
    assert none.returncode == 1
    assert "run.sh: python lacks torch" in none.stderr


def test_tokens_of_rows_on_the_network_are_kept_where_only_the_user_can_write(
    here: Path, typed: Typed, tmp_path: Path
) -> None:
    job = here / "jobs" / "tiny_cpu.yaml"
    job.write_text(job.read_text().replace("storage: local", "storage: network"))
    assert typed("tune", "jobs/tiny_cpu.yaml", "--run", "net").returncode == 0
    temporary, target = tmp_path / "tmp", tmp_path / "theirs"
    temporary.mkdir()
    target.mkdir()
    (temporary / f"autotune-{os.getuid()}").symlink_to(target)
    done = run_sh(here / "net" / "run.sh", tmp_path, TMPDIR=str(temporary))
    assert done.returncode == 1
    assert "is not a folder of yours: set LOCAL_DIR" in done.stderr
    assert not list(target.iterdir())
