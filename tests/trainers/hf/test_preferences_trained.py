"""Preferences and rewards: what is written for TRL's trainers trains for real, or says why not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from exportcases import FULL, HOST, LORA, config, evaluation, job, offer, with_base
from forked import ran

from autotune.app.runs.export import export, write_export
from autotune.domain.objective import PAIRED
from autotune.domain.outcome import DiskUse
from autotune.evidence.log.read import read_log
from autotune.trainers.hf.preferences import TRAINERS

if TYPE_CHECKING:
    from forked import Forking

    from autotune.domain.objective import Objective
    from autotune.trainers.contract import Export

OBJECTIVES = sorted(PAIRED)

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


def run(model: Path, where: Path, data: Path, **more: str) -> Any:
    return subprocess.run(
        ["bash", str(where / "run.sh")],
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
SCRATCH, READING, REFUSED = "scratch", "reading", "refused"


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


def wrong_rows(top: Path) -> Path:
    """Exports and rows that they cannot take, and a script that reads these with each of them."""
    for place, (objective, rows, _) in enumerate(WRONG):
        what = job(with_base(LORA, "32bit"), objective=objective)
        write_export(export("trl", what, SMALL, config(precision="fp32")), top / str(place))
        written(top / str(place), rows)
    (top / "environment.json").write_text("{}")
    folders = [str(top / str(place)) for place in range(len(WRONG))]
    (top / "read.py").write_text(f"FOLDERS = {folders}\n{READS}")
    return top / "read.py"


@pytest.fixture(scope="module")
def forked(
    model_and_data: Path, tmp_path_factory: pytest.TempPathFactory, forks: Forking
) -> dict[str, Path]:
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
    scripts = [where / "train.py" for where in made.values()]
    made[READING] = top / READING
    scripts.append(wrong_rows(made[READING]))
    made[REFUSED] = made[READING] / "0"
    own = environment(model_and_data, made[REFUSED], made[REFUSED] / "rows.jsonl")
    said = {**own, "MODEL": "no/such-model", "USE_CPU": "1"}
    (made[REFUSED] / "environment.json").write_text(json.dumps(said))
    scripts.append(made[REFUSED] / "train.py")
    forks.run(scripts)
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
def test_run_sh_trains_a_tiny_model_by_the_plan(
    model_and_data: Path, tmp_path: Path, forks: Forking
) -> None:
    objective, kind, rows = STARTED
    write_export(planned(objective, kind), tmp_path)
    done = run(model_and_data, tmp_path, written(tmp_path, ROWS[rows]), PATH=forks.path)
    assert done.returncode == 0, done.stderr[-3000:]
    trained(tmp_path, kind, objective)


@pytest.mark.slow
@pytest.mark.parametrize(("objective", "kind"), [one[:2] for one in FORKED])
def test_every_other_objective_trains_by_its_plan(
    objective: Objective, kind: str, forked: dict[str, Path]
) -> None:
    where = forked[objective]
    ran(where)
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
    ran(where)
    assert "training begins from random ones" in (where / "stderr").read_text()
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
READS = """import runpy
for where in FOLDERS:
    read = runpy.run_path(f"{where}/train.py", run_name="read")["read_rows"]
    try:
        print(len(read(f"{where}/rows.jsonl")), "rows are read")
    except SystemExit as error:
        print(error)
"""


@pytest.mark.slow
def test_other_rows_are_refused_before_the_model_is_loaded(forked: dict[str, Path]) -> None:
    told = (forked[READING] / "stdout").read_text().splitlines()
    assert len(told) == len(WRONG), (forked[READING] / "stderr").read_text()
    assert [said for line, (*_, said) in zip(told, WRONG, strict=True) if said not in line] == []
    assert (forked[REFUSED] / "code").read_text() == "1"
    said = (forked[REFUSED] / "stderr").read_text()
    assert WRONG[0][2] in said
    assert "Traceback" not in said


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
