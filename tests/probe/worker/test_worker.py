"""The real worker on the processor: tiny models, every outcome that can be brought about here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from builders import BRIEF, needs

from autotune.domain.outcome import DiskUse
from autotune.probe.device import cpu
from autotune.probe.request import Effort, key_of, request_for
from autotune.probe.runner import Place, Runner
from autotune.probe.worker import __main__ as worker
from autotune.probe.worker.contract import RESULT_FILE

if TYPE_CHECKING:
    from autotune.domain.config import Config
    from autotune.domain.device import Offer
    from autotune.domain.job import Job
    from autotune.probe.record import ProbeRecord

needs("torch", "transformers", "peft")
pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
QUICK = Effort(**BRIEF, most=10, measured=4, least=2, seconds=2.0, patience_s=6.0, loader=False)


def probe(tmp_path: Path, request: dict[str, Any], config: Config, **place: Any) -> ProbeRecord:
    request = {**request, "key": key_of(request)}
    return Runner(Place(cpu(), tmp_path / "probing", 900.0, **place)).run(request, config.as_dict())


@pytest.fixture
def body(job: Job, offer: Offer, config: Config) -> dict[str, Any]:
    return request_for(job, offer, config, effort=QUICK)


ALONE = """import runpy, sys
sys.modules["autotune"] = None
runpy.run_module("probe_worker", run_name="__main__")
"""


def test_as_a_folder_of_its_own_it_measures_steps_memory_evaluation_checkpoint_and_loader(
    tmp_path: Path, job: Job, offer: Offer, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the rest of the package, in an environment of its own."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")  # the request says one
    script = tmp_path / "alone" / "worker.py"
    shutil.copytree(ROOT / "autotune" / "probe" / "worker", script.with_name("probe_worker"))
    script.write_text(ALONE)
    effort = Effort(**BRIEF, most=12, measured=6, least=2, seconds=3.0, patience_s=6.0)
    request = request_for(job, offer, config.with_knobs(num_dataloader_workers=1), effort=effort)
    levels = {"environment": {"OMP_NUM_THREADS": "1"}, "arguments": {"dataloader_in_order": False}}
    record = probe(tmp_path, request | levels, config, worker=(str(script),))
    assert record.status == "ok", record.message
    found = record.result
    assert found["device"]["threads"] == 1
    assert found["step"]["step_s"] > found["step"]["micro_s"] > 0
    assert (
        found["step"]["step_s"] == pytest.approx(found["step"]["block_s"], rel=0.5)
        or not found["step"]["steady"]
        or record.disturbed
    )
    assert found["memory"]["driver_bytes"] > found["memory"]["context_bytes"] > 1e8
    assert set(found["memory"]["phases"]) >= {"micro", "optimizer", "evaluation"}
    assert found["evaluation"]["batch_s"] > 0
    assert found["checkpoint"]["bytes"] > 10_000
    assert found["checkpoint"]["save_s"] > 0
    assert [entry["workers"] for entry in found["loader"]] == [0, 1]
    assert found["versions"]["torch"]
    assert list((tmp_path / "probing").iterdir()) == []


def test_compile_is_charged_once_and_counted(served: dict[str, Any]) -> None:
    if shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler")
    found = served["compiled"]
    assert found["status"] == "ok", found["message"]
    assert found["compile"]["graphs"] >= 1
    assert found["compile"]["extra_s"] > found["step"]["step_s"]


def test_more_memory_than_there_is_ends_as_out_of_memory(
    tmp_path: Path, body: dict[str, Any], config: Config
) -> None:
    body |= {"memory_limit_bytes": 48 * 2**20, "micro_batch_size": 512}
    record = probe(tmp_path, body, config)
    assert record.status == "oom_host", record.message
    assert record.fits is False
    assert record.attempts == 1


@pytest.mark.parametrize(
    ("line", "said"),
    [(b'{"text": "half', "line 7 is not JSON"), (b'{"label": 3}', "line 7 has no text"),
     (b'{"text": ""}', "line 7 has no text"), (b"[1, 2]", "line 7 is not a JSON object")],
)  # fmt: skip
def test_a_row_that_nobody_can_read_is_named_by_its_line(
    tmp_path: Path, line: bytes, said: str
) -> None:
    from autotune.probe.worker.rows import BadData, _read

    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"text": "fine"}\n' * 6 + line + b"\n")
    with pytest.raises(BadData, match=said):
        _read(path)


@pytest.mark.parametrize(("rank", "name"), [("0", "result.json"), ("1", "result.rank1.json")])
def test_an_error_of_a_rank_is_written_beside_the_others_and_ends_the_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: str, name: str
) -> None:
    """What the parent then makes of it is test_several_ranks.py."""
    monkeypatch.setenv("RANK", rank)
    failed = {"status": "unsupported", "message": "ImportError: flash_attn"}
    monkeypatch.setattr(worker, "answer", lambda *_: failed)
    (tmp_path / "request.json").write_text("{}")
    with pytest.raises(SystemExit) as ended:
        worker.answer_file(tmp_path / "request.json", tmp_path / "result.json", 0.0)
    assert ended.value.code == 1
    assert json.loads((tmp_path / name).read_text()) == failed


@pytest.fixture(scope="module")
def served(
    job: Job, offer: Offer, config: Config, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What one process answered to one request after the other, by name."""
    top = tmp_path_factory.mktemp("served")
    rows = top / "rows.jsonl"
    rows.write_bytes(b'{"text": "fine"}\n' * 6 + b'{"text": "half\n')
    body = request_for(job, offer, config, effort=QUICK)
    quick = {**body, "evaluation": None, "checkpoint_max_bytes": 0}
    small = {"padding": "max_length", "num_layers": 1, "gradient_accumulation_steps": 1}
    requests = {
        "plain": quick,
        "kernel": {**quick, "attention": "flash_attention_2"},
        "rows": {**quick, "dataset": {"path": str(rows), "tokenizer": "bytes"}},
        "sharding": {**quick, "sharding": "zero3"},
        "device": {**quick, "device": "cuda"},
        "compiled": {
            **quick, **small, "compile": "default", "method": {**body["method"], "kind": "full"},
        },
        "after": {**quick, "micro_batch_size": 2},
    }  # fmt: skip
    lines = ""
    for name, request in requests.items():
        folder = top / name
        folder.mkdir()
        asked = {**request, "key": key_of(request), "work_dir": str(folder)}
        (folder / "request.json").write_text(json.dumps(asked))
        lines += json.dumps(str(folder)) + "\n"
    done = subprocess.run(
        [sys.executable, "-m", "autotune.probe.worker", "--serve"],
        input=lines, text=True, capture_output=True, timeout=900, cwd=ROOT, check=False,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return {name: json.loads((top / name / RESULT_FILE).read_text()) for name in requests}


def test_one_process_serves_request_after_request_and_names_what_broke(
    served: dict[str, Any],
) -> None:
    broken = {"kernel": "unsupported", "rows": "bad_data", "sharding": "unsupported",
              "device": "unsupported"}  # fmt: skip
    named = {"plain": "ok", **broken, "after": "ok"}
    assert {name: served[name]["status"] for name in named} == named
    assert "line 7" in served["rows"]["message"]
    assert "sharding zero3 needs deepspeed" in served["sharding"]["message"]
    assert "no CUDA device" in served["device"]["message"]


def test_the_arguments_are_those_that_are_exported(
    job: Job, offer: Offer, config: Config, body: dict[str, Any]
) -> None:
    from autotune.probe.worker.arguments import training_arguments as probed
    from autotune.trainers.contract import Plan
    from autotune.trainers.hf.arguments import training_arguments as exported

    own = probed(body, output_dir="out", max_steps=9, on_cpu=True)
    plan = Plan(
        job=job, offer=offer, config=config, torch=(2, 13, 0), transformers=(5, 23, 0), trl=None,
        disk=DiskUse(), risk="", out_dir="out",
    )  # fmt: skip
    theirs = exported(plan, 5e-5)
    compared = (
        "per_device_train_batch_size", "gradient_accumulation_steps", "optim", "bf16", "fp16",
        "average_tokens_across_devices", "dataloader_num_workers", "dataloader_pin_memory",
        "activation_checkpointing", "use_cpu", "prediction_loss_only", "logging_steps",
        "per_device_eval_batch_size",
    )  # fmt: skip
    assert {n: own.get(n) for n in compared} == {n: theirs.get(n) for n in compared}


def test_fsdp_is_set_up_as_it_is_exported(job: Job, offer: Offer, config: Config) -> None:
    from autotune.trainers.contract import Plan
    from autotune.trainers.hf.arguments import _devices

    sharded = config.with_knobs(sharding="fsdp", activation_checkpointing="full")
    plan = Plan(
        job=job, offer=offer, config=sharded, torch=(2, 13, 0), transformers=(5, 23, 0), trl=None,
        disk=DiskUse(), risk="", out_dir="out",
    )  # fmt: skip
    assert request_for(job, offer, sharded)["fsdp_config"] == _devices(plan)["fsdp_config"]
