"""Preferences and rewards: the files that are written for TRL's trainers, read back, and run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from commandline import typed
from exportcases import FULL, HOST, LORA, SOFTWARE, config, evaluation, job, offer, with_base

from autotune.app.runs.export import check_target, export, write_export
from autotune.domain.errors import InputError
from autotune.domain.job import BYTES
from autotune.domain.objective import PAIRED
from autotune.domain.outcome import DiskUse
from autotune.evidence.log.read import read_log
from autotune.trainers.hf.preferences import TRAINERS
from autotune.trainers.registry import FORMATS, detect
from autotune.trainers.registry import TRAINERS as READERS
from autotune.trainers.scope import aim_of, settled

if TYPE_CHECKING:
    from collections.abc import Callable

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
    shared = ("--model", "meta-llama/Llama-3.2-1B", "--method", "lora", "--rows", "5k",
              "--gpu", "a100-80gb", "--format", "json", "-q")  # fmt: skip
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


ROWS: dict[str, list[dict[str, Any]]] = {
    "pairs": [
        {"prompt": "one two " + "red " * (i % 4), "chosen": " blue green" * (1 + i % 3),
         "rejected": " three" * (1 + i % 5), "source": "made up"}
        for i in range(64)
    ],
    "chats": [
        {"prompt": "one two", "score": i,
         **{name: [{"role": "user", "content": "one two"}, {"role": "assistant", "content": said}]
            for name, said in (("chosen", "red"), ("rejected", "blue " * (1 + i % 3)))}}
        for i in range(64)
    ],
    "marked": [
        {"prompt": "one two", "completion": " red blue" * (1 + i % 3), "label": bool(i % 2)}
        for i in range(64)
    ],
}  # fmt: skip


def written(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def environment(model: Path, where: Path, data: Path) -> dict[str, str]:
    """What a user would set for a short run without the hub."""
    return {
        "MODEL": str(model / "model"), "DATA": str(data), "EVAL_DATA": str(data), "MAX_STEPS": "4",
        "LOCAL_DIR": str(where / "local disk"), "HF_HUB_OFFLINE": "1", "HF_HOME": str(where / "hf"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }  # fmt: skip


def run(model: Path, where: Path, data: Path, *command: str, **more: str) -> Any:
    return subprocess.run(
        command or ["bash", str(where / "run.sh")],
        env={**os.environ, **environment(model, where, data), **more},
        capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip


SMALL = replace(offer(cpu=True), host=replace(HOST, cores=1))
PLAN = config(precision="fp32", checkpoint_every_steps=4, activation_checkpointing="full")
# Started by run.sh; the others' run.sh is the same text, and their scripts start in `forked`.
STARTED: tuple[Objective, str, str] = ("dpo", "lora", "chats")
FORKED: tuple[tuple[Objective, str, str], ...] = (
    ("kto", "lora", "marked"), ("orpo", "lora", "pairs"), ("reward", "full", "pairs"),
)  # fmt: skip
SCRATCH = "scratch"

# What all the scripts import takes far longer than their four steps: it is imported once, and each
# script is the main program of a process that is forked from there.
FORKS = """import json, os, runpy, sys
import datasets, peft, torch, transformers, trl
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer
for script in sys.argv[1:]:
    child = os.fork()
    if not child:
        folder = os.path.dirname(script)
        for number, name in (1, "stdout"), (2, "stderr"):
            os.dup2(os.open(os.path.join(folder, name), os.O_CREAT | os.O_WRONLY), number)
        with open(os.path.join(folder, "environment.json")) as file:
            os.environ.update(json.load(file))
        sys.argv, sys.path[0] = [script], folder
        runpy.run_path(script, run_name="__main__")
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def planned(objective: Objective, kind: str) -> Export:
    method = with_base(LORA if kind == "lora" else FULL, "32bit")
    what = job(method, objective=objective, evaluation=evaluation(2))
    return export("trl", what, SMALL, PLAN, DiskUse(2, 1e5))


def without_weights(model: Path, where: Path) -> None:
    """A script of DPO that begins from random weights, and a model that has none."""
    (where / "model").mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (where / "model" / name).write_bytes((model / "model" / name).read_bytes())
    what = job(with_base(FULL, "32bit"), objective="dpo")
    files = export("trl", what, SMALL, config(precision="fp32")).files
    script = files["train.py"].replace("FROM_SCRATCH = False", "FROM_SCRATCH = True")
    for name, text in {**files, "train.py": script}.items():
        (where / name).write_text(text)


