"""What several workers, machines and databases need costs a search on one machine nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

JOB = Path(__file__).parents[2] / "jobs" / "h100_38h.yaml"
OF_MANY = (
    "autotune.app.workers", "autotune.search.measured.shared", "autotune.search.measured.joining",
    "autotune.search.study.turns", "autotune.probe.lease", "autotune.probe.runner", "alembic",
    "psycopg", "ray", "redis", "sqlalchemy", "torch",
)  # fmt: skip
MOST_SYNCED = 20  # files and folders that one answer waits for; each is milliseconds of a disk
CODE = """
import io, json, os, sys, threading
synced, fsync = [], os.fsync
os.fsync = lambda handle: (synced.append(handle), fsync(handle))[1]
from autotune.cli.application import run
out, sys.stdout = sys.stdout, io.StringIO()
code = run(["tune", {job!r}, "--fidelity", "formula", "--quiet"])
names = sorted(name for name in sys.modules if name.startswith({of_many!r}))
json.dump([code, names, len(synced), threading.active_count()], out)
"""


def test_an_answer_on_one_machine_loads_nothing_of_many_hands_and_syncs_as_few_files_as_before(
    tmp_path: Path,
) -> None:
    places = {"AUTOTUNE_HOME": str(tmp_path / "home"), "AUTOTUNE_RUNS": str(tmp_path / "runs")}
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(job=str(JOB), of_many=OF_MANY)],
        env={**os.environ, **places}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    code, names, synced, threads = json.loads(done.stdout)
    assert code in {0, 4}
    assert names == []
    assert 0 < synced <= MOST_SYNCED
    assert threads == 1
