"""A training loop of a script's own: what its loss makes of the logits, and what to type for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from autotune.app.job.load import jobs_of_command, load_jobs
from autotune.domain.errors import InputError
from autotune.domain.typed.overrides import Overrides

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.domain.job import Job

LOOP = """\
import argparse
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM

options = argparse.ArgumentParser()
options.add_argument("--batch_size", type=int, default=2)
options.add_argument("--epochs", type=int, default=1)
args = options.parse_args()
BEFORE
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B"LOADED).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for batch in loader:
    with CONTEXT:
        logits = model(batch["input_ids"]).logits
        LOSS
    loss.backward()
    optimizer.step()
"""
BF16 = ", torch_dtype=torch.bfloat16"
AUTOCAST = 'torch.autocast("cuda", dtype=torch.bfloat16)'
PLAIN = "torch.enable_grad()"
OWN = 'loss = F.cross_entropy(logits.view(-1, logits.size(-1)), batch["labels"].view(-1))'
WIDE = OWN.replace("logits.view", "logits.float().view")
OF_MODEL = 'loss = model(batch["input_ids"], labels=batch["labels"]).loss'
ACCELERATE = 'from accelerate import Accelerator\nours = Accelerator(mixed_precision="bf16")'


def job(
    folder: Path, *, loaded: str = "", context: str = PLAIN, loss: str = OWN, before: str = "",
    more: str = "",
) -> Job:  # fmt: skip
    text = LOOP
    parts = {"LOADED": loaded, "CONTEXT": context, "LOSS": loss, "BEFORE": before}
    for place, part in parts.items():
        text = text.replace(place, part)
    path = folder / "train.py"
    path.write_text(text)
    command = f"python {path} --batch_size 4 --epochs 2 --use_lora False --max_length 512{more}"
    asked = Overrides(("h100",), stated={"data.rows": 1000, "method.kind": "full"})
    (found,) = jobs_of_command(command, asked)
    return found.job


def test_a_loss_of_16_bit_logits_is_counted_in_their_own_dtype(tmp_path: Path) -> None:
    found = job(tmp_path, loaded=BF16)
    assert (found.software.loss, found.software.autocast) == ("native", False)


def test_under_autocast_the_loss_takes_fp32_of_them(tmp_path: Path) -> None:
    for loaded in ("", BF16):
        found = job(tmp_path, loaded=loaded, context=AUTOCAST)
        assert (found.software.loss, found.software.autocast) == ("native", True)


@pytest.mark.parametrize(
    "parts",
    [
        {"loaded": BF16, "loss": WIDE},
        {"loaded": BF16, "loss": OWN.replace("logits.view", "logits.to(torch.float32).view")},
        {"loaded": BF16, "loss": OF_MODEL},
        {"loaded": BF16, "before": ACCELERATE},
        {"loss": OWN},
        {"context": AUTOCAST.replace(")", ", enabled=False)")},
    ],
    ids=["float()", "to(float32)", "the model's own", "accelerate", "fp32", "autocast is off"],
)
def test_a_loop_that_widens_the_logits_or_may_is_counted_as_before(
    tmp_path: Path, parts: dict[str, str]
) -> None:
    found = job(tmp_path, **parts)
    assert (found.software.loss, found.software.autocast) == ("upcast", True)


def test_the_loop_that_keeps_16_bit_logits_needs_less_memory(tmp_path: Path) -> None:
    from autotune.app.estimate import estimate

    peaks = [
        estimate(job(tmp_path, loaded=BF16, loss=loss), fidelity="formula").row.memory_bytes.logits
        for loss in (OWN, WIDE)
    ]
    assert peaks[0] < 0.8 * peaks[1]


def test_flags_in_trls_words_give_a_loop_none_of_trls_defaults(tmp_path: Path) -> None:
    """SFTTrainer recomputes, and its loss never holds all logits; a loop does what it says."""
    found = job(tmp_path, loaded=BF16, loss=OF_MODEL, more=" --gradient_accumulation_steps 2")
    assert found.software.loss == "upcast"
    assert found.today.activation_checkpointing == "none"
    assert found.today.gradient_accumulation_steps == 2


def test_the_defaults_of_a_loops_own_options_count(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(LOOP.replace("BEFORE", "").replace("LOADED", BF16).replace("CONTEXT", PLAIN)
                    .replace("LOSS", OWN))  # fmt: skip
    asked = Overrides(("h100",), stated={"data.rows": 1000, "method.kind": "full"})
    found = jobs_of_command(f"python {path} --output_dir out", asked)[0].job
    assert (found.today.micro_batch_size, found.epochs) == (2, 1.0)


def test_a_loop_without_a_command_says_what_to_type(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(LOOP.replace("BEFORE", "").replace("LOADED", BF16).replace("CONTEXT", PLAIN)
                    .replace("LOSS", OWN))  # fmt: skip
    with pytest.raises(InputError, match="a loop of its own") as refused:
        load_jobs(path, Overrides(("h100",)))
    assert "--model NAME" in str(refused.value.hint)
    assert "--from-args" in str(refused.value.hint)


def test_lightnings_loop_is_one_that_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "import lightning as L\n"
        "class Ours(L.LightningModule):\n"
        "    def training_step(self, batch, index):\n"
        "        return self.model(**batch).loss\n"
        "L.Trainer(max_epochs=2).fit(Ours())\n"
    )
    with pytest.raises(InputError, match=r"a loop of its own \(LightningModule\)"):
        load_jobs(path, Overrides(("h100",)))


def test_a_class_that_the_file_makes_itself_states_no_trainers_arguments(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    own = "@dataclass\nclass SFTConfig%s:\n    max_steps: int = 9\n\nrun(SFTConfig(max_steps=5))\n"
    path.write_text("from base import Settings\n" + own % "(Settings)")
    with pytest.raises(InputError, match="makes SFTConfig a class of its own"):
        load_jobs(path, Overrides(("h100",)))
    theirs = "from trl import SFTConfig as Theirs\n" + own % "(Theirs)"
    path.write_text(theirs + 'load("m")\ntrainer.train()\n')
    asked = Overrides(("h100",), stated={"data.rows": 100, "method.kind": "full",
                                         "model": "Qwen/Qwen2.5-0.5B"})  # fmt: skip
    assert load_jobs(path, asked)[0].job.steps == 5