@pytest.fixture(scope="module")
def forked(model_and_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders in which scripts ran, by objective; `stdout`, `stderr` and `code` lie in each."""
    top = tmp_path_factory.mktemp("forked")
    made = {name: top / name for name in (*(one[0] for one in FORKED), SCRATCH)}

    def told(where: Path, model: Path, rows: str, **more: str) -> None:
        own = environment(model, where, written(where, ROWS[rows]))
        said = {**own, "OUTPUT_DIR": str(where / "output"), **more}
        (where / "environment.json").write_text(json.dumps(said))

    for objective, kind, rows in FORKED:
        write_export(planned(objective, kind), made[objective])
        told(made[objective], model_and_data, rows)
    without_weights(model_and_data, made[SCRATCH])
    told(made[SCRATCH], made[SCRATCH], "pairs", MAX_STEPS="1")
    scripts = [str(where / "train.py") for where in made.values()]
    done = run(top, top, top, sys.executable, "-c", FORKS, *scripts)
    codes = done.stdout.split()
    assert len(codes) == len(made), done.stderr[-3000:]
    for where, code in zip(made.values(), codes, strict=True):
        (where / "code").write_text(code)
    return made


def trained(where: Path, kind: str, objective: Objective) -> None:
    """What a run of four steps leaves."""
    output = where / "output"
    state = json.loads((output / "checkpoint-4/trainer_state.json").read_text())
    assert state["global_step"] == state["max_steps"] == 4
    assert state["train_batch_size"] == PLAN.micro_batch_size
    assert state["epoch"] == pytest.approx(4 * 8 / 64)
    assert any("eval_loss" in entry for entry in state["log_history"])
    log = read_log(where)
    assert (log.form, log.steps_done, log.micro_batch_size) == ("record", 4, 4)
    assert log.gradient_accumulation_steps == PLAN.gradient_accumulation_steps
    if kind == "lora":
        saved = json.loads((output / "final/adapter_config.json").read_text())
        assert (saved["r"], saved["lora_alpha"]) == (LORA.rank, LORA.alpha)
    else:
        shape = json.loads((output / "final/config.json").read_text())
        assert (shape["architectures"] == ["LlamaForCausalLM"]) == (objective != "reward")


@pytest.mark.slow
def test_run_sh_trains_a_tiny_model_by_the_plan(model_and_data: Path, tmp_path: Path) -> None:
    objective, kind, rows = STARTED
    write_export(planned(objective, kind), tmp_path)
    done = run(model_and_data, tmp_path, written(tmp_path, ROWS[rows]))
    assert done.returncode == 0, done.stderr[-3000:]
    trained(tmp_path, kind, objective)


@pytest.mark.slow
@pytest.mark.parametrize(("objective", "kind"), [one[:2] for one in FORKED])
def test_every_other_objective_trains_by_its_plan(
    objective: Objective, kind: str, forked: dict[str, Path]
) -> None:
    where = forked[objective]
    assert (where / "code").read_text() == "0", (where / "stderr").read_text()[-3000:]
    trained(where, kind, objective)


def test_what_starts_a_run_is_the_same_for_every_objective() -> None:
    """Which is why one of them stands for all where run.sh is run."""
    made = {objective: planned(objective, "lora").files for objective in OBJECTIVES}
    assert len({own["accelerate.yaml"] for own in made.values()}) == 1
    assert len({own["run.sh"].replace(TRAINERS[o].file, "") for o, own in made.items()}) == 1


@pytest.mark.slow
def test_a_model_without_weights_is_scored_by_a_copy_of_the_same_ones(
    forked: dict[str, Path],
) -> None:
    where = forked[SCRATCH]
    told = (where / "stderr").read_text()
    assert (where / "code").read_text() == "0", told[-3000:]
    assert "training begins from random ones" in told
    # ln 2: the policy is still its reference
    assert "'train_loss': '0.6931'" in (where / "stdout").read_text()


WRONG: list[tuple[Objective, list[dict[str, Any]], str]] = [
    ("dpo", [{"text": "one"}], "a row needs chosen, rejected, and lacks chosen, rejected; it has"),
    ("kto", ROWS["pairs"], "unpair_preference_dataset makes two rows of each pair"),
    ("kto", [{"prompt": "a", "completion": "b", "label": "yes"}], "label is to be true"),
    ("dpo", [ROWS["pairs"][0], {"prompt": "a", "chosen": None, "rejected": "c"}],
     "chosen is empty in 1 of 2 rows"),
    ("reward", [{"chosen": [{"from": "gpt", "value": "a"}], "rejected": "b"}],
     "chosen is to be text, or messages of role and content"),
]  # fmt: skip
READS = """import runpy, sys
for where in sys.argv[1:]:
    read = runpy.run_path(f"{where}/train.py", run_name="read")["read_rows"]
    try:
        print(len(read(f"{where}/rows.jsonl")), "rows are read")
    except SystemExit as error:
        print(error)
"""


@pytest.mark.slow
def test_other_rows_are_refused_before_the_model_is_loaded(
    model_and_data: Path, tmp_path: Path
) -> None:
    for place, (objective, rows, _) in enumerate(WRONG):
        what = job(with_base(LORA, "32bit"), objective=objective)
        made = export("trl", what, SMALL, config(precision="fp32"))
        write_export(made, tmp_path / str(place))
        written(tmp_path / str(place), rows)
    folders = [str(tmp_path / str(place)) for place in range(len(WRONG))]
    done = run(model_and_data, tmp_path, tmp_path, sys.executable, "-c", READS, *folders)
    told = done.stdout.splitlines()
    assert len(told) == len(WRONG), done.stderr
    assert [said for line, (*_, said) in zip(told, WRONG, strict=True) if said not in line] == []
    start = run(
        model_and_data, tmp_path, tmp_path / "0/rows.jsonl", "bash", f"{tmp_path}/0/run.sh",
        MODEL="no/such-model", USE_CPU="1",
    )  # fmt: skip
    assert start.returncode == 1
    assert WRONG[0][2] in start.stderr
    assert "Traceback" not in start.stderr


@pytest.mark.slow
def test_an_older_trl_is_told_before_it_is_imported_from(
    model_and_data: Path, tmp_path: Path
) -> None:
    what = job(with_base(LORA, "32bit"), objective="orpo")
    write_export(export("trl", what, SMALL, config(precision="fp32")), tmp_path)
    (tmp_path / "old/trl").mkdir(parents=True)
    (tmp_path / "old/trl/__init__.py").write_text('__version__ = "0.12.2"\n')
    rows = written(tmp_path, ROWS["pairs"])
    done = run(model_and_data, tmp_path, rows, PYTHONPATH=str(tmp_path / "old"), USE_CPU="1")
    assert done.returncode == 1
    assert "TRL 0.12.2 is older than 1.0" in done.stderr
    assert "Traceback" not in done.stderr
