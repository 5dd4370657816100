"""method.variant: where it stands, what it is checked for, and that no search changes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.app.estimate import estimate
from autotune.app.job.load import load_job, resolve_spec
from autotune.app.tune.tune import tune
from autotune.domain.errors import InputError
from autotune.report.payload import describe_method

SPEC = {
    "name": "variant", "model": "Qwen/Qwen2.5-0.5B", "hardware": ["l40s"],
    "method": {"kind": "lora", "rank": 16, "alpha": 32, "dropout": 0, "targets": "all-linear"},
    "data": {"rows": 2000, "max_length": 512, "lengths": {"p50": 200, "p95": 400, "max": 512}},
    "train": {"epochs": 1, "global_batch_size": 16},
}  # fmt: skip


def spec(method: dict[str, Any] | None = None, **other: object) -> dict[str, Any]:
    return {**SPEC, **other, "method": {**SPEC["method"], **(method or {})}}  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ({"variant": "dora"}, "DoRA rank 16"),
        ({"variant": "dora", "base": "nf4"}, "QDoRA rank 16"),
        ({"variant": "rslora"}, "rsLoRA rank 16"),
        ({"variant": "none"}, "LoRA rank 16"),
    ],
)
def test_the_method_is_named_by_its_variant(method: dict[str, Any], words: str) -> None:
    assert describe_method(resolve_spec(spec(method), Path()).method).startswith(words)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (spec({"variant": "dorra"}), ["dorra", "dora"]),
        ({**SPEC, "method": {"kind": "full", "variant": "dora"}}, ["variant", "kind is full"]),
        (spec({"variant": "dora"}, software={"peft": "0.8.2"}), ["0.8.2", "0.9"]),
        (spec({"variant": "dora", "base": "nf4"}, software={"peft": "0.9.0"}), ["0.9.0", "0.10"]),
        (spec({"variant": "rslora"}, software={"peft": "0.7.1"}), ["0.7.1", "0.8"]),
        (
            spec({"variant": "dora"}, model="mistralai/Mixtral-8x7B-v0.1"),
            ["one parameter of all experts"],
        ),
    ],
)
def test_a_variant_that_cannot_be_trained_is_refused_with_what_holds(
    changed: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(InputError) as caught:
        resolve_spec(changed, Path())
    text = f"{caught.value.message} {caught.value.hint}"
    assert all(word in text for word in words), text


def test_dora_on_attention_alone_is_trained_beside_fused_experts() -> None:
    method = {"variant": "dora", "targets": "attention"}
    job = resolve_spec(spec(method, model="mistralai/Mixtral-8x7B-v0.1"), Path())
    assert job.method.is_dora


def test_set_states_the_variant_and_full_takes_it_back(tmp_path: Path) -> None:
    import yaml

    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(SPEC), encoding="utf-8")
    assert load_job(path, set_values={"method.variant": "dora"}).method.is_dora
    path.write_text(yaml.safe_dump(spec({"variant": "dora"})), encoding="utf-8")
    full = load_job(path, set_values={"method.kind": "full"}).method
    assert (full.kind, full.variant) == ("full", "none")


def test_the_search_neither_takes_nor_offers_another_variant() -> None:
    job = resolve_spec(spec({"variant": "dora"}), Path())
    found = tune(job)
    assert found.job.method.variant == "dora"
    plain = tune(resolve_spec(SPEC, Path()))
    texts = [str(item) for item in (*plain.sensitivities, *plain.warnings)]
    assert not any("dora" in text.casefold() or "rslora" in text.casefold() for text in texts)


def test_dora_never_runs_under_zero_3() -> None:
    job = resolve_spec(spec({"variant": "dora"}, hardware=[{"gpu": "l40s", "count": 4}]), Path())
    found = tune(job)
    assert found.best.config.sharding != "zero3"
    locked = spec(
        {"variant": "dora"}, hardware=[{"gpu": "l40s", "count": 4}], lock={"sharding": "zero3"}
    )
    with pytest.raises(InputError, match="ZeRO-3"):
        estimate(resolve_spec(locked, Path()))


def test_dropout_under_dora_is_said_to_cost_copies_of_the_weights() -> None:
    row = estimate(resolve_spec(spec({"variant": "dora", "dropout": 0.05}), Path()))
    assert any("16-bit copy" in text and "dropout 0" in text for text in row.warnings)
    without = estimate(resolve_spec(spec({"variant": "dora"}), Path()))
    assert not any("16-bit copy" in text for text in without.warnings)
    assert any("1.2 to 2 times" in text for text in without.warnings)
    scaled = estimate(resolve_spec(spec({"variant": "rslora"}), Path()))
    assert any("costs what LoRA costs" in text for text in scaled.warnings)
    assert not any("LoRA" in text for text in estimate(resolve_spec(SPEC, Path())).warnings)
