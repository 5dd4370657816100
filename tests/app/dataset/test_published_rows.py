"""Data sets that are named and not at hand: published lengths, or the range that none implies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.app.dataset.lengths import from_published, longest_published
from autotune.app.job.load import jobs_of_line, load_job, load_jobs
from autotune.catalog.datasets import published, published_datasets
from autotune.domain.errors import InputError
from autotune.domain.typed.overrides import Overrides

if TYPE_CHECKING:
    from autotune.domain.job import Job

AXOLOTL = Path(__file__).parents[3] / "jobs" / "trainers" / "axolotl.yml"
LINE = {"model": "Qwen2.5-7B", "method.kind": "lora"}


def one_line(**stated: Any) -> Job:
    keys = {key.replace("__", "."): value for key, value in stated.items()}
    overrides = Overrides(gpus=("a100-80gb",), stated={**LINE, **keys})
    (found,) = jobs_of_line(overrides)
    return found.job


def told(job: Job, key: str) -> list[str]:
    return [f"{each.value} ({each.why})" for each in job.assumed if each.key == key]


def test_a_common_data_set_is_known_by_its_name(tmp_path: Path) -> None:
    job = one_line(data__dataset=str(tmp_path / "tatsu-lab" / "alpaca"))
    assert (job.rows, job.lengths.known, job.lengths.basis) == (52_002, True, "published")
    assert job.lengths.quantiles[128] == pytest.approx(128.0)
    assert 120 < job.lengths.mean < 150
    assert job.lengths.log_sd > 0
    assert job.dataset_path is None
    (note,) = told(job, "data.lengths")
    assert "tatsu-lab/alpaca: half under 128 tokens, 95 of 100 under 255" in note
    assert "Llama 2's tokenizer, 2023-03 (tloen/alpaca-lora lengths.ipynb" in note
    assert job.max_length >= 1305


def test_rows_that_are_longer_than_max_length_are_cut_and_told(tmp_path: Path) -> None:
    path = str(tmp_path / "tatsu-lab" / "alpaca")
    job = one_line(data__dataset=path, data__max_length=128)
    assert job.lengths.maximum == 128
    assert job.lengths.truncated_rows == pytest.approx(26_000, rel=0.02)
    assert any("rows cut to 128 tokens" in note for note in told(job, "data.lengths"))


def test_what_lies_here_is_counted_and_not_looked_up(tmp_path: Path) -> None:
    folder = tmp_path / "tatsu-lab" / "alpaca"
    folder.mkdir(parents=True)
    rows = [json.dumps({"text": "word " * 40}) for _ in range(10)]
    (folder / "train.jsonl").write_text("\n".join(rows))
    job = one_line(data__dataset=str(folder))
    assert job.rows == 10
    assert job.lengths.basis in {"estimated", "counted"}


def test_an_unknown_data_set_is_refused_with_those_that_are_known(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no file here") as caught:
        one_line(data__dataset=str(tmp_path / "nobody" / "nothing"))
    assert "rows are known of tatsu-lab/alpaca and others" in str(caught.value.hint)
    with pytest.raises(InputError, match=r"OpenHermes-0\.5 is no file here"):
        one_line(data__dataset=str(tmp_path / "nobody" / "OpenHermes-0.5"))


def test_rows_alone_may_be_published(tmp_path: Path) -> None:
    job = one_line(data__dataset=str(tmp_path / "knkarthick" / "dialogsum"))
    assert (job.rows, job.lengths.known, job.dataset_path) == (12_460, False, None)
    (note,) = told(job, "data.rows")
    assert note.startswith("12460 (train as published, 2022-06 (printed as loaded")
    stated = one_line(data__dataset=str(tmp_path / "knkarthick" / "dialogsum"),
                      data__rows=100)  # fmt: skip
    assert stated.rows == 100
    assert not told(stated, "data.rows")


def test_a_data_set_of_several_splits_is_refused_with_the_rows_of_each(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"train_prefs of 61,135 rows, train_sft") as caught:
        one_line(data__dataset=str(tmp_path / "HuggingFaceH4" / "ultrafeedback_binarized"))
    assert "--rows 61135" in str(caught.value.hint)


def test_a_short_name_of_a_data_set_is_asked_about(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"did you mean databricks/databricks-dolly-15k\?"):
        one_line(data__dataset=str(tmp_path / "dolly-15k"))


def test_a_trainers_file_that_names_a_common_data_set_needs_no_rows() -> None:
    job = load_job(AXOLOTL, gpus=["a100-80gb"])
    trained = 52_002 - 2_601  # val_set_size: 0.05
    assert (job.rows, job.lengths.basis, job.max_length) == (trained, "published", 2048)
    assert job.lengths.mean < 150
    assert job.today.checkpoint_every_steps == 6176, "once an epoch of 49,401 rows at 8"


def test_rows_stated_beside_the_file_keep_its_published_lengths() -> None:
    overrides = Overrides(gpus=("a100-80gb",), stated={"data.rows": 30_000})
    (found,) = load_jobs(AXOLOTL, overrides)
    assert (found.job.rows, found.job.lengths.basis) == (28_500, "published")


def test_stated_lengths_take_the_place_of_published_ones() -> None:
    changes = {"data.rows": "52002", "data.lengths.p50": "700", "data.lengths.p95": "1500"}
    job = load_job(AXOLOTL, gpus=["a100-80gb"], set_values=changes)
    assert (job.lengths.basis, job.lengths.quantiles[128]) == ("stated", 700.0)


@pytest.mark.parametrize(
    ("old", "new", "basis"),
    [
        ("tatsu-lab/alpaca", "openai/gsm8k", "published"),
        ("tatsu-lab/alpaca", "my-team/support", "unknown"),
    ],
)
def test_only_what_is_published_is_known_of_a_trainers_data_set(
    tmp_path: Path, old: str, new: str, basis: str
) -> None:
    file = tmp_path / "axolotl.yml"
    file.write_text(AXOLOTL.read_text().replace(old, new))
    overrides = Overrides(gpus=("a100-80gb",), stated={"data.rows": 1000})
    (found,) = load_jobs(file, overrides)
    assert found.job.lengths.basis == basis
    assert bool(told(found.job, "data.dataset")) == (basis == "unknown")


def test_llama_factorys_names_are_mixed_by_their_rows(tmp_path: Path) -> None:
    file = tmp_path / "sft.yaml"
    own = (AXOLOTL.parent / "llamafactory.yaml").read_text()
    file.write_text(own.replace("support_dialogues", "identity,alpaca_en_demo"))
    job = load_job(file, gpus=["l40s"])
    assert (job.rows, job.lengths.basis) == (1090, "published")
    assert 150 < job.lengths.mean < 180


@pytest.mark.parametrize("extra", [{"padding": "max_length"}, {"pretokenized": True}])
def test_batches_that_are_full_anyway_need_no_lengths(extra: dict[str, Any]) -> None:
    stated = {f"data.{name}": value for name, value in extra.items()}
    packed = {"packing": "on"} if "pretokenized" in extra else {}
    overrides = Overrides(
        gpus=("a100-80gb",), stated={**LINE, "data.rows": 1000, **stated},
        set_values=packed, allow=tuple(packed),
    )  # fmt: skip
    (found,) = jobs_of_line(overrides)
    assert (found.job.lengths.known, found.job.lengths.basis) == (True, "full")
    assert found.job.lengths.mean == found.job.max_length


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(range(len(published_datasets()))), min_size=1, max_size=4),
    st.integers(16, 20_000),
)
def test_published_lengths_rise_stay_within_and_average_to_their_mean(
    places: list[int], max_length: int
) -> None:
    found = tuple(published_datasets()[place] for place in places)
    lengths = from_published(found, max_length)
    quantiles = np.asarray(lengths.quantiles)
    assert (np.diff(quantiles) >= 0).all()
    assert quantiles[0] >= 1
    assert quantiles[-1] <= max_length
    assert lengths.maximum == min(max_length, longest_published(found))
    assert lengths.mean == pytest.approx(float((quantiles[:-1] + quantiles[1:]).mean() / 2))
    assert 0 <= lengths.log_sd <= max(each.log_sd for each in found) + 1e-9
    least = min(each.p50 for each in found)
    assert lengths.mean <= max(each.mean or 1.6 * each.p95 for each in found) * 1.05
    assert lengths.mean >= 0.5 * min(least, max_length)


def test_a_mean_that_was_published_is_kept() -> None:
    for each in published_datasets():
        if each.mean is not None:
            lengths = from_published((each,), 100_000)
            assert lengths.mean == pytest.approx(each.mean, rel=0.01)
    assert published("tatsu-lab/alpaca", 32_000)


def counted(tmp_path: Path, lengths: str) -> Job:
    """Ten rows of 10, 20 .. 100 bytes, which are their tokens."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(json.dumps({"text": "x" * n}) for n in range(10, 101, 10)))
    job = tmp_path / "job.yaml"
    job.write_text(
        "model: Qwen/Qwen2.5-0.5B\nmethod: {kind: lora}\nhardware: [a100-80gb]\n"
        f"data: {{dataset: rows.jsonl, tokenizer: bytes, lengths: {lengths}}}\n"
    )
    return load_job(job)


