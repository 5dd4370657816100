"""The generated run.sh trains for real: a tiny random model, ten steps on the CPU.

What it starts is the same script for every model. Those of other models are run without it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from exportcases import FULL, HOST, LORA, config, evaluation, job, offer, with_base
from forked import ran

from autotune.app.runs.export import export, write_export
from autotune.catalog.models.models import find_model, load_models
from autotune.cost.parameters import lora_parameters, parameter_count, resolve_targets
from autotune.domain.job import Method
from autotune.domain.outcome import DiskUse
from autotune.evidence.log.read import read_log

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from forked import Forking

    from autotune.domain.config import Config

pytestmark = pytest.mark.slow


def ours(folder: Path, where: Path, path: str) -> dict[str, str]:
    """What a user would set for a short run without the hub. path: PATH."""
    return {
        "MODEL": str(folder / "model"),
        "DATA": str(folder / "data.jsonl"),
        "EVAL_DATA": str(folder / "data.jsonl"),
        "MAX_STEPS": "10",
        "LOCAL_DIR": str(where / "local disk"),
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(where / "hf"),
        "PATH": path,
    }


def run(
    folder: Path, where: Path, forks: Forking, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(where / "run.sh")],
        env={**os.environ, **ours(folder, where, forks.path), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )


def state(output: Path, step: int) -> dict[str, Any]:
    text = (output / f"checkpoint-{step}/trainer_state.json").read_text()
    loaded: dict[str, Any] = json.loads(text)
    return loaded


@pytest.mark.parametrize("target", ["hf", "trl"])
def test_run_sh_stages_tokenises_and_trains_ten_steps_of_a_cpu_job(
    target: str, model_and_data: Path, tmp_path: Path, forks: Forking
) -> None:
    cpu = job(with_base(LORA, "32bit"), evaluation=evaluation(5), storage="network")
    chosen = config(precision="fp32", checkpoint_every_steps=10, activation_checkpointing="full")
    small = replace(offer(cpu=True), host=replace(HOST, cores=2))
    write_export(export(target, cpu, small, chosen, DiskUse(2, 1e5)), tmp_path)
    done = run(model_and_data, tmp_path, forks)
    assert done.returncode == 0, done.stderr[-3000:]
    output = tmp_path / "output"
    trained = state(output, 10)
    assert trained["global_step"] == trained["max_steps"] == 10
    assert trained["train_batch_size"] == 4
    (staged,) = (tmp_path / "local disk").glob("*-data.jsonl")
    assert staged.read_bytes() == (model_and_data / "data.jsonl").read_bytes()
    assert (tmp_path / "local disk/train/made_of.json").is_file()
    assert done.stderr.index("copying ") < done.stderr.index("tokenising ")
    assert any("eval_loss" in entry for entry in trained["log_history"])
    adapter = json.loads((output / "final/adapter_config.json").read_text())
    assert (adapter["r"], adapter["lora_alpha"], adapter["lora_dropout"]) == (8, 16, 0.05)
    assert sorted(adapter["target_modules"]) == ["down_proj", "q_proj", "v_proj"]
    assert (output / "final/tokenizer.json").exists()
    log = read_log(tmp_path)  # of the run's folder: its own record, which was written last
    assert (log.form, log.steps_done, log.max_steps, log.gpu) == ("record", 10, 10, "cpu")
    assert (log.micro_batch_size, log.gradient_accumulation_steps) == (4, 2)
    assert [step for step, _ in log.evaluations] == [5, 10]
    assert len(log.saves_s) == 1
    assert log.method == {"kind": "lora", "rank": 8}
    assert log.model["num_layers"] >= 1
    assert log.epoch == pytest.approx(trained["epoch"])
    assert log.waiting is None or 0 <= log.waiting < 1


def test_use_cpu_tries_a_gpu_job_without_a_gpu(
    model_and_data: Path, tmp_path: Path, forks: Forking
) -> None:
    """Of a script of TRL, which has what the Trainer's has for it and more of its own."""
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
    small = replace(offer(2), host=replace(HOST, cores=2))
    write_export(export("trl", padded, small, two_gpus), tmp_path)
    done = run(model_and_data, tmp_path, forks, USE_CPU="1", MAX_STEPS="3")
    assert done.returncode == 0, done.stderr[-3000:]
    assert state(tmp_path / "output", 3)["global_step"] == 3
    assert "eval_loss" in done.stdout
    assert (tmp_path / "output/final/model.safetensors").exists()


