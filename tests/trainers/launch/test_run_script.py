"""run.sh in a shell: environment, staging, tokenising and launch, in this order."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from exportcases import FULL, HOST, LORA, SOFTWARE, config, evaluation, job, offer

from autotune.app.runs.export import export, write_export
from autotune.domain.job import Limits, Origin
from autotune.domain.outcome import DiskUse
from autotune.trainers.contract import Plan
from autotune.trainers.launch.user_start import own_run_sh
from autotune.trainers.own_file.patch import Patched
from autotune.trainers.registry import FORMATS, TRAINERS

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.domain.job import Job

ROWS = '{"text": "one"}\n'
PYTHON = """#!/usr/bin/env bash
# what run.sh starts, as a script that writes down that it was; it has every package
case "$1 $2" in
  *find_spec*) exit ;;
  *accelerate*) told="launch $(basename "${@: -1}") DATA=$DATA RESUME=$RESUME" ;;
  *) told="$(basename "$1") DATA=$DATA EVAL=${EVAL_DATA:-} gpus=[$CUDA_VISIBLE_DEVICES]" ;;
esac
echo "$told" >> CALLS
"""


def started(
    what: Job, tmp_path: Path, *, devices: int = 1, **environment: str
) -> subprocess.CompletedProcess[str]:
    """The run, with tools that only say how they were called."""
    sharding = "none" if devices == 1 else "fsdp"
    knobs = config(sharding=sharding, gradient_accumulation_steps=2 // devices)
    folder, tools = tmp_path / "run", tmp_path / "tools"
    write_export(export("hf", what, offer(devices), knobs), folder)
    tools.mkdir(exist_ok=True)
    (tools / "python").write_text(PYTHON.replace("CALLS", shlex.quote(f"{tmp_path}/calls")))
    (tools / "python").chmod(0o755)
    (tmp_path / "eval.jsonl").write_text(ROWS)
    return subprocess.run(
        ["bash", str(folder / "run.sh")],
        env={
            "PATH": f"{tools}:{os.environ['PATH']}", "LOCAL_DIR": str(tmp_path / "local disk"),
            "EVAL_DATA": "eval.jsonl", **environment,
        },
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip


def calls(tmp_path: Path) -> list[str]:
    return (tmp_path / "calls").read_text().splitlines()


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / 'it\'s a "data" file.jsonl'
    path.write_text(ROWS)
    return path


def test_rows_on_the_network_are_copied_then_tokenised_then_trained_on(
    rows: Path, tmp_path: Path
) -> None:
    what = job(storage="network", dataset_path=str(rows), evaluation=evaluation())
    done = started(what, tmp_path, devices=2)
    assert done.returncode == 0, done.stderr
    local = tmp_path / "local disk"
    (staged,) = local.glob("*.jsonl")
    assert staged.read_text() == ROWS
    assert calls(tmp_path) == [
        f"prepare.py DATA={staged} EVAL=eval.jsonl gpus=[]",
        f"launch train.py DATA={local}/train RESUME=0",
    ]


def test_what_was_copied_is_copied_again_only_when_it_changed(rows: Path, tmp_path: Path) -> None:
    what = job(storage="network", dataset_path=str(rows))
    assert "copying" in started(what, tmp_path).stderr
    assert "copying" not in started(what, tmp_path).stderr
    rows.write_text(ROWS * 2)
    later = rows.stat().st_mtime + 60
    os.utime(rows, (later, later))
    assert "copying" in started(what, tmp_path).stderr
    (staged,) = (tmp_path / "local disk").glob("*.jsonl")
    assert staged.read_text() == ROWS * 2


def test_staging_and_tokenising_can_be_left_out(rows: Path, tmp_path: Path) -> None:
    what = job(storage="network", dataset_path=str(rows))
    done = started(what, tmp_path, STAGE="0", PREPARE="0")
    assert done.returncode == 0, done.stderr
    assert calls(tmp_path) == [f"launch train.py DATA={rows} RESUME=0"]
    assert not (tmp_path / "local disk").exists()


def test_rows_are_tokenised_alone_where_no_gpu_is_paid_for(rows: Path, tmp_path: Path) -> None:
    done = started(job(dataset_path=str(rows)), tmp_path, PREPARE="only")
    assert done.returncode == 0, done.stderr
    assert calls(tmp_path) == [f"prepare.py DATA={rows} EVAL=eval.jsonl gpus=[]"]


def test_ready_tokens_on_the_network_are_copied_only_when_asked(rows: Path, tmp_path: Path) -> None:
    what = job(storage="network", pretokenized=True, dataset_path=str(rows))
    started(what, tmp_path)
    started(what, tmp_path, STAGE="1")
    plain, staged = calls(tmp_path)
    assert plain == f"launch train.py DATA={rows} RESUME=0"
    assert f"DATA={tmp_path}/local disk/" in staged


def test_a_local_disk_that_is_too_small_stops_the_run_first(rows: Path, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "du").write_text("#!/usr/bin/env bash\necho 999999999999999\n")
    (tools / "du").chmod(0o755)
    done = started(job(storage="network", dataset_path=str(rows)), tmp_path)
    assert done.returncode == 1
    assert "set LOCAL_DIR, or STAGE=0" in done.stderr
    assert not (tmp_path / "calls").exists()


def test_a_job_of_several_sessions_goes_on_where_it_was(rows: Path, tmp_path: Path) -> None:
    limits = Limits(0.08, 1800.0, max_session_s=43200.0)
    what = job(dataset_path=str(rows), limits=limits)
    started(what, tmp_path, PREPARE="0")
    assert calls(tmp_path) == [f"launch train.py DATA={rows} RESUME=1"]
    text = export("hf", what, offer(), config()).files["run.sh"]
    assert "# sessions end after 12.0 h: start it again, and it goes on" in text
    assert (
        "auto_resume_from_checkpoints: true"
        in (export("axolotl", what, offer(), config()).files["axolotl.yml"])
    )


VARIANTS: list[dict[str, Any]] = [
    {"storage": storage, "pretokenized": ready, "evaluation": measured}
    for storage in ("local", "network")
    for ready in (False, True)
    for measured in (None, evaluation())
]


def scripts() -> dict[str, str]:
    """Every kind of run.sh."""
    found: dict[str, str] = {}
    risky = "the probability that it fits is 0.93"
    for number, changes in enumerate(VARIANTS):
        for sharding in ("none", "ddp", "fsdp", "zero2", "zero3"):
            count = 1 if sharding == "none" else 2
            knobs = config(
                sharding=sharding, gradient_accumulation_steps=2 // count, num_dataloader_workers=2
            )
            made = export("hf", job(FULL, **changes), offer(count), knobs, DiskUse(3, 1e9), risky)
            found[f"hf-{sharding}-{number}"] = made.files["run.sh"]
    odd = job(
        replace(LORA, targets=("q_proj",)), dataset_path="a 'b\" $c.jsonl",
        limits=Limits(0.08, 1800.0, max_session_s=3600.0),
        software=replace(SOFTWARE, torch=(2, 9, 0)),
    )  # fmt: skip
    spot = replace(offer(spot=True), host=replace(HOST, wsl=True))
    for name in FORMATS:
        made = export(name, odd, spot, config(num_dataloader_workers=1), DiskUse(3, 1e9), risky)
        found[f"{name}-odd"] = made.files["run.sh"]
    return found | own_scripts()


def own_scripts() -> dict[str, str]:
    found = {}
    for trainer, syntax in (
        ("hf", "json"), ("trl", "yaml"), ("trl", "python"), ("trl", "args"), ("trl", "shell"),
        ("axolotl", "yaml"), ("llamafactory", "yaml"), ("torchtune", "yaml"), ("litgpt", "yaml"),
        ("unsloth", "python"),
    ):  # fmt: skip
        for count, sharding in ((1, "none"), (2, "fsdp")):
            knobs = config(sharding=sharding, gradient_accumulation_steps=2 // count)
            plan = Plan(
                job=job(), offer=offer(count), config=knobs, torch=(2, 13), transformers=(5, 23),
                trl=(1, 16), disk=DiskUse(), risk="", out_dir="out",
            )  # fmt: skip
            command = "CUDA_VISIBLE_DEVICES=0 python train.py \\\n  --bf16 True"
            file = Patched("it's mine.yml", command, "", {}, ())
            launcher = "accelerate.yaml" if count > 1 else ""
            text = own_run_sh(
                plan, TRAINERS[trainer], Origin(trainer, syntax, "", ""), file, "own/", launcher
            )
            found[f"own-{trainer}-{syntax}-{count}"] = text
    return found


def test_every_script_is_valid_bash(tmp_path: Path) -> None:
    for name, text in scripts().items():
        path = tmp_path / f"{name}.sh"
        path.write_text(text)
        done = subprocess.run(
            ["bash", "-n", str(path)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (name, done.stderr)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="no shellcheck (Debian: shellcheck)")
def test_shellcheck_finds_nothing_in_any_script(tmp_path: Path) -> None:
    paths = []
    for name, text in scripts().items():
        paths.append(tmp_path / f"{name}.sh")
        paths[-1].write_text(text)
    done = subprocess.run(
        # SC2016: a name of the user's with a dollar in it stands in single quotes on purpose
        ["shellcheck", "--shell=bash", "--exclude=SC2016", *map(str, paths)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[:3000]