def test_stated_lengths_that_the_data_set_has_are_taken_as_counted(tmp_path: Path) -> None:
    job = counted(tmp_path, "{p50: 55, p95: 100, max: 100}")
    assert job.lengths.basis == "counted"
    assert job.lengths.maximum == 100


@pytest.mark.parametrize(
    ("lengths", "says"),
    [
        ("{p50: 55, p95: 80, max: 80}", "data.lengths.p95 is 80, but rows.jsonl has p95 100"),
        ("{p50: 20, p95: 100, max: 100}", "data.lengths.p50 is 20, but rows.jsonl has p50 55"),
        ("{p50: 90, p95: 100, max: 100}", "data.lengths.p50 is 90"),
        ("{p50: 55, p95: 97, max: 97, mean: 90}", "data.lengths.mean is 90"),
    ],
)
def test_lengths_that_contradict_the_data_set_are_refused_with_both(
    tmp_path: Path, lengths: str, says: str
) -> None:
    with pytest.raises(InputError) as caught:
        counted(tmp_path, lengths)
    assert says in str(caught.value)
    assert "without data.lengths the rows' own are taken" in str(caught.value.hint)


def test_a_stated_maximum_below_the_longest_row_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        counted(tmp_path, "{p50: 55, p95: 95, max: 95}")
    assert "data.lengths.max is 95, but rows.jsonl has max 100 tokens" in str(caught.value)
    assert "or state data.max_length 95, and longer rows are cut" in str(caught.value.hint)
