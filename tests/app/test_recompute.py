"""A run answered again says what changed, why, what stays, and what its measurements still say."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from autotune.app.job.load import load_job, load_jobs
from autotune.app.recompute.recompute import (
    RecomputeOptions,
    exit_status,
    recompute,
    software_of,
    vary_of,
)
from autotune.app.runs import folder as runs
from autotune.app.tune.tune import Options, tune
from autotune.domain.config import KNOBS
from autotune.domain.errors import InputError
from autotune.domain.typed.overrides import Overrides
from autotune.report.sections.recompute import RECOMPUTE_REPORT, recompute_payload

if TYPE_CHECKING:
    from autotune.domain.answer.recompute import Recomputed

pytestmark = pytest.mark.usefixtures("home")

ROOT = Path(__file__).parents[2]
GEMMA = ROOT / "jobs" / "t4_to_a100_gemma2.yaml"
H100 = ROOT / "jobs" / "h100_38h.yaml"
TO_A100 = Overrides(gpus=("a100-40gb",))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of case E on the T4 alone and of the H100 job, which nobody writes into."""
    top = tmp_path_factory.mktemp("finished")
    gemma, h100 = load_job(GEMMA, gpus=("t4",)), load_job(H100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOTUNE_HOME", str(top / "home"))
        tune(gemma, Options(fidelity="formula", trials=5, run_dir=top / "gemma"))
        tune(h100, Options(fidelity="formula", trials=3, run_dir=top / "h100"))
    return top


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """The run of case E, of this test alone."""
    return Path(shutil.copytree(finished / "gemma", tmp_path / "runs" / "gemma"))


def again(run: Path | None, **options: Any) -> Recomputed:
    found = recompute(run, RecomputeOptions(fidelity="formula", **options))
    (part,) = found.parts
    return part


def edited(run: Path, name: str, **changes: Any) -> None:
    path = run / name
    content = json.loads(path.read_text())
    content.update(changes)
    path.write_text(json.dumps(content))


def test_nothing_asked_and_nothing_moved_is_no_change(run: Path) -> None:
    part = again(None)  # the last run
    assert not part.changed
    assert {change.kind for change in part.changes} <= {"bill", "memory"}
    assert {kept.what for kept in part.unchanged} >= {"machine", "precision", "model", "software"}
    found = recompute(run, RecomputeOptions(fidelity="formula"))
    assert exit_status(found, fail_on_change=True) in {0, 4}


def test_another_card_changes_what_it_must_and_says_why(run: Path) -> None:
    part = again(run, overrides=TO_A100)
    changes = {change.what: change for change in part.changes}
    assert part.changed
    assert changes["machine"].from_ == "1x t4"
    assert changes["precision"].from_ == "fp16"
    assert changes["precision"].to == "bf16"
    assert "not valid there" in changes["precision"].why
    assert "device" in changes["time_s.train"].why
    kept = {item.what: item.value for item in part.unchanged}
    assert kept["global_batch_size"] == "16"
    config = part.after.best.config
    assert config.micro_batch_size * config.gradient_accumulation_steps == 16
    both = [*changes, *kept]
    assert len(both) == len(set(both))
    assert set(KNOBS) <= set(both)


def test_the_waterfall_leads_from_the_recorded_answer_to_the_new_one(run: Path) -> None:
    part = again(run, overrides=replace(TO_A100, set_values={"data.max_length": "512"}))
    steps = part.waterfall.steps
    gap_s = part.after.best.duration_s.p50 - part.before["duration_s"]["p50"]
    gap_usd = part.after.best.cost_usd.p50 - part.before["cost_usd"]["p50"]
    assert math.fsum(step.duration_s for step in steps) == pytest.approx(gap_s, abs=1e-3)
    assert math.fsum(step.cost_usd for step in steps) == pytest.approx(gap_usd, abs=1e-6)
    length = next(step for step in steps if step.change == "data.max_length")
    assert (length.from_, length.to, length.yours) == ("768", "512", True)


def test_a_global_batch_is_named_as_the_users_decision(run: Path) -> None:
    part = again(run, overrides=Overrides(set_values={"train.global_batch_size": "32"}))
    change = next(c for c in part.changes if c.what == "global_batch_size")
    assert "your decision" in change.why
    (step,) = [s for s in part.waterfall.steps if "train.global_batch_size" in s.change]
    assert step.yours


def test_prices_change_dollars_and_no_recommendation(run: Path) -> None:
    part = again(run, overrides=Overrides(price="2.00 USD/h"))
    assert not part.changed
    kinds = {c.what: c.kind for c in part.changes}
    assert kinds["usd_per_hour"] == "price"
    hours = part.after.best.duration_s.p50 / 3600
    assert part.after.best.cost_usd.p50 == pytest.approx(2.0 * hours)


def test_a_limit_that_another_price_meets_is_told_and_is_no_other_recommendation(
    finished: Path,
) -> None:
    folder = finished / "h100"
    answer = json.loads((folder / runs.ANSWER_FILE).read_text())
    assert [miss["limit"] for miss in answer["misses"]] == ["deadline", "budget"]
    found = recompute(
        folder, RecomputeOptions(overrides=Overrides(price="1 USD/h"), fidelity="formula")
    )
    assert exit_status(found, fail_on_change=True) == 4
    (part,) = found.parts
    change = next(c for c in part.changes if c.what == "limits missed")
    assert (change.from_, change.to) == ("budget, deadline", "deadline")
    assert [step.change for step in part.waterfall.steps] == ["price"]
    assert (part.waterfall.steps[0].from_, part.waterfall.steps[0].to) == ("$2.50/h", "$1.00/h")


@pytest.mark.parametrize("name", ["own.yml", "train.py"])
def test_a_trainers_own_file_needs_the_machine_it_runs_on(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("base_model: x\nmicro_batch_size: 2\nsequence_len: 512\nadapter: lora\n")
    with pytest.raises(InputError, match="trainer's own file") as caught:
        recompute(path, RecomputeOptions(overrides=TO_A100))
    assert "--gpu NOW,OTHER" in (caught.value.hint or "")


def test_a_trainers_own_file_starts_from_the_first_machine() -> None:
    path = ROOT / "jobs" / "trainers" / "axolotl.yml"
    overrides = Overrides(gpus=("a100-80gb", "h100-sxm"), stated={"data.rows": 52000})
    part = again(path, overrides=overrides)
    before, after = part.before, part.after.best
    assert (before["device"], after.offer.device.name) == ("a100-sxm4-80gb", "h100-sxm")
    alone = tune(
        load_jobs(path, replace(overrides, gpus=("h100-sxm",)))[0].job,
        Options(dry_run=True, fidelity="formula", trials=1),
    )
    same_time = {"attention": alone.best.config.attention}  # equal rows: the kernels are a tie
    assert after.config.with_knobs(**same_time) == alone.best.config
    assert after.cost_usd == alone.best.cost_usd


def test_what_a_job_states_is_not_stated_beside_it(run: Path) -> None:
    twice = RecomputeOptions(overrides=Overrides(stated={"data.rows": 3}))
    for source in (run, H100):
        with pytest.raises(InputError, match="--rows cannot be given beside it"):
            recompute(source, twice)


def test_other_versions_are_a_change_of_their_own(run: Path) -> None:
    part = again(run, software={"transformers": "4.48.0"})
    change = next(c for c in part.changes if c.kind == "software")
    assert "transformers 4.48.0" in str(change.to)
    assert any(c.kind == "memory" for c in part.changes)


def test_a_changed_recommendation_can_fail_the_build(run: Path) -> None:
    found = recompute(run, RecomputeOptions(overrides=TO_A100, fidelity="formula"))
    assert exit_status(found, fail_on_change=True) == 6
    assert exit_status(found, fail_on_change=False) in {0, 4}


def test_a_duration_measured_elsewhere_is_marked_as_carried_over(finished: Path) -> None:
    folder = finished / "h100"
    here, there = again(folder), again(folder, overrides=TO_A100)
    assert [o.status for o in here.observations] == ["valid"]
    assert [o.status for o in there.observations] == ["carried over"]
    assert "h100" in there.observations[0].why
    # What was measured there is read with that machine's own disk, so it says the same of it.
    assert not any("asked again" in step.change for step in there.waterfall.steps)
    for key, value in (("method.base", "nf4"), ("method.variant", "dora")):
        other = again(folder, overrides=Overrides(set_values={key: value}))
        assert [o.status for o in other.observations] == ["left out"]
        assert other.after.best.basis == "modelled"


def test_what_probes_measured_of_the_run_is_used_where_it_is_valid(run: Path) -> None:
    recorded = json.loads((run / runs.ANSWER_FILE).read_text())
    best = recorded["best"]
    step_s = 1.3 * best["step_time_s"]
    best["basis"] = "measured"
    best["measured"] = {
        "step_time_s": step_s, "peak_allocated_bytes": 8e9, "peak_reserved_bytes": 9e9,
        "provenance": "probe",
    }  # fmt: skip
    edited(run, runs.ANSWER_FILE, best=best)
    part = again(run)
    status = {o.quantity: o.status for o in part.observations}
    assert status == {"step_time_s": "valid", "memory_bytes": "valid"}
    assert part.after.best.basis == "calibrated"
    moved = {o.quantity: o.status for o in again(run, overrides=TO_A100).observations}
    assert moved == {"step_time_s": "carried over", "memory_bytes": "left out"}


def test_variants_of_case_e_come_with_a_memory_table(run: Path) -> None:
    vary = [vary_of("rank=8"), vary_of("rank=32"), vary_of("name=QLoRA,kind=qlora")]
    found = recompute(run, RecomputeOptions(overrides=TO_A100, vary=vary, fidelity="formula"))
    assert [part.variant for part in found.parts] == ["as it is", "rank 8", "rank 32", "QLoRA"]
    payload = recompute_payload(found)
    text = RECOMPUTE_REPORT.text(payload)
    assert max(map(len, text.splitlines())) <= 80
    table = text.split("After, on 1x a100")[1]
    assert "logits and loss" in table
    assert "QLoRA" in table
    assert "| after |" in RECOMPUTE_REPORT.markdown(payload)


def test_a_job_file_is_recomputed_from_its_first_machine() -> None:
    part = again(GEMMA, overrides=TO_A100)
    assert part.before["device"] == "t4"
    assert part.after.best.offer.device.name == "a100-sxm4-40gb"
    assert part.after.best.offer.month_usd == 10  # as the file has it


def test_the_new_answer_is_kept_where_asked(run: Path, tmp_path: Path) -> None:
    kept = tmp_path / "runs" / "new"
    part = again(run, overrides=TO_A100, run_dir=kept)
    assert part.after.run_dir == str(kept)
    assert (kept / runs.ANSWER_FILE).exists()


def test_a_price_of_last_year_is_named(run: Path) -> None:
    recorded = json.loads((run / runs.ANSWER_FILE).read_text())
    recorded["best"].update(usd_per_hour=1.0, price_as_of="2025-01-05")
    edited(run, runs.ANSWER_FILE, best=recorded["best"])
    assert any("2025-01-05" in warning for warning in again(run).warnings)


def test_nothing_fits_before_or_after_is_an_answer(run: Path) -> None:
    tiny = {"limits.vram_headroom": "0.9"}
    found = recompute(
        run, RecomputeOptions(overrides=Overrides(set_values=tiny), fidelity="formula")
    )
    (part,) = found.parts
    assert part.after.best is None
    assert part.changed
    assert part.waterfall is None
    assert exit_status(found, fail_on_change=False) == 3
    assert "nothing fits" in RECOMPUTE_REPORT.text(recompute_payload(found))


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("job.json", '{"schema_version": 9}', "schema version 9"),
        ("job.json", "{", "cannot be read as JSON"),
        ("job.json", '{"schema_version": 1, "spec": [1]}', "damaged"),
        ("recommendation.json", '{"schema_version": 7}', "schema version 7"),
        ("recommendation.json", '{"schema_version": 1}', "damaged"),
        ("recommendation.json", "[]", "JSON object"),
    ],
)
def test_a_damaged_run_is_an_error(run: Path, name: str, content: str, says: str) -> None:
    (run / name).write_text(content)
    with pytest.raises(InputError, match=says):
        again(run)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("config", "micro_batch_size"), -4),
        (("config", "precision"), "fp7"),
        (("config", "compile"), None),
        (("duration_s", "p50"), float("nan")),
        (("time_s", "train"), "long"),
        (("memory_bytes", "total"), 10**400),
        (("usd_per_hour",), -1.0),
        (("measured",), {"step_time_s": 0}),
    ],
)
def test_a_row_that_cannot_be_is_an_error(run: Path, path: tuple[str, ...], value: Any) -> None:
    recorded = json.loads((run / runs.ANSWER_FILE).read_text())
    inner = recorded["best"]
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    edited(run, runs.ANSWER_FILE, best=recorded["best"])
    with pytest.raises(InputError, match=path[-1]):
        again(run)


def test_no_run_and_no_such_run_are_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no runs in"):
        again(None)
    with pytest.raises(InputError, match="no such folder"):
        again(tmp_path / "nowhere")


@pytest.mark.parametrize("text", ["rank", "rank=", "=8", "rank=8,rank=16"])
def test_a_variant_is_pairs_of_key_and_value(text: str) -> None:
    with pytest.raises(InputError, match="KEY=VALUE"):
        vary_of(text)


def test_software_is_a_profile_or_versions() -> None:
    assert software_of("2025-02") == "2025-02"
    assert software_of("torch=2.9, trl=1.0") == {"torch": "2.9", "trl": "1.0"}
