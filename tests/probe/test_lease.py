"""Two searches on one device take turns, and a dead one holds nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from autotune.catalog.files import home_dir
from autotune.probe.device import WAITING, cpu, leased

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.probe.worker.contract import Phase

pytest.importorskip("fcntl")
HOLD = """
import sys, time
from autotune.probe.device import cpu
from autotune.probe.device import leased
with leased(cpu()):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_second_search_waits_and_says_so_until_the_first_is_gone() -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        heard: list[str] = []
        entered = threading.Event()

        def hear(phase: Phase, _: float) -> None:
            heard.append(phase.name)
            if len(heard) == 2:
                os.kill(holder.pid, signal.SIGKILL)  # a lease ends with its holder

        def probe() -> None:
            with leased(cpu(), hear):
                entered.set()

        thread = threading.Thread(target=probe)
        thread.start()
        assert entered.wait(600.0)
        thread.join()
        assert heard[:2] == [WAITING, WAITING]
    finally:
        holder.kill()
        holder.wait()
        if holder.stdout:
            holder.stdout.close()


def test_another_device_is_another_lease() -> None:
    def hear(phase: Phase, _: float) -> None:
        pytest.fail(phase.name)

    with leased(cpu(), hear), leased(replace(cpu(), uuid="GPU-other"), hear):
        pass
    assert len(list((home_dir() / "devices").iterdir())) == 2


def test_a_home_that_cannot_be_written_is_no_reason_not_to_measure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path / "file" / "home"))
    with leased(cpu()):
        pass