TINY: dict[str, Any] = {
    "num_hidden_layers": 3, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "intermediate_size": 64, "moe_intermediate_size": 16, "vocab_size": 9,
    "n_routed_experts": 4, "moe_num_experts": 4, "num_experts": 4, "num_experts_per_tok": 2,
    "moe_k": 2, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4,
    "v_head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8, "shared_expert_intermediate_size": 16,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1,
}  # fmt: skip
# One for each way in which layers differ: dense ones first, latent keys, layers without scores.
NAMES = (
    "zai-org/GLM-4.5-Air", "deepseek-ai/DeepSeek-V2-Lite", "Qwen/Qwen3.5-9B", "LiquidAI/LFM2-350M",
)  # fmt: skip
LEADING = {"qwen3_5_text": 0, "lfm2": 0}  # dense layers before mixtures; the others have one


def tiny(name: str, beside: Path, folder: Path) -> Path:
    """A folder like `beside`, with a model of the named one's class and arrangement, only small."""
    transformers = pytest.importorskip("transformers")
    shutil.copytree(beside, folder)
    shape = json.loads(load_models()[name].hf_config)
    words = len(json.loads((beside / "model/tokenizer.json").read_text())["model"]["vocab"])
    own = {key: value for key, value in TINY.items() if key in shape or key.endswith("token_id")}
    if "kv_lora_rank" in shape:
        own["num_key_value_heads"] = own["num_attention_heads"]
    if "layer_types" in shape:
        own["layer_types"] = shape["layer_types"][:4]
        own["num_hidden_layers"] = len(own["layer_types"])
    kind = shape.pop("model_type")
    read = transformers.CONFIG_MAPPING[kind](**{**shape, **own, "vocab_size": words})
    transformers.AutoModelForCausalLM.from_config(read).save_pretrained(folder / "model")
    return folder


def a_gemma_4(folder: Path, data: Path) -> Path:
    """A tiny random one with its parts that see and hear, the tokenizer and rows of `data`."""
    import transformers

    text = {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "global_head_dim": 16, "vocab_size": 64,
        "vocab_size_per_layer_input": 64, "hidden_size_per_layer_input": 8,
        "num_kv_shared_layers": 2, "use_double_wide_mlp": True, "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"] * 2, "pad_token_id": 0,
    }  # fmt: skip
    part = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    sees = {**part, "intermediate_size": 32, "num_key_value_heads": 2, "head_dim": 16}
    config = transformers.Gemma4Config(
        text_config=text, vision_config={**sees, "position_embedding_size": 16},
        audio_config={**part, "output_proj_dims": 32}, image_token_id=60, video_token_id=61,
        audio_token_id=62,
    )  # fmt: skip
    shutil.copytree(data, folder)
    transformers.Gemma4ForConditionalGeneration(config).save_pretrained(folder / "model")
    return folder


def a_gemma_3(folder: Path, data: Path) -> Path:
    """A tiny random one with the part that sees, the tokenizer and rows of `data`."""
    import transformers

    text = {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 64,
        "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"],
        "pad_token_id": 0,
    }  # fmt: skip
    sees = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 2, "image_size": 28, "patch_size": 14, "vision_use_head": False,
    }  # fmt: skip
    config = transformers.Gemma3Config(
        text_config=text, vision_config=sees, mm_tokens_per_image=4, image_token_id=60,
    )  # fmt: skip
    shutil.copytree(data, folder)
    transformers.Gemma3ForConditionalGeneration(config).save_pretrained(folder / "model")
    return folder


def a_mistral_3(folder: Path, data: Path) -> Path:
    """A tiny random Mistral Small 3.1: no AutoModelForCausalLM knows it."""
    import transformers

    text = {
        "model_type": "mistral", "hidden_size": 32, "intermediate_size": 64, "head_dim": 8,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "vocab_size": 64, "pad_token_id": 0,
    }  # fmt: skip
    sees = {
        "model_type": "pixtral", "hidden_size": 32, "intermediate_size": 48, "head_dim": 16,
        "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 28, "patch_size": 14,
    }  # fmt: skip
    config = transformers.Mistral3Config(text_config=text, vision_config=sees, image_token_id=60)
    shutil.copytree(data, folder)
    transformers.Mistral3ForConditionalGeneration(config).save_pretrained(folder / "model")
    return folder


SEES: dict[str, tuple[Callable[[Path, Path], Path], str, str]] = {
    "gemma 3, adapters": (a_gemma_3, "hf", "lora"),
    "gemma 3, all": (a_gemma_3, "trl", "full"),
    "mistral 3, all": (a_mistral_3, "hf", "full"),
    "mistral 3, adapters": (a_mistral_3, "trl", "lora"),
}
HEARS, CHANGED = "gemma 4", "changed batch"


