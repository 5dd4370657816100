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
from autotune.probe.device import cpu
from autotune.probe.lease import WAITING, leased, seated

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.probe.device import LocalDevice
    from autotune.probe.worker.contract import Phase

pytest.importorskip("fcntl")
HOLD = """
import sys, time
from autotune.probe.device import cpu
from autotune.probe.lease import leased
with leased([cpu()], most_s=60, what="(runs/first)"):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_second_search_waits_and_says_so_until_the_first_is_gone() -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        heard: list[str] = []
        entered = threading.Event()

        def hear(phase: Phase, _: float) -> None:
            heard.append(phase.name)
            if len(heard) == 2:
                os.kill(holder.pid, signal.SIGKILL)  # a lease ends with its holder

        def probe() -> None:
            with leased([cpu()], hear):
                entered.set()

        thread = threading.Thread(target=probe)
        thread.start()
        assert entered.wait(600.0)
        thread.join()
        assert all(words.startswith(f"{WAITING}: process {holder.pid} (runs/first), at most until ")
                   for words in heard[:2])  # fmt: skip
    finally:
        holder.kill()
        holder.wait()
        if holder.stdout:
            holder.stdout.close()


def test_another_device_is_another_lease() -> None:
    def hear(phase: Phase, _: float) -> None:
        pytest.fail(phase.name)

    with leased([cpu()], hear), leased([replace(cpu(), uuid="GPU-other")], hear):
        pass
    assert len(list((home_dir() / "devices").iterdir())) == 2


def test_a_home_that_cannot_be_written_is_no_reason_not_to_measure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path / "file" / "home"))
    with leased([cpu()]):
        pass


def test_a_second_search_takes_another_card_and_says_so() -> None:
    cards = [[replace(cpu(), name="card", uuid=f"GPU-{number}")] for number in range(2)]
    heard: list[str] = []
    with seated(cards, heard.append, "(runs/first)") as first:
        assert (first, heard) == (cards[0], [])
        with seated(cards, heard.append, "(runs/second)") as second:
            assert second == cards[1]
            assert "GPU-0) is taken" in heard[-1]
            assert f"process {os.getpid()} (runs/first)" in heard[-1]
            with seated(cards, heard.append) as third:
                assert third == cards[0]
                assert "take turns" in heard[-1]
    with seated(cards, pytest.fail) as again:
        assert again == cards[0]


def test_two_probes_of_two_cards_never_wait_for_each_other_in_a_circle() -> None:
    one, two = (replace(cpu(), uuid=f"GPU-{number}") for number in range(2))
    done = []

    def probe(order: list[LocalDevice]) -> None:
        for _ in range(20):
            with leased(order):
                pass
        done.append(order)

    threads = [threading.Thread(target=probe, args=(o,)) for o in ([one, two], [two, one])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600.0)
    assert len(done) == 2
