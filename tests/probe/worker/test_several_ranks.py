"""Several processes on one host: real ones under torchrun with gloo, and what goes wrong there."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from builders import BRIEF
from waiting import until

from autotune.probe.device import cpu
from autotune.probe.outcomes import Ending, root_cause, unexplained
from autotune.probe.request import Effort, key_of, request_for
from autotune.probe.runner import GUARD, Place, Runner, worker_environment
from autotune.probe.worker import ranks

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.domain.config import Config
    from autotune.domain.device import Offer
    from autotune.domain.job import Job
    from autotune.probe.record import ProbeRecord

    Run = Callable[..., ProbeRecord]

ROOT = Path(__file__).parents[3]
QUICK = Effort(**BRIEF, most=8, measured=3, least=2, seconds=1.0, patience_s=2.0, loader=False)
DEEPSPEED_METADATA = "Metadata-Version: 2.1\nName: deepspeed\nVersion: 0.18.0\n"


def needs_torch() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    pytest.importorskip("peft")


def test_all_ranks_stop_at_the_step_that_the_first_one_chose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signs = [ranks.StopSign(tmp_path), ranks.StopSign(tmp_path)]
    last: dict[int, int] = {}
    for step in range(1, 30):
        for own in (1, 0) if step % 2 else (0, 1):  # either may be the first to end a step
            monkeypatch.setenv("RANK", str(own))
            wants = step >= 3 if own else step >= 7
            if own not in last and signs[own].reached(step, wanted=wants):
                last[own] = step
    assert last == {0: 7 + ranks.AHEAD, 1: 7 + ranks.AHEAD}


def test_a_process_alone_stops_when_it_wants() -> None:
    sign = ranks.StopSign(None)
    assert not sign.reached(1, wanted=False)
    assert sign.reached(2, wanted=True)


def test_the_slowest_rank_and_the_fullest_one_count(monkeypatch: pytest.MonkeyPatch) -> None:
    quick, slow = (dict.fromkeys(ranks.TIMES, seconds) for seconds in (1.0, 1.5))
    monkeypatch.setattr(ranks, "_gathered", lambda own: [own, slow])
    assert ranks.slowest(quick)["step_s"] == 1.5
    full = {"driver_bytes": 9.0, "allocated_bytes": 2.0}
    monkeypatch.setattr(ranks, "_gathered", lambda own: [own, full])
    found = ranks.largest({"driver_bytes": 5.0, "allocated_bytes": 4.0})
    assert found["allocated_bytes"] == 2.0
    assert found["driver_bytes_of_ranks"] == [5.0, 9.0]


def test_a_lost_connection_is_not_the_cause_but_what_lost_it_is() -> None:
    lost = {"status": "nccl_error", "message": "Connection closed by peer"}
    cause = {"status": "oom_device", "message": "8 GiB"}
    assert root_cause([lost, cause]) == cause
    assert root_cause([lost]) == lost
    assert unexplained(Ending(1, "", rank_failures=(lost, cause)), "")[0] == "oom_device"


@pytest.mark.slow
@pytest.mark.services
@pytest.mark.parametrize("mode", ["rank-fails", "rank-fails-late", "connection-lost"])
def test_an_error_of_one_rank_is_the_outcome_whatever_the_first_rank_tells(
    run_fake: Run, mode: str
) -> None:
    needs_torch()
    record = run_fake(mode, count=2, timeout_s=300.0)
    assert record.status == "unsupported", record.message  # not "timeout": nobody waited for it
    assert "on rank 1" in record.message


@pytest.mark.slow
@pytest.mark.services
def test_no_rank_outlives_the_time_limit(run_fake: Run, tmp_path: Path) -> None:
    needs_torch()
    told = tmp_path / "pid"
    files = [told.with_suffix(f".{rank}") for rank in (0, 1)]
    for limit_s in (15.0, 60.0, 240.0):  # a machine may be too busy to start them in less
        record = run_fake(f"ranks-hang:{told}", count=2, timeout_s=limit_s)
        assert record.status == "timeout"
        if all(file.exists() for file in files):
            break
    pids = [int(file.read_text()) for file in files]
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def probe(tmp_path: Path, job: Job, offer: Offer, config: Config, **changes: Any) -> ProbeRecord:
    body = request_for(job, offer, config, effort=QUICK) | {"count": 2} | changes
    request = body | {"key": key_of(body)}
    return Runner(Place(cpu(), tmp_path / "probing", 900.0)).run(request, config.as_dict())


@pytest.mark.slow
def test_fsdp_divides_the_model_over_two_processes(
    tmp_path: Path, job: Job, offer: Offer, config: Config
) -> None:
    """Adapters beside a frozen model, recomputed: what a whole model is divided by, and more."""
    needs_torch()
    sharded = config.with_knobs(sharding="fsdp", activation_checkpointing="full")
    method = {**request_for(job, offer, config)["method"], "kind": "lora"}
    record = probe(tmp_path, job, offer, sharded, method=method)
    assert record.status == "ok", record.message
    found = record.result
    assert found["step"]["world"] == 2
    share = found["parameters"]["local_bytes"] / found["parameters"]["bytes"]
    assert share == pytest.approx(0.5, abs=0.02)
    assert found["checkpoint"]["save_s"] > 0
    assert found["checkpoint"]["load_s"] > 0
    assert found["evaluation"]["batch_s"] > 0
    assert len(found["memory"]["driver_bytes_of_ranks"]) == 2


@pytest.mark.slow
@pytest.mark.services
def test_two_launchers_that_meet_at_one_rendezvous_measure_one_step(
    tmp_path: Path, job: Job, offer: Offer, config: Config
) -> None:
    """Two machines as a probe sees them: a launcher each, one folder that both see."""
    needs_torch()
    body = request_for(job, offer, config.with_knobs(sharding="ddp"), effort=QUICK) | {
        "count": 2, "evaluation": None, "work_dir": str(tmp_path),
    }  # fmt: skip
    asked, result = tmp_path / "request.json", tmp_path / "result.json"
    asked.write_text(json.dumps(body | {"key": key_of(body)}))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = f"127.0.0.1:{free.getsockname()[1]}"
    place = Place(cpu(), tmp_path / "probing", 900.0)
    command = [  # a test that is killed takes them along
        sys.executable, "-S", "-E", str(GUARD), str(os.getpid()),
        place.python, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1",
        "--rdzv-backend", "c10d", "--rdzv-endpoint", meeting, "--rdzv-id", "probe",
    ]  # fmt: skip
    launchers = []
    for node in ("0", "1"):
        with (tmp_path / f"stderr-{node}").open("wb") as words:
            launchers.append(subprocess.Popen(
                [*command, "--node-rank", node, *place.worker, str(asked), str(result)],
                cwd=tmp_path, env=worker_environment(place, f"mark-{node}"), stdout=words,
                stderr=words,
            ))  # fmt: skip
    try:
        codes = [launcher.wait(600) for launcher in launchers]
    finally:
        for launcher in launchers:
            launcher.terminate()
            launcher.wait()
    said = (tmp_path / "stderr-0").read_text(errors="replace")[-2000:]
    assert codes == [0, 0], said
    found = json.loads(result.read_text())
    assert found["status"] == "ok", found
    assert found["step"]["world"] == 2
    assert len(found["memory"]["driver_bytes_of_ranks"]) == 2


@pytest.mark.slow
def test_accelerate_reads_the_environment_of_zero_as_it_is_meant(tmp_path: Path) -> None:
    needs_torch()
    package, metadata = tmp_path / "deepspeed", tmp_path / "deepspeed-0.18.0.dist-info"
    package.mkdir()
    metadata.mkdir()
    (package / "__init__.py").write_text("")
    (metadata / "METADATA").write_text(DEEPSPEED_METADATA)
    code = (
        "import os\n"
        "from autotune.probe.worker.arguments import prepare\n"
        "request = {'sharding': 'zero3', 'gradient_accumulation_steps': 4,"
        " 'method': {'base': '16bit'}, 'precision': 'bf16'}\n"
        "prepare(request, on_cpu=False)\n"
        "from accelerate.utils import DeepSpeedPlugin\n"
        "plugin = DeepSpeedPlugin()\n"
        "config = plugin.deepspeed_config\n"
        "print(plugin.zero_stage, plugin.gradient_accumulation_steps, plugin.zero3_init_flag,"
        " plugin.zero3_save_16bit_model, config['gradient_clipping'],"
        " plugin.offload_optimizer_device)\n"
    )
    path = os.pathsep.join((str(tmp_path), str(ROOT)))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": path}, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["3", "4", "True", "True", "1.0", "none"]
