"""Several jobs of one file: each is the job that `--set` makes, and nothing less is accepted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from autotune.app.compare.compare import compare
from autotune.app.job.load import jobs_of_line, load_job, load_jobs
from autotune.app.tune.tune import Options, tune
from autotune.domain.errors import InputError
from autotune.domain.typed.overrides import Overrides

if TYPE_CHECKING:
    from autotune.domain.job import Job, NamedJob

pytestmark = pytest.mark.usefixtures("home")

ROOT = Path(__file__).parents[3]
BASE: dict[str, Any] = {
    "model": "Qwen/Qwen2-0.5B",
    "method": {"kind": "lora", "rank": 16, "base": "16bit"},
    "data": {"rows": 8000, "max_length": 512, "lengths": {"p50": 100, "p95": 400, "max": 512}},
    "train": {"epochs": 2, "global_batch_size": 8},
    "hardware": ["rtx-4090"],
}
SEEN = [{"measured": {"duration": "1h"}, "config": {"micro_batch_size": 8}, "today": True}]


def write(folder: Path, **changes: Any) -> Path:
    path = folder / "job.json"
    path.write_text(json.dumps({**BASE, **changes}))
    return path


def jobs_of(folder: Path, changes: Overrides | None = None, **keys: Any) -> list[NamedJob]:
    return load_jobs(write(folder, **keys), changes or Overrides())


def problem(folder: Path, variant: str | None = None, **keys: Any) -> str:
    with pytest.raises(InputError) as caught:
        load_jobs(write(folder, **keys), Overrides(), variant=variant)
    return f"{caught.value.message} {caught.value.hint or ''}"


def contract(job: Job) -> tuple[Any, ...]:
    return (
        job.model.name, job.method, job.rows, job.max_length, job.lengths, job.epochs, job.steps,
        job.global_batch_size, job.offers,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("entry", "key", "value"),
    [
        ({"rank": 8}, "method.rank", "8"),
        ({"method": {"rank": 8}}, "method.rank", "8"),
        ({"method.rank": 8}, "method.rank", "8"),
        ({"kind": "qlora"}, "method.kind", "qlora"),
        ({"data": {"max_length": 256}}, "data.max_length", "256"),
        ({"epochs": 1}, "train.epochs", "1"),
        ({"data": {"lengths": {"p50": 50}}}, "data.lengths.p50", "50"),
        ({"targets": ["q_proj", "v_proj"]}, "method.targets", "q_proj, v_proj"),
    ],
)
def test_a_variant_is_the_job_that_set_makes(
    tmp_path: Path, entry: dict[str, Any], key: str, value: str
) -> None:
    (variant,) = jobs_of(tmp_path, variants=[entry])
    as_set = load_job(write(tmp_path), set_values={key: value})
    assert contract(variant.job) == contract(as_set)


def test_lists_of_sizes_multiply_with_variants(tmp_path: Path) -> None:
    found = jobs_of(
        tmp_path,
        data={"rows": [1000, 5000], "max_length": 512},
        variants=[{"name": "small", "rank": 4}, {"rank": 8}],
    )
    assert [(named.job.rows, named.job.method.rank) for named in found] == [
        (1000, 4), (5000, 4), (1000, 8), (5000, 8),
    ]  # fmt: skip
    assert found[0].variant == "small, rows 1,000"
    assert len({named.variant for named in found}) == 4


def test_a_list_may_be_typed_on_the_command_line(tmp_path: Path) -> None:
    changes = Overrides(set_values={"data.rows": "[1000, 5000]"})
    assert [named.job.rows for named in jobs_of(tmp_path, changes)] == [1000, 5000]


def test_a_variant_is_chosen_by_name_or_number(tmp_path: Path) -> None:
    path = write(tmp_path, variants=[{"name": "a", "rank": 4}, {"name": "b", "rank": 8}])
    assert load_job(path, variant="b").method.rank == 8
    assert load_job(path, variant="1").method.rank == 4
    with pytest.raises(InputError, match="2 variants, and one is needed"):
        load_job(path)


def test_the_one_line_form_is_one_job() -> None:
    stated = {"model": "Qwen/Qwen2-0.5B", "data.rows": 100}
    rows = {"data.rows": "[10, 20]"}
    with pytest.raises(InputError, match="one job, and these options make 2"):
        jobs_of_line(Overrides(gpus=["t4"], set_values=rows, stated=stated))


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"variants": {"rank": 8}}, "must be a list of mappings"),
        ({"variants": []}, "must be a list of mappings"),
        ({"variants": ["r8"]}, "must be a mapping"),
        ({"variants": [{"rnak": 8}]}, "rnak"),
        ({"variants": [{"rank": [4, 8]}]}, "must be one value"),
        ({"variants": [{"rank": None}]}, "must be one value"),
        ({"variants": [{"rank": -1}]}, "must be a whole number"),
        ({"variants": [{"learning_rate": 1e-4}]}, "learning_rate"),
        ({"variants": [{"rank": 8}, {"rank": 8}]}, "two variants are called"),
        ({"variants": [{"name": "x", "rank": 8}, {"name": "x", "rank": 9}]}, "called 'x'"),
        ({"data": {"rows": []}}, "a number or a list of numbers"),
        ({"data": {"rows": [10, 10]}}, "lists a size twice"),
        ({"data": {"rows": [10, {}]}}, "a number or a list of numbers"),
        ({"data": {"rows": list(range(1, 99))}}, "at most 64"),
        ({"data": {"rows": [10, 0]}}, "must be a whole number"),
        ({"varients": [{"rank": 8}]}, "variants"),
    ],
)
def test_what_is_no_variant_is_refused(tmp_path: Path, keys: dict[str, Any], says: str) -> None:
    assert says in problem(tmp_path, **keys)


def test_an_unknown_variant_offers_close_ones(tmp_path: Path) -> None:
    assert "did you mean rank 8" in problem(tmp_path, "rank 88", variants=[{"rank": 8}])
    assert "has no variants" in problem(tmp_path, "rank 8")


def test_what_was_measured_keeps_speaking_of_the_files_sizes(tmp_path: Path) -> None:
    small, large = jobs_of(tmp_path, evidence=SEEN, variants=[{"rows": 1000}, {"rows": 80_000}])
    assert small.job.evidence[0].facts["rows"] == large.job.evidence[0].facts["rows"] == 8000


def test_another_method_forgets_what_was_measured_and_says_so(tmp_path: Path) -> None:
    same, other = jobs_of(tmp_path, evidence=SEEN, variants=[{"rank": 8}, {"kind": "qlora"}])
    assert same.job.evidence
    assert other.job.evidence == ()
    assert other.job.today is not None
    assert any(item.key == "evidence" for item in other.job.assumed)


def test_sizes_give_a_fixed_part_and_a_slope_that_meet_every_size(tmp_path: Path) -> None:
    found = compare(jobs_of(tmp_path, data={"rows": [8000, 40_000, 80_000], "max_length": 512}))
    (line,) = found.scaling
    for part in found.parts:
        seconds = line.fixed_s + line.s_per_row * part.job.rows
        assert part.rows[0].row.duration_s.p50 == pytest.approx(seconds, rel=1.01 * line.off + 1e-9)
    assert line.off < 0.02
    assert line.fixed_s > 0


def test_variants_that_differ_in_more_than_rows_get_no_line(tmp_path: Path) -> None:
    assert not compare(jobs_of(tmp_path, variants=[{"rank": 8}, {"rank": 16}])).scaling


def test_what_a_choice_is_worth_is_the_bill_of_the_job_that_set_makes(tmp_path: Path) -> None:
    path = write(tmp_path, data={"rows": 8000, "max_length": 512})
    options = Options(dry_run=True, fidelity="formula", trials=1)
    answer = tune(load_job(path), options)
    assert answer.best is not None
    found = {e.key: e for e in answer.sensitivities if e.class_ == "quality"}
    assert set(found) == {"data.max_length", "method.base", "method.rank", "train.epochs"}
    for key, each in found.items():
        changed = tune(load_job(path, set_values={key: each.value}), options).best
        assert each.duration_s == pytest.approx(changed.duration_s.p50, rel=2e-3), key
        assert each.duration_s is not None
        assert each.saved_s == pytest.approx(answer.best.duration_s.p50 - each.duration_s)
    assert answer.job.max_length == 512
    assert answer.job.method.base == "16bit"


def test_length_halves_the_time_where_rows_are_padded_and_an_nf4_base_saves_memory_only() -> None:
    job = load_job(ROOT / "jobs" / "rtx5090_llama2_7b.yaml")
    answer = tune(job, Options(dry_run=True, fidelity="formula", trials=1))
    found = {each.key: each for each in answer.sensitivities}
    half_s, extra_s = found["data.max_length"].duration_s, found["method.base"].saved_s
    assert half_s is not None
    assert extra_s is not None
    assert 0.4 < half_s / answer.best.duration_s.p50 < 0.6
    assert extra_s < 0.02 * answer.best.duration_s.p50
    assert found["method.base"].memory_bytes < answer.best.memory_bytes.total
    assert "of memory, not time" in found["method.base"].note
