"""The user's own file with the pick in it: in place, in the run folder, and what starts it."""

from __future__ import annotations

import stat
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rights import of_an_ordinary_user

from autotune.app.job.load import jobs_of_command, load_jobs
from autotune.app.job.trainer_file import parsed_again
from autotune.app.runs import user_file as own_file
from autotune.app.runs.export import export_run
from autotune.app.runs.user_file import (
    check_in_place,
    own_changes,
    put_in_place,
    replace_in_place,
    same_export,
)
from autotune.app.tune.tune import Options, tune
from autotune.domain.errors import InputError
from autotune.domain.typed.overrides import Overrides

if TYPE_CHECKING:
    from autotune.domain.answer.recommendation import Recommendation
    from autotune.domain.config import Config
    from autotune.domain.job import Job
    from autotune.trainers.own_file.patch import Patched

AXOLOTL = (Path(__file__).parents[2] / "trainers" / "own" / "axolotl.yml").read_text()
COMMAND = (
    "python train.py --model_name_or_path Qwen/Qwen2.5-7B --use_peft --lora_r 16 "
    "--per_device_train_batch_size 4 --gradient-accumulation-steps=2 --bf16"
)
OWN = Path(__file__).parents[2] / "trainers" / "own"
FAST = Options(fidelity="formula", trials=1)


def loaded(path: Path) -> Job:
    return load_jobs(path, Overrides(gpus=("h100",), stated={"data.rows": 1000}))[0].job


def changed(job: Job, **knobs: Any) -> Config:
    return job.today.with_knobs(**{"compile": "default", **knobs})


def patched(job: Job) -> Patched:
    return own_file.patched("same", job, job.offers[0], changed(job))


def answered(job: Job, folder: Path) -> Recommendation:
    from dataclasses import replace

    return tune(job, replace(FAST, run_dir=folder))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "axolotl.yml"
    found.write_text(AXOLOTL)
    return found


def test_a_second_backup_leaves_the_first_alone(path: Path) -> None:
    first = replace_in_place(patched(loaded(path)), str(path), AXOLOTL)
    path.write_text(AXOLOTL + "# mine\n")
    second = replace_in_place(patched(loaded(path)), str(path), AXOLOTL + "# mine\n")
    assert (first.name, second.name) == ("axolotl.yml.bak", "axolotl.yml.bak2")
    assert first.read_text() == AXOLOTL
    assert second.read_text() == AXOLOTL + "# mine\n"


@pytest.mark.parametrize("step", [1, 2])
def test_a_crash_at_any_write_leaves_the_file_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    found, done = patched(loaded(path)), 0
    real = Path.replace

    def failing(self: Path, target: Path) -> Path:
        nonlocal done
        done += 1
        if done == step:
            raise KeyboardInterrupt
        return real(self, target)

    monkeypatch.setattr(Path, "replace", failing)
    with pytest.raises(KeyboardInterrupt):
        replace_in_place(found, str(path), AXOLOTL)
    assert path.read_text() == AXOLOTL
    left = {item.name for item in path.parent.iterdir()} - {path.name}
    assert left == (set() if step == 1 else {"axolotl.yml.bak"})  # whole, or not there
    assert all((path.parent / name).read_text() == AXOLOTL for name in left)


def test_a_link_stays_a_link_and_its_target_is_changed(tmp_path: Path) -> None:
    home = tmp_path / "elsewhere"
    home.mkdir()
    (home / "real.yml").write_text(AXOLOTL)
    link = tmp_path / "axolotl.yml"
    link.symlink_to(home / "real.yml")
    backup = replace_in_place(patched(loaded(link)), str(link), AXOLOTL)
    assert link.is_symlink()
    assert "torch_compile: true" in (home / "real.yml").read_text()
    assert (backup.parent, backup.read_text()) == (home.resolve(), AXOLOTL)


def test_a_folder_that_cannot_be_written_is_the_users_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = patched(loaded(path))

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "touch", refused)  # root may write anywhere
    with pytest.raises(InputError, match="cannot be changed in place: Permission denied") as caught:
        replace_in_place(found, str(path), AXOLOTL)
    assert "run folder" in str(caught.value.hint)
    assert [item.name for item in path.parent.iterdir()] == ["axolotl.yml"]


