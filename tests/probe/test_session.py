"""A worker that stays: what one configuration breaks does not reach the next."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from builders import BRIEF

from autotune.probe.device import cpu
from autotune.probe.request import Effort, key_of, request_for
from autotune.probe.runner import Place
from autotune.probe.session import Session

if TYPE_CHECKING:
    from autotune.domain.config import Config
    from autotune.domain.device import Offer
    from autotune.domain.job import Job
    from autotune.probe.record import ProbeRecord

FAKE = Path(__file__).with_name("fake_worker.py")
UNLUCKY = 13


class Asked:
    """A session with a fake worker, asked for one micro-batch size after another."""

    def __init__(self, folder: Path, mode: str, body: dict[str, Any]) -> None:
        self.session = Session(Place(cpu(), folder, 300.0, (str(FAKE), mode), sys.executable))
        self.body = body

    def __call__(self, micro: int, *, timeout_s: float = 300.0) -> ProbeRecord:
        request = {**self.body, "micro_batch_size": micro}
        request["key"] = key_of(request)
        return self.session.run(request, {}, timeout_s=timeout_s)


def test_one_process_answers_all(tmp_path: Path, request_body: dict[str, Any]) -> None:
    asked = Asked(tmp_path, "fine", request_body)
    with asked.session:
        records = [asked(micro) for micro in (1, 2, 4)]
        assert asked.session.starts == 1
    assert [record.status for record in records] == ["ok"] * 3
    assert len({record.result["pid"] for record in records}) == 1
    assert len({record.key for record in records}) == 3
    assert list(tmp_path.iterdir()) == []


def test_a_sticky_error_is_told_and_the_next_one_gets_a_fresh_process(
    tmp_path: Path, request_body: dict[str, Any]
) -> None:
    asked = Asked(tmp_path, "sticky", request_body)
    with asked.session:
        records = [asked(micro) for micro in (1, UNLUCKY, 2)]
        assert asked.session.starts == 2
    assert [record.status for record in records] == ["ok", "cuda_error", "ok"]
    assert records[0].result["pid"] != records[2].result["pid"]


@pytest.mark.parametrize("mode", ["segfault", "kill", "exit"])
def test_what_ends_the_process_is_run_again_alone_and_named(
    tmp_path: Path, request_body: dict[str, Any], mode: str
) -> None:
    asked = Asked(tmp_path, mode, request_body)
    with asked.session:
        records = [asked(micro) for micro in (1, UNLUCKY, 2)]
        assert asked.session.starts == 2
    assert [record.status for record in records] == ["ok", "crash", "ok"]


def test_a_process_that_gives_up_after_an_answer_costs_the_next_one_nothing(
    tmp_path: Path, request_body: dict[str, Any]
) -> None:
    asked = Asked(tmp_path, "gives-up", request_body)
    with asked.session:
        records = [asked(micro) for micro in (UNLUCKY, 2, 4)]
        assert asked.session.starts == 2
    assert [record.status for record in records] == ["ok"] * 3
    assert records[1].result["pid"] == records[2].result["pid"], "the second one stayed"


def test_a_hanging_process_is_ended_at_its_time_limit(
    tmp_path: Path, request_body: dict[str, Any]
) -> None:
    asked = Asked(tmp_path, "hang", request_body)
    with asked.session:
        record = asked(UNLUCKY, timeout_s=1.0)
        assert record.status == "timeout"
        assert record.wall_s < 300, "it would have hung for twice as long"
        assert asked(2).status == "ok"


def test_a_limit_on_memory_is_never_put_on_the_process_that_stays(
    tmp_path: Path, request_body: dict[str, Any]
) -> None:
    asked = Asked(tmp_path, "fine", {**request_body, "memory_limit_bytes": 10**9})
    with asked.session:
        record = asked(1)
        assert asked.session.starts == 0
    assert record.ok
    assert "pid" not in record.result


@pytest.mark.slow
def test_the_real_worker_stays_over_changes_of_precision_and_gives_tensors_back(
    tmp_path: Path, job: Job, offer: Offer, config: Config
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    pytest.importorskip("peft")
    effort = Effort(**BRIEF, most=8, measured=3, least=2, seconds=1.0, patience_s=2.0, loader=False,
                    evaluation=False, checkpoint_max_bytes=0.0)  # fmt: skip
    found = []
    with Session(Place(cpu(), tmp_path, 900.0)) as session:
        for precision in ("fp32", "bf16", "fp32"):
            other = config.with_knobs(precision=precision)
            request = request_for(job, offer, other, effort=effort)
            found.append(session.run(request, other.as_dict()))
        assert session.starts == 1
    assert [record.status for record in found] == ["ok"] * 3, [r.message for r in found]
    first, other, last = (record.result["memory"]["allocated_bytes"] for record in found)
    assert first == last, "what was left behind would be counted"
    assert other != first
