"""Preferences and rewards: the files that are written for TRL's trainers, and read back."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from commandline import typed
from exportcases import FULL, LORA, SOFTWARE, config, job, offer

from autotune.app.runs.export import check_target, export
from autotune.domain.errors import InputError
from autotune.domain.job import BYTES
from autotune.domain.objective import PAIRED
from autotune.trainers.hf.preferences import TRAINERS
from autotune.trainers.registry import FORMATS, detect
from autotune.trainers.registry import TRAINERS as READERS
from autotune.trainers.scope import aim_of, settled

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from autotune.domain.job import Job
    from autotune.domain.objective import Objective
    from autotune.trainers.contract import Export

OBJECTIVES = sorted(PAIRED)
OLDEST, NEWEST = "trl@1.0.0", "trl@1.16.0"


def arguments(made: Export, objective: Objective) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(made.files[TRAINERS[objective].file])
    return loaded


def test_every_objective_that_is_priced_has_a_trainer_and_no_other_has() -> None:
    assert set(TRAINERS) == set(PAIRED)
    assert [name for name, own in FORMATS.items() if own.objectives >= set(PAIRED)] == ["trl"]


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("kind", ["lora", "full"])
def test_what_is_written_is_read_back_as_the_same_run(objective: Objective, kind: str) -> None:
    plan = config(activation_checkpointing="full", attention="sdpa")
    method = LORA if kind == "lora" else FULL
    made = export(NEWEST, job(method, objective=objective), offer(), plan)
    file, values = TRAINERS[objective].file, arguments(made, objective)
    assert set(made.files) == {file, "train.py", "accelerate.yaml", "run.sh"}
    found = detect(values, file)
    assert found is not None
    assert settled(aim_of(found.name, values), file, "", values).objective == objective
    read = READERS["trl"].read(values, file)
    said = plan.as_dict()
    assert {name: said[name] for name in read.knobs} == read.knobs
    assert read.batch_on(1) == job().global_batch_size
    assert read.values["data"]["max_length"] == job().max_length


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_file_is_priced_as_the_line_that_it_was_written_for(
    objective: Objective, tmp_path: Path
) -> None:
    """Of one release: where none is stated, `estimate` asks whether the file fits under others."""
    shared = ("--model", "meta-llama/Llama-3.2-1B", "--method", "lora", "--rows", "5k",
              "--gpu", "a100-80gb", "--format", "json", "-q",
              "--set", "software.trl=1.16.0")  # fmt: skip
    line = ("--objective", objective, "--max-length", "1024", "--global-batch", "16")
    where = ("--trials", "1", "--run", str(tmp_path / "run"))
    done = typed("tune", *shared, *line, *where, home=tmp_path)
    assert done.returncode == 0, done.stderr
    file = str(tmp_path / "run" / TRAINERS[objective].file)
    again = typed("estimate", file, *shared, home=tmp_path)
    assert again.returncode == 0, again.stderr
    assert again.json["row"] == {key: done.json["best"][key] for key in again.json["row"]}


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_script_names_the_trainer_and_not_dpo_s(objective: Objective) -> None:
    trainer = TRAINERS[objective]
    named = replace(job(objective=objective), model=replace(job().model, name="of/DPO-tuned"))
    text = export(NEWEST, named, offer(), config()).files["train.py"]
    compile(text, "train.py", "exec")
    assert 'MODEL = "of/DPO-tuned"' in text
    assert f"from {trainer.module} import {trainer.name}Config, {trainer.name}Trainer\n" in text
    assert ("DPOTrainer" in text) == (objective == "dpo")
    assert ("SEQ_CLS" in text, "num_labels=1" in text) == ((objective == "reward",) * 2)


@pytest.mark.parametrize("kind", ["lora", "full"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_second_copy_is_there_where_it_was_priced(objective: Objective, kind: str) -> None:
    what = job(LORA if kind == "lora" else FULL, objective=objective)
    made = export(NEWEST, what, offer(), config())
    second = what.work.reference and kind == "full"
    assert f"REFERENCE = {second}  #" in made.files["train.py"]
    assert arguments(made, objective).get("precompute_ref_log_probs") in {None, False}


@pytest.mark.parametrize(
    ("objective", "target", "able"),
    [("dpo", OLDEST, True), ("reward", OLDEST, True), ("kto", "trl@1.6.0", False),
     ("kto", "trl@1.7.0", True), ("orpo", NEWEST, False)],
)  # fmt: skip
def test_rows_that_fill_the_length_are_padded_or_refused(
    objective: Objective, target: str, able: bool
) -> None:
    padded = job(objective=objective, padding="max_length")
    if able:
        check_target(target, padded)
        made = export(target, padded, offer(), config())
        assert arguments(made, objective)["pad_to_multiple_of"] == padded.max_length
    else:
        with pytest.raises(InputError, match="pads to the longest row") as refused:
            check_target(target, padded)
        assert "longest" in (refused.value.hint or "")


def _tokens(what: Job) -> Job:
    return replace(what, pretokenized=True)


def _bytes(what: Job) -> Job:
    return replace(what, spec=json.dumps({"data": {"tokenizer": BYTES}}))


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("changed", [_tokens, _bytes])
def test_rows_that_trl_cannot_take_are_refused_with_what_to_do(
    objective: Objective, changed: Callable[[Job], Job]
) -> None:
    with pytest.raises(InputError) as refused:
        check_target("trl", changed(job(objective=objective)))
    assert TRAINERS[objective].name in str(refused.value)
    assert refused.value.hint


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "trl"])
def test_another_trainer_s_file_is_refused_and_names_trl(name: str) -> None:
    for ask in (
        lambda: check_target(name, job(objective="dpo")),
        lambda: export(name, job(objective="dpo"), offer(), config()),
    ):
        with pytest.raises(InputError, match=f"a file of {name} is not written for dpo") as refused:
            ask()
        assert "--export trl" in (refused.value.hint or "")


def test_a_version_of_trl_that_was_not_read_is_refused() -> None:
    with pytest.raises(InputError, match=r"trl 0\.9\.6") as refused:
        check_target("trl@0.9.6", job(objective="dpo"))
    assert refused.value.hint == "known: 1.0 to 1.16"


def test_activations_go_to_the_host_by_what_the_versions_have() -> None:
    away = config(activation_checkpointing="full", offload="activations")
    old = replace(SOFTWARE, transformers=(5, 20, 0))
    for objective, target, able in (
        ("dpo", OLDEST, True), ("kto", "trl@1.7.0", False), ("kto", "trl@1.8.0", True),
        ("orpo", NEWEST, False),
    ):  # fmt: skip
        made = export(target, job(objective=objective, software=old), offer(), away)
        assert arguments(made, objective).get("activation_offloading", False) is able  # type: ignore[arg-type]
        assert any("does not offload activations" in note for note in made.notes) is not able