def test_a_read_only_folder_is_left_as_it_is(path: Path) -> None:
    found = patched(loaded(path))
    path.parent.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        with of_an_ordinary_user(), pytest.raises(InputError, match="cannot be changed in place"):
            replace_in_place(found, str(path), AXOLOTL)
    finally:
        path.parent.chmod(stat.S_IRWXU)
    assert path.read_text() == AXOLOTL


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_line_ends_and_byte_order_mark_stay(path: Path, mark: bytes, ending: str) -> None:
    before = mark + AXOLOTL.replace("\n", ending).encode()
    path.write_bytes(before)
    job = loaded(path)
    replace_in_place(patched(job), str(path), job.origin.text)
    after = path.read_bytes()
    assert after.startswith(mark)
    assert after.count(b"\xef\xbb\xbf") == before.count(b"\xef\xbb\xbf")
    ended = after.count(b"\r\n")
    assert ended == (after.count(b"\n") if ending == "\r\n" else 0)
    unchanged = set(before.splitlines()) & set(after.splitlines())
    assert len(unchanged) >= len(before.splitlines()) - 4


def test_the_run_folder_gets_the_byte_order_mark_too(path: Path) -> None:
    path.write_bytes(b"\xef\xbb\xbf" + AXOLOTL.encode())
    job = loaded(path)
    files = same_export("same", job, job.offers[0], changed(job)).files
    assert files["axolotl.yml"].startswith("\ufeff")
    assert "\ufeff" not in files["axolotl.yml.diff"]


def test_a_trainers_own_file_gets_no_warning_of_another_trainer(path: Path, tmp_path: Path) -> None:
    answer = answered(loaded(path), tmp_path / "run")
    told = " ".join(answer.warnings)
    assert not any(word in told for word in ("SFTTrainer", "TRL", "set DATA", "learning_rate"))
    assert set(answer.files) == {"own/axolotl.yml", "own/axolotl.yml.diff", "run.sh"}
    assert "axolotl train" in (tmp_path / "run" / "run.sh").read_text()
    assert answer.other_formats == ("hf", "trl", "llamafactory", "litgpt", "unsloth")
    assert path.read_text() == AXOLOTL


def test_a_file_that_says_it_already_is_left_and_that_is_said(path: Path, tmp_path: Path) -> None:
    first = answered(loaded(path), tmp_path / "one")
    assert put_in_place(first, ()).startswith(f"{path} was changed; the file as it was is")
    text = path.read_text()
    again = answered(loaded(path), tmp_path / "two")
    assert own_changes(again, ()) == (
        "axolotl.yml already says what is recommended: nothing changes in it.\n"
    )
    assert "already says" in put_in_place(again, ())
    assert path.read_text() == text
    assert len(list(tmp_path.glob("*.bak*"))) == 1


def test_a_typed_command_comes_back_as_a_command(tmp_path: Path) -> None:
    overrides = Overrides(gpus=("h100",), stated={"data.rows": 1000})
    job = jobs_of_command(COMMAND, overrides)[0].job
    told = own_changes(answered(job, tmp_path / "run"), ())
    assert told.startswith("The command with the pick in it:\n\npython train.py --model_name")
    assert told.strip().splitlines()[-1] in (tmp_path / "run" / "run.sh").read_text()


def test_what_set_changed_of_the_job_is_said_where_the_file_still_says_another(path: Path) -> None:
    def told(**given: str) -> list[str]:
        asked = {key.replace("__", "."): value for key, value in given.items()}
        overrides = Overrides(gpus=("h100",), stated={"data.rows": 1000}, set_values=asked)
        job = load_jobs(path, overrides)[0].job
        made = same_export("same", job, job.offers[0], changed(job))
        return [str(note) for note in made.notes if note.startswith("write ")]

    assert told() == []
    (text,) = told(method__kind="full", train__epochs="1")
    assert text.startswith("write method.kind into axolotl.yml yourself: full;")
    assert text.endswith("or --export axolotl writes a new file")
    assert told(precision="bf16") == []


WITH_MODEL = {"torchtune.yaml": {"model": "Llama-3.1-8B"}}  # which names none of the hub
NUMBERED = sorted(each.name for each in OWN.iterdir() if each.suffix != ".json" and each.is_file())


