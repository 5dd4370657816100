"""A shell script that starts several trainings whose commands state no size: each is said."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from autotune.app.job.load import load_jobs
from autotune.domain.errors import InputError
from autotune.domain.typed.overrides import Overrides
from autotune.trainers.syntax.shell_script import parse_shell
from tests.strangers import warnings

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.domain.job import Job

OWN = """\
from trl import SFTConfig, SFTTrainer
config = SFTConfig("out", per_device_train_batch_size={batch}, num_train_epochs=2, max_length=512)
SFTTrainer(model="Qwen/Qwen2.5-0.5B", args=config, train_dataset=rows).train()
"""
SLURM = "#!/bin/bash\n#SBATCH --gres=gpu:1\nmodule load cuda\n"


def job(folder: Path, text: str, variant: str | None = None) -> Job:
    (folder / "train_sft.py").write_text(OWN.format(batch=4))
    (folder / "train_more.py").write_text(OWN.format(batch=8))
    (folder / "second_stage.py").write_text(OWN.format(batch=8))
    (folder / "job.slurm").write_text(SLURM + text)
    overrides = Overrides(("h100",), stated={"data.rows": 1000})
    (found,) = load_jobs(folder / "job.slurm", overrides, variant=variant)
    return found.job


@pytest.mark.parametrize("start", ["python", "srun python -u", "uv run"])
def test_a_second_training_is_said_and_is_a_variant(tmp_path: Path, start: str) -> None:
    text = f"{start} train_sft.py\n{start} train_more.py > second.log\n"
    found = job(tmp_path, text)
    assert found.today.micro_batch_size == 4
    assert "another launch on line 5" in warnings(found)
    assert job(tmp_path, text, variant="2").today.micro_batch_size == 8


def test_a_training_that_only_its_launcher_shows_is_named(tmp_path: Path) -> None:
    text = "accelerate launch train_sft.py\naccelerate launch second_stage.py\n"
    said = warnings(job(tmp_path, text))
    assert "also started second_stage.py on line 5" in said
    assert "--variant" not in said  # it is none


def test_a_training_without_a_flag_beside_one_with_flags_is_named() -> None:
    sized = "python train.py --per_device_train_batch_size 2 --max_steps 9\n"
    after = "python merge_lora.py --adapter out\npython eval_sft.py\n"
    assert parse_shell(f"{sized}{after}python train_dpo.py\n", "run.sh").beside == (
        "train_dpo.py on line 4",
    )
    assert parse_shell(f"{sized}{after}# python train_dpo.py\n", "run.sh").beside == ()
    assert parse_shell(f"if [ -z $X ]; then\n{sized}fi\npython train.py\n", "a.sh").beside == ()


def test_a_script_that_is_started_without_a_word_of_training_is_named(tmp_path: Path) -> None:
    for text, hint in (
        ("python download.py\nsrun python second_stage.py\n", "it starts second_stage.py: give"),
        ("python download.py\n", "give the command itself"),
    ):
        with pytest.raises(InputError) as error:
            job(tmp_path, text)
        assert hint in str(error.value.hint)
