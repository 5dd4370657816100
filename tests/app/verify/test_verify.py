"""What a log must be, what it teaches, and what is kept of it. The planned run is case A."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.app.estimate import stated_config
from autotune.app.job.load import load_job
from autotune.app.verify.verify import VERIFIED_FILE, VerifyOptions, verify
from autotune.domain.errors import InputError
from autotune.evidence.runs_seen import store_of, with_verified
from autotune.pricing import Pricing
from autotune.report.payload import dumps
from autotune.report.sections.verification import VERIFY_REPORT, verification_payload

if TYPE_CHECKING:
    from autotune.domain.answer.verification import Verification
    from autotune.domain.job import Job

pytestmark = pytest.mark.usefixtures("home")

JOB = Path(__file__).parents[3] / "jobs" / "a100_llama7b_int8.yaml"
STEPS = 2375


@pytest.fixture(scope="module")
def tuned(case_a_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of case A's run, to write into."""
    return Path(shutil.copytree(case_a_run, tmp_path_factory.mktemp("planned") / "run"))


def state(path: Path, **changes: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "global_step": 1200, "max_steps": STEPS, "num_train_epochs": 1, "epoch": 1200 / STEPS,
        "train_batch_size": 16, "save_steps": 50, "log_history": [],
    }  # fmt: skip
    path.write_text(json.dumps(content | changes))
    return path


def half_way(top: Path, step_s: float, save_s: float = 7.0) -> Path:
    """A Trainer's output folder after 1,200 steps."""
    for step in range(50, 1201, 50):
        file = state(top / f"checkpoint-{step}" / "trainer_state.json", global_step=step,
                     epoch=step / STEPS)  # fmt: skip
        written = 1.7e9 + step * step_s + step // 50 * save_s
        os.utime(file, (written, written))
    return top


def line(found: Verification, what: str) -> Any:
    return next(line for line in found.lines if line.what == what)


def predicted_step_s(job: Job) -> float:
    assert job.today is not None
    return float(Pricing.learned(job).of([(job.offers[0], job.today)]).step_s[0])


def test_half_way_the_rest_goes_on_at_the_speed_shown(tuned: Path, tmp_path: Path) -> None:
    found = verify(tuned, half_way(tmp_path / "out", 12.0))
    step = line(found, "step_time")
    assert step.actual == pytest.approx(12.0, rel=0.02)
    assert step.ratio == pytest.approx(step.actual / step.predicted)
    assert line(found, "total").actual is None
    assert line(found, "checkpoints").actual is None
    left = found.remaining
    assert left.steps == STEPS - 1200
    assert left.duration_s == pytest.approx(1175 * 12.0 + 24 * 9.0, rel=0.02)
    assert left.cost_usd == pytest.approx(left.duration_s / 3600 * found.offer.usd_per_hour)
    following = found.next_runs
    assert following.basis == "measured"
    assert following.duration_s.p10 < STEPS * 12.2 < following.duration_s.p90


def test_what_was_learned_is_evidence_of_the_next_estimate(tuned: Path, tmp_path: Path) -> None:
    plain = predicted_step_s(load_job(JOB))
    verify(tuned, half_way(tmp_path / "out", 1.2 * plain))
    job = load_job(JOB)
    assert predicted_step_s(job) == pytest.approx(1.2 * plain, rel=0.03)
    assert any("verified run" in item.value for item in job.assumed)
    kept = json.loads((tuned / VERIFIED_FILE).read_text())
    assert kept["observations"][0]["quantity"] == "step_time_s"


@pytest.mark.slow
def test_a_later_log_of_the_same_training_replaces_the_earlier(tuned: Path, tmp_path: Path) -> None:
    out = half_way(tmp_path / "out", 12.0)
    verify(tuned, out / "checkpoint-600" / "trainer_state.json")
    verify(tuned, out)
    assert len(load_job(JOB).evidence) - 1 == 1  # beside the job's own
    verify(tuned, half_way(tmp_path / "second", 13.0))
    assert len(load_job(JOB).evidence) - 1 == 2


def test_another_model_or_length_does_not_start_from_it(tuned: Path, tmp_path: Path) -> None:
    verify(tuned, half_way(tmp_path / "out", 12.0))
    assert len(load_job(JOB, set_values={"data.max_length": "256"}).evidence) == 1
    assert len(load_job(JOB, set_values={"method.rank": "8"}).evidence) == 1
    assert len(load_job(JOB, set_values={"data.rows": "1000"}).evidence) == 2


def test_beyond_a_factor_of_two_nothing_is_scaled_but_this_run_goes_on_so(
    tuned: Path, tmp_path: Path
) -> None:
    plain = predicted_step_s(load_job(JOB))
    found = verify(tuned, half_way(tmp_path / "out", 4 * plain))
    assert {item.component: item.after for item in found.learned}["compute"] == 1.0
    assert any(item.explains for item in found.explanations)
    assert found.remaining.duration_s > 0.95 * 1175 * 4 * plain
    assert any("not used to scale" in text for text in found.warnings)


