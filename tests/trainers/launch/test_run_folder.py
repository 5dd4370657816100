"""What run.sh does in a shell, and where an export may write."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from exportcases import config, job, offer

from autotune.app.runs.export import Export, export, write_export
from autotune.domain.errors import InputError
from autotune.domain.outcome import DiskUse

if TYPE_CHECKING:
    from pathlib import Path


def bash(
    exported: Export, folder: Path, *, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """run.sh in its folder, with a Python that has everything and tells what it was started on."""
    write_export(exported, folder)
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    (tools / "python").write_text(
        '#!/usr/bin/env bash\n[[ "$2" == *find_spec* ]] && exit\n'
        'printf "%s\\n" "$MODEL" "$TOKENIZER" "${DATA:-}" "$OUTPUT_DIR" "${EVAL_DATA:-}"\n'
    )
    (tools / "python").chmod(0o755)
    return subprocess.run(
        ["bash", str(folder / "run.sh")], cwd=cwd,
        env={"PATH": f"{tools}:/usr/bin:/bin", "PREPARE": "0", **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["plain", "a b", "it's", "x}y", "$(exit 3)", 'q"q', "`false`"])
def test_names_reach_the_shell_unchanged_and_unexecuted(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("{}")
    odd = job(dataset_path=str(tmp_path / name))
    odd = replace(odd, model=replace(odd.model, name=name))
    done = bash(export("hf", odd, offer(), config()), tmp_path / f"run of {name}")
    assert done.returncode == 0, done.stderr
    output = tmp_path / f"run of {name}" / "output"
    assert done.stdout.splitlines()[:4] == [name, name, str(tmp_path / name), str(output)]


def test_the_environment_overrides_the_job(tmp_path: Path) -> None:
    (tmp_path / "d").write_text("{}")
    own = {"MODEL": "m", "TOKENIZER": "t", "DATA": "d", "OUTPUT_DIR": str(tmp_path / "o")}
    done = bash(export("hf", job(), offer(), config()), tmp_path, cwd=tmp_path, **own)
    assert done.stdout.splitlines()[:4] == list(own.values())


def test_missing_data_stops_the_run_with_what_to_set(tmp_path: Path) -> None:
    done = bash(export("hf", job(dataset_path=None), offer(), config()), tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("run.sh: DATA is not set, and the job names no data file: set")
    gone = bash(export("hf", job(dataset_path="/gone/rows.jsonl"), offer(), config()), tmp_path)
    assert gone.returncode == 1
    assert gone.stderr.startswith("run.sh: there is no /gone/rows.jsonl: set DATA to a file")


@pytest.mark.parametrize(("checkpoint_bytes", "code"), [(1.0, 0), (1e17, 1)])
def test_a_full_disk_stops_the_run_before_it_starts(
    checkpoint_bytes: float, code: int, tmp_path: Path
) -> None:
    (tmp_path / "rows").write_text("{}")
    what = job(dataset_path=str(tmp_path / "rows"))
    made = export("hf", what, offer(), config(), DiskUse(3, checkpoint_bytes))
    done = bash(made, tmp_path)
    assert done.returncode == code
    assert ("take 300000000000000000 bytes of" in done.stderr) is (code == 1)


def test_what_an_earlier_start_wrote_counts_as_room(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text("{}")
    what, out = job(dataset_path=str(tmp_path / "rows")), tmp_path / "out"
    (out / "checkpoint-1").mkdir(parents=True)
    free = shutil.disk_usage(out).free
    (out / "checkpoint-1" / "weights").write_bytes(b"1" * 2**20)

    def code(needed: float) -> int:
        made = export("hf", what, offer(), config(), DiskUse(1, needed))
        done = bash(made, tmp_path, OUTPUT_DIR=str(out), PATH=path)
        return int(done.returncode)

    path = f"{tmp_path}:{tmp_path / 'tools'}:/usr/bin:/bin"
    df = tmp_path / "df"  # a disk of which nobody else takes or frees anything meanwhile
    df.write_text(f"#!/bin/sh\necho head\necho disk 0 0 {free // 1024}\n")
    df.chmod(0o755)
    assert code(free + 2**19) == 0
    assert code(free + 2**21) == 1


def test_writing_replaces_an_earlier_export_and_leaves_no_scratch(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("old")
    exported = export("hf", job(), offer(), config())
    paths = write_export(exported, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(exported.files)
    assert {path.name: path.read_text() for path in paths} == exported.files
    assert (tmp_path / "run.sh").stat().st_mode & 0o111
    assert not (tmp_path / "train.py").stat().st_mode & 0o111


@pytest.mark.parametrize("name", ["../evil.txt", "/tmp/evil.txt", "link/evil.txt", "..", ""])  # noqa: S108
def test_nothing_outside_the_run_folder_is_written(name: str, tmp_path: Path) -> None:
    run, outside = tmp_path / "run", tmp_path / "outside"
    run.mkdir()
    outside.mkdir()
    (run / "link").symlink_to(outside)
    with pytest.raises(InputError, match="outside the run folder"):
        write_export(Export({"ok.txt": "x", name: "x"}), run)
    assert list(outside.iterdir()) == []
    assert not (run / "ok.txt").exists()


def test_a_link_in_the_run_folder_is_replaced_not_followed(tmp_path: Path) -> None:
    users = tmp_path / "precious.sh"
    users.write_text("precious")
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.sh").symlink_to(users)
    write_export(Export({"run.sh": "new\n"}), run)
    assert users.read_text() == "precious"
    assert (run / "run.sh").read_text() == "new\n"


def test_a_folder_that_cannot_be_written_is_the_users_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("x")
    with pytest.raises(InputError, match="cannot write"):
        write_export(Export({"run.sh": "x"}), blocked)
