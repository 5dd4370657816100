"""`stated:` of a job file is read strictly, kept as typed, and changes no answer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from autotune.app.job.load import load_job, resolve_spec
from autotune.domain.errors import InputError
from autotune.domain.typed.values import parse_step_time
from autotune.domain.units import parse_figure, parse_seconds, parse_span

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from autotune.domain.job import Job

BASE: dict[str, Any] = {
    "model": "meta-llama/Llama-3.1-8B", "method": "lora", "data": {"rows": 1000, "max_length": 512},
    "hardware": ["h100-sxm", "l40s"],
}  # fmt: skip


def read(folder: Path, stated: object, **options: Any) -> Job:
    path = folder / "job.json"
    path.write_text(json.dumps({**BASE, "stated": stated}))
    return load_job(path, **options)


@pytest.mark.parametrize(
    ("text", "parse", "ends"),
    [
        ("38 h", parse_seconds, (136_800, 136_800)),
        ("40-50 min", parse_seconds, (2400, 3000)),
        ("1 h to 90 min", parse_seconds, (3600, 5400)),
        ("1h 30min - 2h", parse_seconds, (5400, 7200)),
        ("3.1\u201312.8 h", parse_seconds, (11_160, 46_080)),
        ("0.8-1.2 s/step", parse_step_time, (0.8, 1.2)),
        ("28K", parse_figure, (28_000, 28_000)),
        ("1,800-2,000", parse_figure, (1800, 2000)),
        ("1.2k to 5k", parse_figure, (1200, 5000)),
        ("1.8M", parse_figure, (1.8e6, 1.8e6)),
        ("2.5e6", parse_figure, (2.5e6, 2.5e6)),
        ("1e-3", parse_figure, (1e-3, 1e-3)),
    ],
)
def test_a_figure_or_a_range_is_read(
    text: str, parse: Callable[[str], float], ends: tuple[float, float]
) -> None:
    assert parse_span(text, parse) == pytest.approx(ends)


def test_one_entry_a_list_and_a_list_of_two_ends_mean_the_same(tmp_path: Path) -> None:
    one = read(tmp_path, {"duration": "1-2 h"}).stated
    assert one == read(tmp_path, [{"duration": "1-2 h"}]).stated
    assert one == read(tmp_path, [{"duration": ["1 h", "2 h"]}]).stated
    assert read(tmp_path, None).stated == ()


def test_a_statement_survives_the_record_of_its_run(tmp_path: Path) -> None:
    stated = [
        {"hardware": "a10", "runs": [{"rank": 8, "duration": "1 h"}], "duration": "2-3 h"},
        {"savings": {"compile": "1-2 h", "disk": "3 h"}, "saved": "4 h"},
        {"memory": {"weights": "4.5 GB"}, "learning_rate":
            {"before": 1e-4, "after": 2e-4, "batch_before": 8}, "steps": "28K"},
    ]  # fmt: skip
    job = read(tmp_path, stated)
    assert resolve_spec(json.loads(job.spec), tmp_path).stated == job.stated
    assert json.loads(job.spec)["stated"][2]["steps"] == "28K"


def test_a_statement_changes_nothing_but_what_is_stated(tmp_path: Path) -> None:
    plain, told = read(tmp_path, []), read(tmp_path, [{"duration": "1 h", "steps": 5}])
    for name in ("steps", "offers", "today", "evidence", "assumed", "limits", "lock"):
        assert getattr(plain, name) == getattr(told, name)


def test_a_statement_keeps_speaking_of_the_machine_of_the_file(tmp_path: Path) -> None:
    (told,) = read(tmp_path, [{"duration": "1 h"}], gpus=["a100-40gb"]).stated
    assert (told.about.gpu, told.about.count) == ("h100-sxm", 1)


@pytest.mark.parametrize(
    ("stated", "says"),
    [
        ("1 h", "must be a list"),
        ([{"durations": "1 h"}], "did you mean duration"),
        ([{"duration": 3}], "is not a duration"),
        ([{"duration": "2-1 h"}], "lower end first"),
        ([{"duration": ["1 h", "2 h", "3 h"]}], "a figure or a range of two"),
        ([{"duration": True}], "a figure or a range of two"),
        ([{"steps": "many"}], "is not a figure"),
        ([{"steps": 0}], "above zero"),
        ([{"steps": -5}], "is not a figure"),
        ([{"steps": "1e400"}], "is not a finite number"),
        ([{"note": "hello"}], "an entry states nothing"),
        ([{"saved": "1 h"}], "none are stated"),
        ([{"warmup_rows": 10}], "none are stated"),
        ([{"memory": {}}], "at least one of weights"),
        ([{"memory": {"weights": "4.5"}}], "is not a size"),
        ([{"savings": {}}], "1 to 50 are taken"),
        ([{"hardware": "h101", "duration": "1 h"}], "stated[0].hardware: unknown device"),
        ([{"hardware": "h100:0", "duration": "1 h"}], "with N a count from 1 on"),
        ([{"learning_rate": {"before": 1e-4, "after": 2e-4}}], "batch_before: is missing"),
        ([{"config": {"rank": 8}}], "changes what is trained"),
        ([{"kind": "full", "duration": "1 h"}], "'lora' or 'qlora'"),
        ([{"runs": [{"rank": 8}]}], "duration: is missing"),
        ([{"duration": "1 h"}] * 201, "200"),
    ],
)
def test_a_mistake_says_what_is_wrong(tmp_path: Path, stated: object, says: str) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, stated)
    assert says in f"{caught.value.message} {caught.value.hint}"