def test_another_card_is_noticed_and_only_efficiency_carries_over(
    tuned: Path, tmp_path: Path
) -> None:
    found = verify(tuned, half_way(tmp_path / "out", 25.0), VerifyOptions(gpu="l40s"))
    assert (found.offer.device.name, found.planned.device.name) == ("l40s", "a100-sxm4-80gb")
    assert any("was planned" in text for text in found.warnings)
    assert found.next_runs.offer == found.planned
    assert found.next_runs.basis == "calibrated"
    own = next(o for o in load_job(JOB).evidence if o.facts.get("verified"))
    assert own.facts["gpu"] == "l40s"


def test_a_card_named_in_the_record_is_noticed_too(tuned: Path, tmp_path: Path) -> None:
    path = tmp_path / "observations.jsonl"
    start = {"event": "start", "device": "NVIDIA H100 80GB HBM3", "max_steps": STEPS,
             "micro_batch_size": 16, "gradient_accumulation_steps": 8}  # fmt: skip
    steps = [{"event": "step", "step": n, "duration_s": 5.0} for n in range(1, 60)]
    saves = [{"event": "checkpoint", "step": 50, "duration_s": 20.0}]
    memory = [{"event": "memory", "allocated_bytes": 4e10}]
    path.write_text("\n".join(json.dumps(e) for e in [start, *steps, *saves, *memory]) + "\n")
    found = verify(tuned, path)
    assert found.offer.device.name == "h100-sxm"
    assert line(found, "checkpoints").ratio is not None
    assert line(found, "peak_memory").actual == 4e10
    assert not {"memory", "checkpoint"} & {item.component for item in found.learned}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"max_steps": 5000}, "max_steps is 5,000, and the job has 2,375"),
        ({"num_train_epochs": 3}, "num_train_epochs is 3, and the job has 1"),
        ({"train_batch_size": 7}, "train_batch_size is 7, which does not divide"),
        ({"epoch": 0.25}, "its global batch is 63"),
    ],
)
def test_a_log_of_another_job_is_refused_with_what_differs(
    tuned: Path, tmp_path: Path, changes: dict[str, Any], says: str, home: Path
) -> None:
    with pytest.raises(InputError) as refused:
        verify(tuned, state(tmp_path / "s.json", **changes), VerifyOptions(elapsed="4h"))
    assert says in refused.value.message
    assert not home.exists()


@pytest.mark.slow
def test_without_any_time_the_error_asks_for_it(tuned: Path, tmp_path: Path) -> None:
    log = state(tmp_path / "trainer_state.json")
    with pytest.raises(InputError) as refused:
        verify(tuned, log)
    assert "--elapsed 3h" in str(refused.value.hint)
    found = verify(tuned, log, VerifyOptions(elapsed="4h"))
    assert line(found, "step_time").actual == pytest.approx(11.8, rel=0.05)
    for wrong in ("5", "0 h", "-3h", "1e300 h", "100 years"):
        with pytest.raises(InputError):
            verify(tuned, log, VerifyOptions(elapsed=wrong))


def test_a_finished_run_has_a_total_and_nothing_left(tuned: Path, tmp_path: Path) -> None:
    end = {"step": STEPS, "train_runtime": 28_500.0, "train_loss": float("nan"),
           "train_steps_per_second": 0.083, "train_samples_per_second": 10.667}  # fmt: skip
    log = state(tmp_path / "trainer_state.json", global_step=STEPS, epoch=1.0, log_history=[end])
    found = verify(tuned, log)
    assert found.finished
    assert found.remaining.steps == found.remaining.duration_s == 0
    total = line(found, "total")
    assert total.actual is not None
    assert total.actual > 28_500
    assert line(found, "timed").actual == 28_500


def test_a_run_folder_alone_is_verified_by_what_its_script_wrote(tuned: Path) -> None:
    out = half_way(tuned / "output", 12.0)
    try:
        assert verify(None, tuned).run_dir == str(tuned)
    finally:
        shutil.rmtree(out)


def test_of_a_state_and_a_record_in_one_folder_the_newer_is_read(tuned: Path) -> None:
    out, record = half_way(tuned / "output", 12.0), tuned / "observations.jsonl"
    steps = [{"event": "step", "step": n, "duration_s": 13.0} for n in range(1, 60)]
    record.write_text("".join(json.dumps(event) + "\n" for event in steps))
    try:
        assert verify(None, tuned).log == str(record)
        os.utime(record, (1.6e9, 1.6e9))
        assert verify(None, tuned).log == str(out / "checkpoint-1200" / "trainer_state.json")
    finally:
        shutil.rmtree(out)
        record.unlink()


def test_a_job_file_stands_in_for_a_run_folder(tmp_path: Path) -> None:
    found = verify(JOB, half_way(tmp_path / "out", 12.0))
    assert found.run_dir is None
    assert line(found, "step_time").actual == pytest.approx(12.0, rel=0.02)


