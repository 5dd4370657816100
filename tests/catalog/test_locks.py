"""A lock ends with its process, is nobody's link, and is named where a file system has none."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.catalog.files import merging
from autotune.catalog.locks import LOCK_FILE, NoLocks, is_held, own_folder, take, take_away_dead
from autotune.domain.errors import InputError
from autotune.search.study.record import TrialLog

fcntl = pytest.importorskip("fcntl")
HOLD = """
import sys, time
from pathlib import Path
from autotune.catalog.locks import take
lock = take(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


def test_a_lock_ends_with_a_killed_holder(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    assert not is_held(path)
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        assert is_held(path)
        assert take(path) is None
        os.kill(holder.pid, signal.SIGKILL)
    assert not is_held(path)
    found = take(path)
    found.close(remove=True)
    assert list(tmp_path.iterdir()) == []


def test_a_lock_whose_file_another_made_anew_takes_nothing_away(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    first = take(path)
    path.unlink()
    second = take(path)
    assert second is not None
    first.close(remove=True)
    assert is_held(path), "the second one's lock is still there"
    second.close()


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("elsewhere")])
def test_a_link_or_a_pipe_in_its_place_is_neither_followed_nor_waited_for(
    make: Any, tmp_path: Path
) -> None:
    path = tmp_path / ".lock"
    make(path)
    with pytest.raises(OSError, match=r"regular file|symbolic links"):
        take(path)
    assert not (tmp_path / "elsewhere").exists()


def test_a_file_system_without_locks_is_named_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(NoLocks, match="has no locks"), merging(tmp_path / "store" / "a.json"):
        pytest.fail("two writers could not be told apart")
    with pytest.raises(InputError, match="has no locks") as refused:
        TrialLog(tmp_path, {"job_key": "a"}, resume=False)
    assert "--run" in (refused.value.hint or "")
    assert not is_held(tmp_path / "trials.jsonl")


def test_a_folder_whose_file_is_refused_once_is_taken_away_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused, unlink = [], os.unlink

    def once(path: Any, *rest: Any, **named: Any) -> None:
        if Path(path).name == "stderr" and not refused:
            refused.append(path)
            raise OSError(errno.EIO, "Input/output error")
        unlink(path, *rest, **named)

    monkeypatch.setattr(os, "unlink", once)
    with own_folder(tmp_path, "probe-") as folder:
        (folder / "stderr").write_text("what it printed")
    assert refused
    assert not folder.exists()


def test_a_folder_half_removed_by_a_killed_process_is_known_by_its_lock_and_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in range(1, 5):
        folder = tmp_path / f"probe-{at}"
        (folder / "checkpoint").mkdir(parents=True)
        for name in (LOCK_FILE, "request.json", "result.json", "checkpoint/weights"):
            (folder / name).write_text("")
        pid = os.fork()
        if pid == 0:
            count, unlink = [0], os.unlink

            def killed(*asked: Any, **named: Any) -> None:
                count[0] += 1  # noqa: B023
                if count[0] == at:  # noqa: B023
                    os._exit(9)
                unlink(*asked, **named)  # noqa: B023

            monkeypatch.setattr(os, "unlink", killed)
            take_away_dead(tmp_path, "probe-")
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
        assert folder.exists()
        take_away_dead(tmp_path, "session-", "probe-")
        assert not folder.exists()
