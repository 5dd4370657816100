"""The generated run.sh trains for real: a tiny random Llama, three steps on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from exportcases import FULL, LORA, config, evaluation, job, offer, with_base

from autotune.trainers.export import export, write_export

pytestmark = pytest.mark.slow

SPECIAL = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
WORDS = ["red", "green", "blue", "one", "two", "three"]


@pytest.fixture(scope="module")
def model_and_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with model/ and data.jsonl (64 rows)."""
    pytest.importorskip("torch")
    transformers, tokenizers = (
        pytest.importorskip("transformers"),
        pytest.importorskip("tokenizers"),
    )
    folder = tmp_path_factory.mktemp("smoke")
    vocabulary = {word: i for i, word in enumerate(["<pad>", "</s>", "<unk>", *WORDS])}
    raw = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))  # noqa: S106
    raw.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=raw, **SPECIAL)
    tokenizer.save_pretrained(folder / "model")
    shape = transformers.LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        eos_token_id=1,
        bos_token_id=1,
        pad_token_id=0,
    )
    transformers.LlamaForCausalLM(shape).save_pretrained(folder / "model")
    rows = [{"text": " ".join(WORDS[: 2 + i % 5] * (1 + i % 20))} for i in range(64)]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def run(
    folder: Path, where: Path, *command: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    ours = {
        "MODEL": str(folder / "model"),
        "DATA": str(folder / "data.jsonl"),
        "EVAL_DATA": str(folder / "data.jsonl"),
        "MAX_STEPS": "3",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(where / "hf"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    return subprocess.run(
        command or ["bash", str(where / "run.sh")],
        env={**os.environ, **ours, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def state(output: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((output / "checkpoint-3/trainer_state.json").read_text())
    return loaded


@pytest.mark.parametrize("target", ["hf", "trl"])
def test_run_sh_trains_three_steps_of_a_cpu_job(
    target: str, model_and_data: Path, tmp_path: Path
) -> None:
    cpu = job(with_base(LORA, "32bit"), evaluation=evaluation(2))
    chosen = config(precision="fp32", checkpoint_every_steps=3, activation_checkpointing="full")
    write_export(export(target, cpu, offer(cpu=True), chosen, 1e5), tmp_path)
    done = run(model_and_data, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    output = tmp_path / "output"
    trained = state(output)
    assert trained["global_step"] == 3
    assert trained["train_batch_size"] == 4
    assert any("eval_loss" in entry for entry in trained["log_history"])
    adapter = json.loads((output / "final/adapter_config.json").read_text())
    assert (adapter["r"], adapter["lora_alpha"], adapter["lora_dropout"]) == (8, 16, 0.05)
    assert sorted(adapter["target_modules"]) == ["down_proj", "q_proj", "v_proj"]
    assert (output / "final/tokenizer.json").exists()


@pytest.mark.parametrize("target", ["hf", "trl"])
def test_use_cpu_tries_a_gpu_job_without_a_gpu(
    target: str, model_and_data: Path, tmp_path: Path
) -> None:
    two_gpus = config(
        sharding="fsdp",
        gradient_accumulation_steps=1,
        optimizer="paged_adamw_8bit",
        attention="flash_attention_2",
        compile="max-autotune",
        length_grouping="on",
        num_dataloader_workers=2,
        checkpoint_every_steps=3,
    )
    padded = job(FULL, evaluation=evaluation(0), padding="max_length")
    write_export(export(target, padded, offer(2), two_gpus), tmp_path)
    done = run(model_and_data, tmp_path, USE_CPU="1", MAX_STEPS="3")
    assert done.returncode == 0, done.stderr[-3000:]
    assert state(tmp_path / "output")["global_step"] == 3
    assert "eval_loss" in done.stdout
    assert (tmp_path / "output/final/model.safetensors").exists()


def test_a_changed_batch_is_refused_by_the_script(model_and_data: Path, tmp_path: Path) -> None:
    cpu = job(with_base(LORA, "32bit"))
    write_export(export("hf", cpu, offer(cpu=True), config(precision="fp32")), tmp_path)
    path = tmp_path / "training_args.json"
    edited = json.loads(path.read_text()) | {"gradient_accumulation_steps": 4}
    path.write_text(json.dumps(edited))
    done = run(model_and_data, tmp_path, sys.executable, str(tmp_path / "train.py"))
    assert done.returncode != 0
    assert "make batches of 16, not 8" in done.stderr
