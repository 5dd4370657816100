"""Inputs that once ended in a traceback or a hang: each is now an error that names the file."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from commandline import typed

from autotune.app.campaign.file import load_campaign
from autotune.catalog.models.models import find_model
from autotune.domain.errors import InputError
from autotune.evidence.log.read import read_log
from autotune.evidence.record.table import read_cases
from autotune.probe.outcomes import read_result
from autotune.probe.record import SharedProbeLog, read_records
from autotune.search.study.record import TrialLog
from autotune.space.file import load_space

ROOT = Path(__file__).parents[2]
RESULT: dict[str, Any] = {
    "schema_version": 1, "key": "k", "status": "ok",
    "step": {"step_s": 1.0, "micro_s": 0.2, "optimizer_s": 0.1, "accumulation": 4, "tokens": 512},
    "memory": {"allocated_bytes": 1e9, "reserved_bytes": 2e9, "driver_bytes": 3e9},
}  # fmt: skip


def test_a_key_of_a_campaign_that_is_a_number_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "campaign.yaml"
    text = (ROOT / "jobs" / "campaigns" / "a100_llama7b.yaml").read_text()
    path.write_text(text.replace("kind: lora,", "kind: lora, 5: x,"))
    with pytest.raises(InputError, match=r"line 12: the key 5 of defaults.method is not text"):
        load_campaign(path)


@pytest.mark.parametrize(
    ("part", "name", "value", "said"),
    [
        ("step", "step_s", 1e-300, "a step of 1e-300 s"),
        ("step", "tokens", 10**400, "tokens is"),
        ("memory", "driver_bytes", 1e17, "more than a petabyte"),
        ("", "status", ["ok"], "unknown status"),
        ("", "status", {"a": 1}, "unknown status"),
    ],
)
def test_a_probes_result_is_plausible_or_none(
    tmp_path: Path, part: str, name: str, value: object, said: str
) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(RESULT))
    assert read_result(path, "k") == RESULT
    own = {**RESULT[part], name: value} if part else value
    path.write_text(json.dumps({**RESULT, part or name: own}))
    found = read_result(path, "k")
    assert isinstance(found, str)
    assert re.search(said, found)


@pytest.mark.parametrize("odd", ["pipe", "device", "folder"])
@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("config.json", lambda path: find_model(str(path))),
        ("rows.csv", read_cases),
        ("probes.jsonl", read_records),
        ("probes.jsonl", SharedProbeLog),
        ("trials.jsonl", lambda path: TrialLog(path.parent, {}, resume=True)),
        ("space.yaml", load_space),
        ("observations.jsonl", read_log),
    ],
)
def test_what_is_no_file_is_neither_waited_for_nor_read_for_ever(
    tmp_path: Path, name: str, read: Any, odd: str
) -> None:
    path = tmp_path / name
    if odd == "pipe":
        os.mkfifo(path)
    elif odd == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    with pytest.raises(InputError):
        read(path)


def test_a_probes_result_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "result.json")
    assert read_result(tmp_path / "result.json", "k") == (
        "the result cannot be read: it is not a regular file"
    )


@pytest.mark.parametrize("words", [("report", "--format", "md"), ("report",), ("recompute",)])
def test_a_recorded_answer_with_a_setting_that_is_none_is_damaged(
    tmp_path: Path, case_a_run: Path, words: tuple[str, ...]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(case_a_run, run)
    answer = json.loads((run / "recommendation.json").read_text())
    answer["best"]["config"]["kernels"] = "0"
    (run / "recommendation.json").write_text(json.dumps(answer))
    done = typed(words[0], str(run), *words[1:], home=tmp_path)
    assert done.returncode == 2
    assert "damaged at best.config.kernels" in done.stderr


def test_a_trial_nested_without_end_is_named_by_its_line(tmp_path: Path) -> None:
    with TrialLog(tmp_path, {}, resume=False):
        pass
    (tmp_path / "trials.jsonl").write_text("[" * 100_000 + "\n")
    with pytest.raises(InputError, match="line 1, is not a trial"):
        TrialLog(tmp_path, {}, resume=True)


def test_a_setting_that_only_the_pick_of_a_recorded_answer_has_is_no_bug(
    tmp_path: Path, case_a_run: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(case_a_run, run)
    answer = json.loads((run / "recommendation.json").read_text())
    answer["today"] = json.loads(json.dumps(answer["best"]))
    answer["best"]["config"]["gradient_accumulation_stepss"] = 4
    (run / "recommendation.json").write_text(json.dumps(answer))
    done = typed("report", str(run), "--verbose", home=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_data_set_whose_name_is_longer_than_a_name_can_be_is_named(tmp_path: Path) -> None:
    job = str(ROOT / "jobs" / "tiny_cpu.yaml")
    done = typed("estimate", job, "--set", f"data.dataset={'1' * 300}", home=tmp_path)
    assert done.returncode == 2
    assert "cannot be read: File name too long" in " ".join(done.stderr.split())
