"""What probes leave for later studies: nothing disturbed, nothing that blocks or loses a line."""

from __future__ import annotations

import multiprocessing
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from autotune.probe.memo import Memo
from autotune.probe.record import ProbeRecord, SharedProbeLog, read_records

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.domain.config import Config
    from autotune.domain.job import Job

EACH, PROCESSES = 25, 4


def record_of(key: str, config: Config, save_s: float = 0.1) -> ProbeRecord:
    return ProbeRecord(
        key, "ok", "", 1.0, config.as_dict(), "cpu", "print", {},
        {"checkpoint": {"save_s": save_s}}, when=key,
    )  # fmt: skip


def append_many(path: Path, name: str) -> None:
    log = SharedProbeLog(path)
    for number in range(EACH):
        log.append(ProbeRecord(f"{name}-{number}", "ok", "x" * 3000, 1.0, {}, "cpu", "", {}))


def test_what_others_disturbed_is_kept_for_this_study_and_not_for_later_ones(
    tmp_path: Path, config: Config
) -> None:
    own, shared = tmp_path / "own.jsonl", tmp_path / "shared.jsonl"
    memo = Memo(own, shared, "print")
    calm = record_of("calm", config)
    memo.add(calm)
    memo.add(replace(record_of("busy", config), disturbed=["other programs used 1.9 of 2 cores"]))
    assert [r.key for r in read_records(own)] == ["calm", "busy"]
    assert read_records(own)[1].disturbed == ["other programs used 1.9 of 2 cores"]
    assert [r.key for r in read_records(shared)] == ["calm"]
    later = Memo(tmp_path / "later.jsonl", shared, "print")
    assert later.find("calm") is not None
    assert later.find("busy") is None


def test_a_part_rests_on_undisturbed_probes_where_there_are_any(
    tmp_path: Path, job: Job, config: Config
) -> None:
    memo = Memo(None, None, "print")
    memo.add(replace(record_of("busy", config, save_s=9.0), disturbed=["others"]))
    offer = job.offers[0]
    assert memo.part("checkpoint", "checkpoint", config, offer) == 9.0
    memo.add(record_of("calm", config, save_s=0.2))
    assert memo.part("checkpoint", "checkpoint", config, offer) == 0.2
    assert not list(tmp_path.iterdir())


def test_a_record_from_before_disturbances_were_kept_still_loads(
    tmp_path: Path, config: Config
) -> None:
    line = record_of("old", config).line().replace(b',"disturbed":[]', b"")
    assert b"disturbed" not in line
    path = tmp_path / "probes.jsonl"
    path.write_bytes(line)
    assert [(r.key, r.disturbed, r.slowdown) for r in read_records(path)] == [("old", [], 1.0)]


@pytest.mark.parametrize("bad", [b"{not json}\n", b"[1, 2]\n", b"\xff\xfe\n", b"null\n"])
def test_a_bad_line_of_another_process_blocks_nobody_and_stays(
    tmp_path: Path, config: Config, bad: bytes
) -> None:
    shared = tmp_path / "shared.jsonl"
    good = record_of("good", config).line()
    shared.write_bytes(good + bad + record_of("next", config).line())
    memo = Memo(None, shared, "print")
    assert memo.find("good") is not None
    assert memo.find("next") is not None
    assert memo.bad == 1
    memo.add(record_of("mine", config))
    assert bad in shared.read_bytes()
    assert shared.read_bytes().count(b"\n") == 4


def test_a_line_that_another_process_is_writing_is_not_cut(tmp_path: Path, config: Config) -> None:
    shared = tmp_path / "shared.jsonl"
    half = record_of("theirs", config).line()[:40]
    shared.write_bytes(record_of("good", config).line() + half)
    memo = Memo(None, shared, "print")
    assert shared.read_bytes().endswith(half), "opening changes nothing"
    memo.add(record_of("mine", config))
    again = Memo(None, shared, "print")
    assert again.find("mine") is not None


def test_half_a_line_of_a_killed_process_is_cut_by_the_next_and_a_whole_one_kept(
    tmp_path: Path, config: Config
) -> None:
    shared = tmp_path / "shared.jsonl"
    good, theirs, mine = (record_of(key, config) for key in ("good", "theirs", "mine"))
    for left, kept in (
        (theirs.line()[:40], [good, mine]),
        (theirs.line()[:-1], [good, theirs, mine]),
    ):
        shared.write_bytes(good.line() + left)
        SharedProbeLog(shared).append(mine)
        assert read_records(shared) == kept


def test_a_probe_that_was_kept_and_not_shared_before_a_kill_is_shared_when_the_run_goes_on(
    tmp_path: Path, config: Config
) -> None:
    own, shared = tmp_path / "own.jsonl", tmp_path / "shared.jsonl"
    first, second = record_of("same", config), record_of("same", config, save_s=0.3)
    Memo(own, shared, "print").add(first)
    busy = replace(second, disturbed=["others"])
    Memo(own, None, "print").add(second)  # killed behind its own record
    Memo(own, None, "print").add(busy)
    Memo(own, shared, "print")
    assert read_records(shared) == [first, second]
    Memo(own, shared, "print")
    assert read_records(shared) == [first, second]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks processes")
def test_processes_that_append_at_once_lose_no_line(tmp_path: Path) -> None:
    shared = tmp_path / "shared.jsonl"
    context: Any = multiprocessing.get_context("fork")
    workers = [
        context.Process(target=append_many, args=(shared, str(number)))
        for number in range(PROCESSES)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    keys = {record.key for record in read_records(shared)}
    assert len(keys) == EACH * PROCESSES