@pytest.mark.parametrize("name", NUMBERED)
def test_a_number_that_set_changed_is_written_where_one_key_says_it(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / name.replace("_script.txt", ".py")
    path.write_text((OWN / name).read_text())
    given = {"data.rows": "1000", **WITH_MODEL.get(name, {})}

    def read(**asked: str) -> Job:
        return load_jobs(path, Overrides(gpus=("h100",), set_values=given | asked))[0].job

    own = read()
    assert own.origin is not None
    numbers = {"train.epochs": own.epochs + 2, "data.max_length": 640, "method.rank": 24}
    said = parsed_again(own.origin)[0].values
    asked = {
        key: f"{value:g}" for key, value in numbers.items()
        if key.partition(".")[2] in said.get(key.partition(".")[0], {})
    }  # fmt: skip
    job = read(**asked)
    made = same_export("same", job, job.offers[0], changed(job, compile="off"))
    left = " ".join(note for note in made.notes if note.startswith("write "))
    path.write_text(made.files[path.name])
    again = read()
    for key in asked:
        now = {"train.epochs": again.epochs, "data.max_length": again.max_length,
               "method.rank": again.method.rank}[key]  # fmt: skip
        assert (now == numbers[key]) != (key in left), (key, now, left)
    assert "method.rank" not in left


def test_a_guess_about_a_key_goes_when_the_key_is_set(tmp_path: Path) -> None:
    own = Path(__file__).parents[2] / "trainers" / "own" / "unsloth_script.txt"
    path = tmp_path / "train.py"
    path.write_text(own.read_text())

    def guessed(**given: str) -> set[str]:
        overrides = Overrides(gpus=("h100",), stated={"data.rows": 1000}, set_values=given)
        return {item.key for item in load_jobs(path, overrides)[0].job.assumed}

    assert guessed() - guessed(model="Qwen/Qwen3-14B") == {"model"}


def test_a_script_that_is_not_taken_along_is_said(tmp_path: Path) -> None:
    overrides = Overrides(gpus=("h100",), stated={"data.rows": 1000})
    job = jobs_of_command(COMMAND, overrides)[0].job
    told = "copy train.py, and what it imports, into the run folder first"
    for target, said in (("sky", True), ("slurm", False)):
        answered(job, tmp_path / target)
        notes = export_run(tmp_path / target, target)[1]
        assert (f"{target}: {told}" in notes) == said


def test_nothing_is_changed_in_place_in_a_dry_run(path: Path) -> None:
    with pytest.raises(InputError, match="--dry-run writes nothing"):
        check_in_place(loaded(path), writes=False)


def test_a_file_that_cannot_be_changed_is_replaced_by_one_of_ours_and_that_is_said(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise InputError("axolotl.yml cannot be changed where it stands")  # noqa: EM101, TRY003

    monkeypatch.setattr(own_file, "patched", refused)
    answer = answered(loaded(path), tmp_path / "run")
    assert "sft_config.json" in answer.files
    assert any(
        note == "axolotl.yml cannot be changed where it stands: trl was written instead"
        for note in answer.warnings
    )
    assert own_changes(answer, ()) == ""


def test_several_formats_get_a_folder_each_and_their_notes_their_names(
    path: Path, tmp_path: Path
) -> None:
    from dataclasses import replace

    options = replace(FAST, run_dir=tmp_path / "run", exports=("same", "litgpt", "hf@5.10"))
    answer = tune(loaded(path), options)
    folders = {name.partition("/")[0] for name in answer.files}
    assert folders == {"own", "litgpt", "hf-5.10"}
    assert any(note.startswith("litgpt: ") for note in answer.warnings)
    assert any(note.startswith("hf@5.10: learning_rate") for note in answer.warnings)
    assert answer.other_formats == ("trl", "llamafactory", "unsloth")


def test_a_later_export_says_what_its_format_cannot(path: Path, tmp_path: Path) -> None:
    answered(loaded(path), tmp_path / "run")
    paths, notes = export_run(tmp_path / "run", "litgpt")
    assert {found.name for found in paths} == {"litgpt.yaml", "run.sh"}
    assert any("cannot say" in note and "optimizer adamw_bnb_8bit" in note for note in notes)


def test_a_file_that_does_not_go_on_after_an_interruption_is_told_what_it_lacks(path: Path) -> None:
    from dataclasses import replace

    job = loaded(path)
    spot = replace(job.offers[0], spot=True)
    notes = same_export("same", job, spot, changed(job)).notes
    assert any("add auto_resume_from_checkpoints: true" in note for note in notes)
    calm = same_export("same", job, job.offers[0], changed(job)).notes
    assert not any("add auto" in note for note in calm)
    path.write_text(AXOLOTL + "auto_resume_from_checkpoints: true\n")
    again = loaded(path)
    assert not any("add auto" in n for n in same_export("same", again, spot, changed(again)).notes)


def run_there(folder: Path, cwd: Path, name: str) -> str:
    """What run.sh says when the trainer is a program that tells where it is started."""
    tools = folder / "tools"
    tools.mkdir()
    (tools / name).write_text('#!/bin/bash\necho "in $PWD with ${PYTHONPATH:-}"\n')
    (tools / name).chmod(0o755)
    environment = {"PATH": f"{tools}:/usr/bin:/bin"}
    done = subprocess.run(
        ["bash", str(folder / "run.sh")], cwd=cwd, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_run_sh_of_ones_own_file_starts_where_its_relative_paths_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "mein Projekt ü"
    (project / "configs").mkdir(parents=True)
    (project / "data").mkdir()
    (project / "data" / "rows.jsonl").write_text("{}")
    (project / "configs" / "axolotl.yml").write_text(
        AXOLOTL.replace("tatsu-lab/alpaca", "data/rows.jsonl")
    )
    assert "data/rows.jsonl" in (project / "configs" / "axolotl.yml").read_text()
    monkeypatch.chdir(project)
    found = answered(loaded(Path("configs/axolotl.yml")), Path("run"))
    assert found.job.origin.path == str(project / "configs" / "axolotl.yml")
    assert run_there(project / "run", tmp_path, "axolotl").startswith(f"in {project} ")
    monkeypatch.chdir(tmp_path)
    again, _ = export_run(project / "run", "same")
    assert f"cd -- '{project}'" in next(p for p in again if p.name == "run.sh").read_text()
    (project / "run" / "own" / "axolotl.yml").unlink()
    lost = subprocess.run(
        ["bash", str(project / "run" / "run.sh")], capture_output=True, text=True, check=False
    )
    assert lost.stderr.startswith(f"run.sh: own/axolotl.yml is not in {project / 'run'}: start")


def test_a_script_of_ones_own_finds_the_modules_beside_it_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    script = tmp_path / "there" / "train.py"
    script.write_text(
        "from trl import SFTConfig\nfrom mine import helper\n"
        'args = SFTConfig(output_dir="out", per_device_train_batch_size=4)\n'
        'model = "Qwen/Qwen2.5-7B"\n'
    )
    monkeypatch.chdir(tmp_path)
    stated = {"data.rows": 1000, "model": "Qwen/Qwen2.5-7B", "method.kind": "lora"}
    job = load_jobs(Path("there/train.py"), Overrides(gpus=("h100",), stated=stated))[0].job
    answered(job, Path("run"))
    told = run_there(tmp_path / "run", tmp_path, "python")
    assert told.endswith(f"with {tmp_path / 'there'}:{tmp_path}")


def test_a_token_in_the_user_s_file_stays_there_and_reaches_nothing_that_is_written(
    tmp_path: Path,
) -> None:
    token = "hf_" + "abcdefghijklmnopqrstuv"
    path, folder = tmp_path / "axolotl.yml", tmp_path / "run"
    path.write_text(f"{AXOLOTL}hub_token: {token}\nwandb_api_key: correct-horse\n")
    path.chmod(0o600)
    job = loaded(path)
    found = answered(job, folder)
    written = [each for each in folder.rglob("*") if each.is_file()]
    assert {"axolotl.yml", "job.json", "recommendation.json", "report.html", "run.sh"} <= {
        each.name for each in written
    }
    for each in written:
        assert token not in each.read_text(), each
        assert "correct-horse" not in each.read_text(), each
    own = folder / "own" / "axolotl.yml"
    assert "hub_token: LEFT-OUT" in own.read_text()
    assert stat.S_IMODE(own.stat().st_mode) == 0o600
    assert any("hub_token" in text and "left out" in text for text in found.warnings)
    replace_in_place(patched(job), str(path), path.read_text())
    assert token in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = tune(loaded(path), Options(fidelity="formula", trials=1, run_dir=tmp_path / "second"))
    assert again.best is not None


def test_rows_are_asked_for_with_the_data_that_the_file_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = '{"text": "one"}\n{"text": "two"}\n'
    Path("data").mkdir()
    Path("data/train.json").write_text(rows)
    Path("ds.json").write_text('{\n  "zero_optimization": {"stage": 2}\n}')

    def hint(flags: str) -> str | None:
        with pytest.raises(InputError, match="how many rows") as asked:
            jobs_of_command(f"{COMMAND} {flags}", Overrides(gpus=("h100",)))
        return asked.value.hint

    named = "--deepspeed ds.json --train_file data/train.json"
    assert hint(named) == "add --data data/train.json"
    Path("data/train.json").unlink()
    assert hint(named) == "add --rows N or --data FILE"
    Path("data/train.csv").write_text("text\none\n")
    assert hint("--data_path data/train.csv") == "add --data data/train.csv"


BY_NAME = """\
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

args = SFTConfig(output_dir="out", per_device_train_batch_size=4, bf16=True, max_length=1024)
peft = LoraConfig(r=16, target_modules="all-linear")
SFTTrainer(model="Qwen/Qwen2.5-7B", args=args, train_dataset=rows, peft_config=peft).train()
"""


@pytest.mark.parametrize(
    ("lines", "asked"),
    [
        ('rows = load_dataset("org/rows", split="train[:500]")', "add --rows 500"),
        (
            'rows = load_dataset("org/rows")["train"].shuffle(1).select(range(500))',
            "add --rows 500",
        ),
        ('rows = load_dataset("org/rows", split="train[:10%]")', "add --rows N or --data FILE"),
        ("a = a.select(range(9))\nb = b.select(range(500))", "add --rows N or --data FILE"),
    ],
)
def test_rows_are_asked_for_with_the_slice_that_a_script_takes(
    tmp_path: Path, lines: str, asked: str
) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"{lines}\n{BY_NAME}")
    with pytest.raises(InputError, match="how many rows") as refused:
        load_jobs(path, Overrides(gpus=("h100",)))
    assert refused.value.hint == asked


def of_script(folder: Path, text: str, **given: str) -> tuple[Job, dict[str, str], list[str]]:
    """The job of a script, what is written for today's run with offloaded states, and the notes."""
    path = folder / "train.py"
    path.write_text(text)
    asked = {key.replace("__", "."): value for key, value in given.items()}
    overrides = Overrides(gpus=("rtx-4090",), stated={"data.rows": 1000}, set_values=asked)
    job = load_jobs(path, overrides)[0].job
    chosen = changed(job, compile="off", sharding="zero2", offload="optimizer")
    chosen = chosen.with_knobs(gradient_accumulation_steps=job.global_batch_size // 4)
    made = same_export("same", job, job.offers[0], chosen, folder="own/")
    return job, made.files, list(made.notes)


def test_what_only_the_launcher_says_is_launched_with_on_one_device_too(tmp_path: Path) -> None:
    _, files, notes = of_script(tmp_path, BY_NAME)
    assert "zero_stage: 2" in files["own/accelerate.yaml"]
    assert 'accelerate launch --config_file "$here"/own/accelerate.yaml' in files["run.sh"]
    assert sum(
        note.endswith("accelerate.yaml, written beside the file, says how") for note in notes
    )
    sharded = BY_NAME.replace('output_dir="out"', 'output_dir="out", deepspeed="ds.json"')
    stage = '{"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}'
    (tmp_path / "ds.json").write_text(stage)
    assert "own/accelerate.yaml" not in of_script(tmp_path, sharded)[1]


def test_a_base_that_was_asked_for_is_loaded_where_arguments_load_it(tmp_path: Path) -> None:
    job, files, _ = of_script(tmp_path, BY_NAME)
    assert (job.method.base, "model_init_kwargs" in files["own/train.py"]) == ("32bit", False)
    job, files, notes = of_script(tmp_path, BY_NAME, method__base="16bit")
    assert job.method.base == "16bit"
    assert "model_init_kwargs={'dtype': 'bfloat16'})" in files["own/train.py"]
    assert not any("16bit" in note for note in notes)
    with_words = BY_NAME.replace("bf16=True", 'bf16=True, model_init_kwargs={"revision": "main"}')
    text = of_script(tmp_path, with_words, method__base="16bit")[1]["own/train.py"]
    assert "{'revision': 'main', 'dtype': 'bfloat16'}" in text


def test_a_global_batch_that_was_asked_for_is_written(tmp_path: Path) -> None:
    job, files, _ = of_script(tmp_path, BY_NAME, train__global_batch_size="64")
    assert job.global_batch_size == 64
    path = tmp_path / "train.py"
    path.write_text(files["own/train.py"])
    assert loaded(path).global_batch_size == 64


def test_a_base_that_only_the_script_can_load_is_said(tmp_path: Path) -> None:
    for base, how in (("nf4", "where the model is loaded"), ("int8", "where the model is loaded")):
        notes = of_script(tmp_path, BY_NAME, method__base=base)[2]
        told = f"have train.py load {base} weights yourself; it loads 32bit: write it {how}"
        assert told in notes


def test_a_script_keeps_the_word_that_every_release_takes(tmp_path: Path) -> None:
    text = BY_NAME.replace("bf16=True", "bf16=True, gradient_checkpointing=False")
    path = tmp_path / "train.py"
    stated = Overrides(
        ("h100",), set_values={"software.transformers": "5.23.0"}, stated={"data.rows": 1000}
    )
    for own in (text, BY_NAME):
        path.write_text(own)
        job = loaded(path)
        other = "none" if job.today.activation_checkpointing == "full" else "full"
        written = own_file.patched(
            "same", job, job.offers[0], changed(job, activation_checkpointing=other)
        )
        assert "gradient_checkpointing" in written.changes
        assert "activation_checkpointing" not in written.changes
    job = load_jobs(path, stated)[0].job
    later = own_file.patched(
        "same", job, job.offers[0], changed(job, activation_checkpointing=other)
    )
    assert "activation_checkpointing" in later.changes


TRLS = """\
from datasets import load_dataset
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

args = SFTConfig(output_dir="out", per_device_train_batch_size=2, max_length=1024)
data = load_dataset("tatsu-lab/alpaca", split="train")
SFTTrainer(model="Qwen/Qwen3-4B", args=args, train_dataset=data, peft_config=LoraConfig()).train()
"""


@pytest.mark.parametrize(
    ("software", "written"),
    [
        ({}, {"gradient_checkpointing": True, "bf16": True}),  # older ones do neither by themselves
        ({"software": "2025-08"}, {"gradient_checkpointing": True}),
        ({"software": "default"}, {}),
    ],
)
def test_what_a_release_of_trl_does_by_itself_is_written_where_it_may_be_another(
    tmp_path: Path, software: dict[str, str], written: dict[str, bool]
) -> None:
    own = tmp_path / "sft.py"
    own.write_text(TRLS)
    asked = Overrides(gpus=("h100",), stated={"data.rows": 1000}, set_values=software)
    job = load_jobs(own, asked)[0].job
    config = job.today.with_knobs(activation_checkpointing="full", precision="bf16")
    found = own_file.patched("same", job, job.offers[0], config)
    again = parsed_again(replace(job.origin, text=found.text))[1]
    said = {key: again.get(key) for key in ("gradient_checkpointing", "bf16")}
    assert {key: value for key, value in said.items() if value is not None} == written


def test_an_older_release_gets_no_key_that_came_later(tmp_path: Path) -> None:
    """transformers 4.48 has group_by_length, and TRL 0.14 no activation_offloading."""
    own = tmp_path / "sft.py"
    own.write_text(TRLS.replace(", max_length=1024", "").replace("Qwen3-4B", "Qwen2.5-3B"))
    stated, old = {"data.rows": 1000}, {"software": "2025-02"}
    job = load_jobs(own, Overrides(gpus=("h100",), stated=stated, set_values=old))[0].job
    config = job.today.with_knobs(length_grouping="on", offload="activations")
    found = own_file.patched("same", job, job.offers[0], config)
    assert "group_by_length=True" in found.text
    assert "train_sampling_strategy" not in found.text
    assert "activation_offloading" not in found.text
    assert any("trl 0.14.0 does not take activation_offloading yet" in x for x in found.notes)