@pytest.fixture(scope="module")
def forked(
    model_and_data: Path, tmp_path_factory: pytest.TempPathFactory, forks: Forking
) -> dict[str, Path]:
    """Folders in which a script ran and trained a model of its own, which lies in `own`."""
    top = tmp_path_factory.mktemp("forked")
    made: dict[str, Path] = {}
    small = replace(offer(cpu=True), host=replace(HOST, cores=2))

    def write(name: str, folder: Path, trainer: str, settings: Config, **more: str) -> None:
        model, where = find_model(str(folder / "model")), folder.parent
        targets = resolve_targets(model, "all-linear")
        lora = replace(with_base(LORA, "32bit"), targets=targets, dropout=0.0)
        full = name in SEES and SEES[name][2] == "full"
        plan = job(Method("full", "32bit") if full else lora, model=model)
        write_export(export(trainer, plan, small, settings, DiskUse(2, 1e5)), where)
        said = {**ours(folder, where, forks.path), "OUTPUT_DIR": str(where / "output"), **more}
        (where / "environment.json").write_text(json.dumps(said))
        made[name] = where

    for number, name in enumerate(NAMES):
        chosen = config(
            precision="fp32", checkpoint_every_steps=10, activation_checkpointing="full"
        )
        write(name, tiny(name, model_and_data, top / str(number) / "own"), "hf", chosen)
    others = {HEARS: (a_gemma_4, "hf", "lora"), **SEES}
    for name, (make, trainer, _) in others.items():
        folder = make(top / name / "own", model_and_data)
        settings = config(precision="fp32", attention="sdpa")
        write(name, folder, trainer, settings, MAX_STEPS="2")
    made[CHANGED] = changed_batch(model_and_data, top / CHANGED, forks)
    forks.run([where / "train.py" for where in made.values()])
    return made


def changed_batch(folder: Path, where: Path, forks: Forking) -> Path:
    """A folder whose arguments somebody edited after they were written."""
    cpu = job(with_base(LORA, "32bit"))
    write_export(export("hf", cpu, offer(cpu=True), config(precision="fp32")), where)
    path = where / "training_args.json"
    edited = json.loads(path.read_text()) | {"gradient_accumulation_steps": 4}
    path.write_text(json.dumps(edited))
    (where / "environment.json").write_text(json.dumps(ours(folder, where, forks.path)))
    return where


def test_a_changed_batch_is_refused_by_the_script(forked: dict[str, Path]) -> None:
    assert (forked[CHANGED] / "code").read_text() != "0"
    assert "make batches of 16, not 8" in (forked[CHANGED] / "stderr").read_text()


def adapted(where: Path) -> tuple[set[str], int, int]:
    """The names of the adapters that were saved, their elements, and how many are counted."""
    from safetensors.torch import load_file

    model = find_model(str(where / "own/model"))
    saved = load_file(where / "output/final/adapter_model.safetensors")
    counted = lora_parameters(model, LORA.rank, resolve_targets(model, "all-linear"))
    return set(saved), sum(each.numel() for each in saved.values()), counted


@pytest.mark.parametrize("name", NAMES)
def test_a_script_trains_the_adapters_that_are_counted(name: str, forked: dict[str, Path]) -> None:
    where = forked[name]
    model = find_model(str(where / "own/model"))
    assert model.num_dense_layers == LEADING.get(model.family, 1)
    ran(where)
    assert state(where / "output", 10)["global_step"] == 10
    _, elements, counted = adapted(where)
    assert elements == counted


def test_a_checkpoint_that_sees_and_hears_has_adapters_in_its_text_alone(
    forked: dict[str, Path],
) -> None:
    ran(forked[HEARS])
    names, elements, counted = adapted(forked[HEARS])
    assert elements == counted
    assert all("language_model" in name for name in names)


@pytest.mark.parametrize("name", SEES)
def test_a_checkpoint_that_sees_trains_its_text_alone(name: str, forked: dict[str, Path]) -> None:
    from safetensors.torch import load_file

    where = forked[name]
    ran(where)
    if SEES[name][2] == "lora":
        _, elements, counted = adapted(where)
        assert elements == counted
        return
    model = find_model(str(where / "own/model"))
    before = load_file(where / "own/model/model.safetensors")
    after = load_file(where / "output/final/model.safetensors")
    assert sum(each.numel() for each in after.values()) == (
        parameter_count(model) + model.beside_params
    )
    moved = {name for name in before if not before[name].equal(after[name])}
    assert moved
    assert not any("vision_tower" in name or "projector" in name for name in moved)