def test_a_run_not_made_as_planned_is_compared_as_it_was(tuned: Path, tmp_path: Path) -> None:
    log = state(tmp_path / "trainer_state.json", train_batch_size=4)
    found = verify(tuned, log, VerifyOptions(elapsed="4h"))
    assert found.config.micro_batch_size == 4
    assert found.config.gradient_accumulation_steps == 32
    assert any("not made as planned" in text for text in found.warnings)


def test_dates_of_copying_are_refused(tuned: Path, tmp_path: Path, home: Path) -> None:
    out = half_way(tmp_path / "out", 0.03, save_s=1.0)
    with pytest.raises(InputError, match="impossible"):
        verify(tuned, out)
    assert not home.exists()
    assert line(verify(tuned, out, VerifyOptions(elapsed="4h")), "step_time").actual > 10


def test_evaluations_that_the_job_does_not_state_go_on(tuned: Path, tmp_path: Path) -> None:
    history = [{"step": n, "train_runtime": 12.0 * n} for n in (400, 800)]
    times = [{"step": n, "eval_runtime": 300.0, "eval_loss": 1.0} for n in (400, 800, 1200)]
    log = state(tmp_path / "s.json", log_history=[history[0], times[0], history[1], *times[1:]])
    found = verify(tuned, log)
    assert line(found, "evaluation").actual == 900.0
    assert found.remaining.duration_s > 1175 * line(found, "step_time").actual + 3 * 300


@pytest.mark.slow
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    runtimes=st.lists(st.floats(0, 1e12) | st.just(float("nan")), max_size=4),
    evaluations=st.lists(st.floats(0, 4e9), max_size=3),
    done=st.integers(0, STEPS),
    tokens=st.floats(0, 1e18),
    save=st.floats(0, 1e6),
    elapsed=st.sampled_from([None, "1 ms", "3h", "9 years"]),
)
def test_no_log_ends_in_a_traceback(  # noqa: PLR0917 - one argument a key of the log
    tuned: Path, tmp_path: Path, runtimes: list[float], evaluations: list[float], done: int,
    tokens: float, save: float, elapsed: str | None,
) -> None:  # fmt: skip
    history = [{"step": done, "train_runtime": runtime, "train_loss": 1.0} for runtime in runtimes]
    history += [{"step": done, "eval_runtime": seconds} for seconds in evaluations]
    log = state(tmp_path / "trainer_state.json", global_step=done, epoch=done / STEPS,
                log_history=history, num_input_tokens_seen=tokens, save_steps=save)  # fmt: skip
    try:
        found = verify(tuned, log, VerifyOptions(elapsed=elapsed))
    except InputError:
        return
    assert dumps(verification_payload(found))
    assert VERIFY_REPORT.text(verification_payload(found))


def test_a_damaged_store_is_left_out_and_named(tuned: Path, tmp_path: Path) -> None:
    verify(tuned, half_way(tmp_path / "out", 12.0))
    job = load_job(JOB)
    path = store_of(job)
    content = json.loads(path.read_text())
    for wrong in (float("nan"), True, "12", -1, None):
        content["runs"][0]["observations"][0]["value"] = wrong
        path.write_text(json.dumps(content))
        again = load_job(JOB)
        assert len(again.evidence) == 1
        assert "is damaged" in again.assumed[-1].why
    path.write_text("[" * 100_000)
    assert len(with_verified(job).evidence) == len(job.evidence)


PACKED = """\
name: packed
model: Qwen/Qwen2.5-0.5B
method: full
data: {rows: 3000, lengths: {mean: 200}, max_length: 2048}
train: {epochs: 1, global_batch_size: 16}
software: {flash_attn: 2.8.3, trainer: trl}
hardware: [{gpu: a100-sxm4-80gb, price: 1USD/h}]
lock: {packing: "on", attention: flash_attention_2, micro_batch_size: 4}
"""


@pytest.mark.parametrize(("share", "told"), [(1.0, ""), (1.15, ""), (3.0, "max_steps is")])
def test_packed_rows_are_fewer_steps_whose_number_nobody_knows_exactly(
    tmp_path: Path, share: float, told: str
) -> None:
    """188 steps unpacked; how full sequences are is assumed, and a row is part of a step."""
    plan = tmp_path / "packed.yaml"
    plan.write_text(PACKED)
    job = load_job(plan)
    steps = Pricing(job).one(job.offers[0], stated_config(job)).steps
    assert steps < 0.2 * job.steps
    most = round(share * steps)
    log = [{"step": n, "epoch": n / most, "loss": 1.0} for n in range(1, most + 1)]
    state(
        tmp_path / "out" / "trainer_state.json", global_step=most, max_steps=most, epoch=1.0,
        train_batch_size=4, log_history=[*log, {"step": most, "train_runtime": 9.0 * most}],
    )  # fmt: skip
    if told:
        with pytest.raises(InputError, match=told):
            verify(plan, tmp_path / "out")
    else:
        found = verify(plan, tmp_path / "out")
        assert found.steps_done == most
        assert found.kind.smoke_steps is None
