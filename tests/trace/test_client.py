"""A traced process that misbehaves kills nothing: whatever it does comes back as a reason."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from autotune.trace import client
from autotune.trace.client import Traced, TraceFailed, Tracer
from autotune.trace.request import StepRequest

if TYPE_CHECKING:
    from pathlib import Path

REQUEST = StepRequest(
    model={"model_type": "llama"}, num_layers=4, micro_batch_size=1, seq_len=8, precision="bf16",
    base="16bit", attention="sdpa", activation_checkpointing="none",
    optimizer="adamw_torch_fused", rank=0,
)  # fmt: skip
GOOD = {
    "peak_bytes": 3.0, "parts": {"weights": 1.0, "activations": 2.0}, "phase": "backward",
    "phases": {"forward": 2.0, "backward": 3.0}, "op": "mm", "depths": [2, 4], "seconds": 0.1,
}  # fmt: skip
RUN = {
    "reserved": 4, "allocated": 3, "retries": 0, "out_of_memory": None,
    "at": {"step": 1, "phase": "forward", "op": "mm", "size": 2},
}  # fmt: skip
ALLOCATOR = {
    "capacity": 10, "roomy": RUN, "limited": RUN, "expandable": RUN, "needed": 4,
    "expandable_needed": 4, "events": 2,
}  # fmt: skip
HELLO = 'print(\'{"versions": {"torch": "2"}}\', flush=True)\n'


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "traced_versions", lambda: {"torch": "2"})


def ask(tmp_path: Path, script: str, *, limit_s: float = 300.0) -> Traced | TraceFailed:
    """What a worker with this source is understood to answer."""
    file = tmp_path / "worker.py"
    file.write_text(script, encoding="utf-8")
    with Tracer(
        cache=tmp_path / "cache", limit_s=limit_s, command=(sys.executable, str(file))
    ) as tracer:
        return tracer.trace(REQUEST)


def answering(answer: Any) -> str:
    return f"{HELLO}input()\nprint({json.dumps(answer)!r}, flush=True)\ninput()\n"


def test_an_answer_that_makes_sense_is_taken(tmp_path: Path) -> None:
    found = ask(tmp_path, answering(GOOD))
    assert isinstance(found, Traced)
    assert (found.peak_bytes, found.phase, found.op, found.depths) == (
        3.0,
        "backward",
        "mm",
        (2, 4),
    )
    assert list((tmp_path / "cache").iterdir())


def test_an_answer_about_the_allocator_is_read(tmp_path: Path) -> None:
    found = ask(tmp_path, answering({**GOOD, "allocator": ALLOCATOR}))
    assert isinstance(found, Traced)
    assert found.allocator.roomy.at.op == "mm"


@pytest.mark.parametrize(
    ("script", "kind", "says"),
    [
        (HELLO + "input(); import os; os.abort()\n", "crash", "SIGABRT"),
        (HELLO + "input(); raise SystemExit(7)\n", "crash", "exit code 7"),
        (HELLO + "input(); raise ValueError('the reason')\n", "crash", "the reason"),
        ("raise SystemExit(3)\n", "crash", "exit code 3"),
        (HELLO + "input(); print('not JSON', flush=True); input()\n", "garbage", "JSON"),
        (HELLO + "input(); print('[1, 2]', flush=True); input()\n", "garbage", "JSON"),
        ("print('{}', flush=True); input()\n", "garbage", "versions"),
        (HELLO + "input()\nwhile True: print('x' * 65536, end='')\n", "garbage", "talking"),
        (answering({"failed": "ValueError: no such head"}), "unsupported", "no such head"),
    ],
)
def test_a_process_that_breaks_is_a_reason(
    tmp_path: Path, script: str, kind: str, says: str
) -> None:
    found = ask(tmp_path, script)
    assert isinstance(found, TraceFailed)
    assert found.kind == kind
    assert says in found.message


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {**GOOD, "peak_bytes": float("nan")},
        {**GOOD, "peak_bytes": "3"},
        {**GOOD, "peak_bytes": 4.0},
        {**GOOD, "peak_bytes": 0.0, "parts": {}, "phases": {"backward": 0.0}},
        {**GOOD, "parts": {"weights": -1.0, "activations": 4.0}},
        {**GOOD, "parts": None},
        {**GOOD, "phase": "dreaming"},
        {**GOOD, "phases": []},
        {**GOOD, "depths": None},
        {**GOOD, "allocator": {**ALLOCATOR, "needed": -1}},
        {**GOOD, "allocator": {**ALLOCATOR, "roomy": {**RUN, "reserved": 1}}},
        {**GOOD, "allocator": {"capacity": 10}},
        {**GOOD, "allocator": []},
    ],
)
def test_an_answer_that_makes_no_sense_is_not_believed(tmp_path: Path, wrong: object) -> None:
    found = ask(tmp_path, answering(wrong))
    assert isinstance(found, TraceFailed)
    assert found.kind == "garbage"
    assert not (tmp_path / "cache").exists()


def test_a_process_that_hangs_is_stopped(tmp_path: Path) -> None:
    found = ask(tmp_path, HELLO + "import time\ninput()\ntime.sleep(600)\n", limit_s=0.3)
    assert isinstance(found, TraceFailed)
    assert found.kind == "timeout"


def test_a_process_that_cannot_start_is_a_reason(tmp_path: Path) -> None:
    with Tracer(cache=tmp_path, command=(str(tmp_path / "no such program"),)) as tracer:
        found = tracer.trace(REQUEST)
    assert isinstance(found, TraceFailed)
    assert found.kind == "crash"


def test_after_a_crash_the_next_request_gets_a_new_process(tmp_path: Path) -> None:
    file = tmp_path / "worker.py"
    file.write_text(
        f"import pathlib, sys\n{HELLO}input()\nseen = pathlib.Path({str(tmp_path / 'seen')!r})\n"
        "if not seen.exists():\n    seen.touch()\n    sys.exit(9)\n"
        f"print({json.dumps(GOOD)!r}, flush=True)\ninput()\n",
        encoding="utf-8",
    )
    with Tracer(cache=tmp_path / "cache", command=(sys.executable, str(file))) as tracer:
        assert isinstance(tracer.trace(REQUEST), TraceFailed)
        assert isinstance(tracer.trace(REQUEST), Traced)


def test_a_damaged_cache_is_asked_again(tmp_path: Path) -> None:
    ask(tmp_path, answering(GOOD))
    (kept,) = (tmp_path / "cache").iterdir()
    for text in ("", "{", "[]", json.dumps({**GOOD, "peak_bytes": -1.0, "versions": {}})):
        kept.write_text(text, encoding="utf-8")
        found = ask(tmp_path, answering(GOOD))
        assert isinstance(found, Traced)
        assert not found.cached
    again = ask(tmp_path, "raise SystemExit(1)\n")
    assert isinstance(again, Traced)
    assert again.cached


def test_what_foreign_code_found_is_never_cached(tmp_path: Path) -> None:
    file = tmp_path / "worker.py"
    file.write_text(answering(GOOD), encoding="utf-8")
    remote = replace(REQUEST, remote=str(tmp_path))
    with Tracer(cache=tmp_path / "cache", command=(sys.executable, str(file))) as tracer:
        assert isinstance(tracer.trace(remote), Traced)
    assert not (tmp_path / "cache").exists()


def test_without_torch_the_reason_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "traced_versions", dict)
    found = ask(tmp_path, answering(GOOD))
    assert isinstance(found, TraceFailed)
    assert found.kind == "missing"
