"""What other people's files have that tidy ones do not: each is read as its trainer reads it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from builders import memory_columns

from autotune.app.estimate import estimate
from autotune.app.job.load import load_jobs
from autotune.app.runs.user_file import patched
from autotune.cost.memory.peak import instants
from autotune.cost.memory.step import Step
from autotune.domain.errors import InputError
from autotune.domain.typed.overrides import Overrides
from autotune.trace.request import request_for
from autotune.trainers.registry import detect
from tests.strangers import command, warnings

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.domain.job import Job

QWEN = "Qwen/Qwen2.5-0.5B"
NOTEBOOK = """\
max_seq_length = 4096
model, tok = FastLanguageModel.from_pretrained(
    model_name = "unsloth/Qwen2.5-0.5B", max_seq_length = max_seq_length, load_in_4bit = True)
model = FastLanguageModel.get_peft_model(model, r = 16, target_modules = ["q_proj", "v_proj"])
trainer = SFTTrainer(model = model, args = SFTConfig(
    per_device_train_batch_size = 2, gradient_accumulation_steps = 4, max_steps = 60))
if False:
    model, tok = FastLanguageModel.from_pretrained(
        model_name = "qwen_lora", max_seq_length = 1024, load_in_4bit = False)
"""
AXOLOTL = f"""\
base_model: {QWEN}
sequence_len: 512
micro_batch_size: 1
gradient_accumulation_steps: 2
num_epochs: 1
datasets: [{{path: a, type: alpaca}}]
"""
TUNE = """\
model: {_component_: torchtune.models.llama3_2.llama3_2_1b}
tokenizer: {max_seq_len: 512}
checkpointer: {checkpoint_dir: /tmp/Llama-3.2-1B-Instruct}
batch_size: 2
epochs: 1
gradient_accumulation_steps: 1
"""


def job(
    path: Path, text: str, gpu: str = "h100", rows: int | None = 100_000, **set_values: str
) -> Job:
    path.write_text(text)
    stated = {"data.rows": rows} if rows else {}
    (found,) = load_jobs(path, Overrides((gpu,), stated=stated, set_values=set_values))
    return found.job


def first_warning(found: Job) -> str:
    return str(estimate(found, fidelity="formula").warnings[0])


def test_the_model_is_the_one_that_adapters_are_put_on_not_the_one_loaded_last(
    tmp_path: Path,
) -> None:
    found = job(tmp_path / "a.py", NOTEBOOK)
    assert found.model.name == QWEN
    assert (found.max_length, found.method.base, found.method.rank) == (4096, "nf4", 16)


def test_the_model_of_a_script_without_adapters_is_the_first(tmp_path: Path) -> None:
    text = (
        f'model = AutoModelForCausalLM.from_pretrained("{QWEN}")\n'
        "a = SFTConfig(max_steps=9, max_length=128)\nSFTTrainer(model=model, args=a)\n"
        'again = AutoModelForCausalLM.from_pretrained("out/final")\n'
    )
    found = job(tmp_path / "a.py", text, **{"method.kind": "full"})
    assert found.model.name == QWEN


def test_of_two_trainings_in_a_script_the_first_is_priced_and_the_answer_says_so(
    tmp_path: Path,
) -> None:
    text = NOTEBOOK + "SFTTrainer(model = model, args = SFTConfig(max_steps = 9))\n"
    found = job(tmp_path / "a.py", text)
    assert found.steps == 60
    assert "trains again" in first_warning(found)


@pytest.mark.parametrize("key", ["activation_checkpointing", "fsdp_activation_checkpointing"])
def test_axolotl_s_checkpointing_inside_fsdp_config_is_read(tmp_path: Path, key: str) -> None:
    inside = f"fsdp_config: {{{key}: true}}\ngradient_checkpointing: false\n"
    found = job(tmp_path / "a.yml", AXOLOTL + inside, gpu="h100:2")
    assert found.today.activation_checkpointing == "full"


@pytest.mark.parametrize(
    ("component", "optimizer"),
    [
        ("bitsandbytes.optim.PagedAdamW8bit", "paged_adamw_8bit"),
        ("torchao.optim.AdamW8bit", "adamw_bnb_8bit"),
        ("torch.optim.AdamW", "adamw_torch"),
    ],
)
def test_torchtune_s_optimizer_is_read(tmp_path: Path, component: str, optimizer: str) -> None:
    found = job(tmp_path / "a.yaml", TUNE + f"optimizer: {{_component_: {component}}}\n")
    assert found.today.optimizer == optimizer


def test_an_optimizer_without_a_knob_warns_first_and_widens(tmp_path: Path) -> None:
    plain = job(tmp_path / "a.yaml", TUNE + "optimizer: {_component_: torch.optim.AdamW}\n")
    other = job(
        tmp_path / "b.yaml",
        TUNE + "optimizer: {_component_: bitsandbytes.optim.Lion}\noptimizer_in_bwd: true\n",
    )
    assert "bitsandbytes.optim.Lion" in first_warning(other)
    assert other.uncounted_sd > plain.uncounted_sd == (0.0, 0.0)


def test_an_optimizer_inside_the_backward_keeps_one_gradient_and_stays_there(
    tmp_path: Path,
) -> None:
    adamw = TUNE + "optimizer: {_component_: torch.optim.AdamW}\n"
    plain = estimate(job(tmp_path / "a.yaml", adamw), fidelity="formula")
    stated = job(tmp_path / "b.yaml", adamw + "optimizer_in_bwd: true\n")
    inside = estimate(stated, fidelity="formula")
    assert inside.row.memory_bytes.gradients < 0.3 * plain.row.memory_bytes.gradients
    assert stated.lock["gradient_accumulation_steps"] == 1
    assert "optimizer_in_bwd" in inside.warnings[0]


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("context_parallel_size: 2", "context_parallel_size"),
        ("qat: {weight_dtype: int8}", "qat"),
        ("lora_target_parameters: [mlp.experts.down_proj]", "lora_target_parameters"),
        ("precompute_ref_log_probs: true", "precompute_ref_log_probs"),
        ("lora_rank_pattern: {q_proj: 64}", "lora_rank_pattern"),
        ("peft_trainable_token_indices: [1, 2]", "peft_trainable_token_indices"),
        ("pretraining_dataset: b", "pretraining_dataset"),
        ("selective_checkpointing: true", "selective_checkpointing"),
        ("trainer_cls: own.Trainer", "trainer_cls"),
        ("torch_empty_cache_steps: 1", "torch_empty_cache_steps"),
        ("full_determinism: true", "full_determinism"),
        ("label_smoothing_factor: 0.1", "label_smoothing_factor"),
        ("accelerator_config: {split_batches: true}", "split_batches"),
    ],
)
def test_an_unread_key_that_decides_time_or_memory_is_the_first_warning(
    tmp_path: Path, line: str, key: str
) -> None:
    found = job(tmp_path / "a.yml", f"{AXOLOTL}{line}\n")
    assert key in first_warning(found)
    assert max(found.uncounted_sd) > 0


@pytest.mark.parametrize(
    "line",
    [
        "context_parallel_size: 1", "wandb_project: x", "qat:", "warmup_ratio: 0.1", "gc_steps: -1",
        "full_determinism: false", "label_smoothing_factor: 0.0",
    ],
)  # fmt: skip
def test_a_harmless_key_widens_nothing(tmp_path: Path, line: str) -> None:
    assert job(tmp_path / "a.yml", f"{AXOLOTL}{line}\n").uncounted_sd == (0.0, 0.0)


def test_flags_that_scripts_call_otherwise_are_read() -> None:
    found = command(
        f"python train.py --model_name_or_path {QWEN} --per_device_train_batch_size 2 "
        "--max_seq_len 512 --use_4bit_quantization True --use_peft_lora True --lora_r 8 "
        "--lora_target_modules all-linear --num_train_epochs 1"
    )
    assert (found.max_length, found.method.base, found.method.rank) == (512, "nf4", 8)
    found = command(
        f"python qlora.py --model_name_or_path {QWEN} --per_device_train_batch_size 1 --bits 4 "
        "--lora_r 64 --lora_modules all --source_max_len 16 --target_max_len 512 --max_steps 10"
    )
    assert (found.max_length, found.method.base, found.method.rank) == (528, "nf4", 64)
    found = command(  # flash_attn is a key of LLaMA-Factory too, whose length has another name
        f"torchrun train.py --model_name_or_path {QWEN} --per_device_train_batch_size 2 --do_train "
        "--use_peft True --model_max_length 512 --target_modules all --lora_rank 8 --bf16 "
        "--num_train_epochs 1 --flash_attn True"
    )
    assert (found.max_length, found.method.kind, found.method.rank) == (512, "lora", 8)


def test_an_adapter_of_rank_nought_is_none() -> None:
    found = command(
        f"deepspeed main.py --model_name_or_path {QWEN} --per_device_train_batch_size 4 "
        "--max_seq_len 512 --lora_dim 0 --num_train_epochs 1 --zero_stage 2",
        **{"method.kind": "full"},
    )
    assert found.method.kind == "full"


ACCELERATE = """\
distributed_type: DEEPSPEED
deepspeed_config: {zero_stage: 3, gradient_accumulation_steps: 4}
mixed_precision: bf16
num_processes: 8
"""


@pytest.mark.parametrize(
    ("flags", "count", "sharding", "precision"),
    [
        ("", 8, "zero3", "bf16"),
        ("--num_processes 4", 4, "zero3", "bf16"),
        ("--num_processes 2 --zero_stage 2 --mixed_precision fp16", 2, "zero2", "fp16"),
    ],
)
def test_flags_of_accelerate_launch_win_over_its_config(
    tmp_path: Path, flags: str, count: int, sharding: str, precision: str
) -> None:
    """Source: accelerate 1.15, commands/launch.py, _validate_launch_command."""
    (tmp_path / "zero3.yaml").write_text(ACCELERATE)
    text = (
        f"accelerate launch --config_file zero3.yaml {flags} train.py --model_name_or_path {QWEN} "
        "--per_device_train_batch_size 2 --gradient_accumulation_steps 4 --seq_length 64 "
        "--num_train_epochs 1\n"
    )
    found = job(tmp_path / "run.sh", text, "h100", **{"method.kind": "full"})
    assert (found.offers[0].count, found.max_length) == (count, 64)
    assert (found.today.sharding, found.today.precision) == (sharding, precision)


@pytest.mark.parametrize(
    ("mode", "kind", "base"),
    [("full", "full", "16bit"), ("lora", "lora", "16bit"), ("qlora", "lora", "nf4")],
)
def test_a_program_s_own_mode_says_how_it_is_trained(
    tmp_path: Path, mode: str, kind: str, base: str
) -> None:
    """A rank beside it is left over from another run."""
    values = {
        "model_name_or_path": QWEN, "train_mode": mode, "lora_rank": 16, "max_seq_length": 64,
        "per_device_train_batch_size": 2, "num_train_epochs": 1,
    }  # fmt: skip
    found = job(tmp_path / "sft.json", json.dumps(values))
    assert (found.method.kind, found.method.base) == (kind, base)


@pytest.mark.parametrize(("flag", "base"), [("lora", "16bit"), ("qlora", "nf4")])
def test_a_switch_of_the_program_s_own_is_an_adapter(flag: str, base: str) -> None:
    found = command(
        f"torchrun train.py --model_name_or_path {QWEN} --per_device_train_batch_size 2 "
        f"--max_length 64 --num_train_epochs 1 --{flag} True"
    )
    assert (found.method.kind, found.method.base) == ("lora", base)


def test_a_line_that_ends_in_a_backslash_and_a_blank_goes_on_and_is_named(tmp_path: Path) -> None:
    """The shell would end the command there; nobody means that."""
    text = (
        f"torchrun train.py \\\n--model_name_or_path {QWEN} \\ \n--use_peft_lora True \\\n"
        "--lora_r 8 --per_device_train_batch_size 2 --max_length 64 --num_train_epochs 1\n"
    )
    found = job(tmp_path / "run.sh", text)
    assert (found.method.kind, found.method.rank) == ("lora", 8)
    told = warnings(found)
    assert "a blank behind a backslash" in told


def test_a_file_that_its_name_alone_calls_qlora_is_taken_so_and_says_so(tmp_path: Path) -> None:
    values = {
        "model_name_or_path": QWEN, "lora_rank": 16, "max_seq_length": 64,
        "per_device_train_batch_size": 2, "num_train_epochs": 1,
    }  # fmt: skip
    path, text = tmp_path / "qwen-sft-qlora.json", json.dumps(values)
    found = job(path, text)
    assert found.method.base == "nf4"
    assert any(each.key == "method.base" and "name says" in each.why for each in found.assumed)
    assert job(path, text, **{"method.base": "16bit"}).method.base == "16bit"
    assert job(tmp_path / "qwen-sft-lora.json", text).method.base == "16bit"


@pytest.mark.parametrize(
    ("more", "base"),
    [
        ({}, "32bit"), ({"dtype": "bfloat16"}, "16bit"), ({"torch_dtype": "bfloat16"}, "16bit"),
        ({"load_in_4bit": True}, "nf4"), ({"peft_lora_r": 8}, "16bit"),
    ],
)  # fmt: skip
def test_trl_itself_loads_in_fp32_where_no_dtype_is_stated(
    tmp_path: Path, more: dict[str, object], base: str
) -> None:
    """trl 1.16 ModelConfig.dtype; a program with a word of its own may load as it likes."""
    values = {
        "model_name_or_path": QWEN, "use_peft": True, "max_length": 64, "num_train_epochs": 1,
        "per_device_train_batch_size": 2, **more,
    }  # fmt: skip
    found = job(tmp_path / "sft.json", json.dumps(values))
    assert found.method.base == base
    said = [each.why for each in found.assumed if each.key == "method.base"]
    assert any("TRL's own default is float32" in why for why in said) is (base == "32bit")


def test_a_backslash_at_the_end_of_a_command_is_nothing() -> None:
    text = f"python t.py --model_name_or_path {QWEN} --max_seq_length 64 \\\n"
    more = "--per_device_train_batch_size 2 --num_train_epochs 1 \\"
    assert command(text + more, **{"method.kind": "full"}).max_length == 64


@pytest.mark.parametrize(
    ("model", "stated", "targets"),
    [
        (QWEN, r".*\.layers\.\d+\.self_attn\.(q|v)_proj", {"q_proj", "v_proj"}),
        (QWEN, "model.layers.[\\d]+.(mlp|cross_attn|self_attn).(up|down|q)_proj",
         {"up_proj", "down_proj", "q_proj"}),
        ("microsoft/Phi-3-mini-4k-instruct", "q_proj,v_proj,o_proj", {"qkv_proj", "o_proj"}),
        ("tiiuae/falcon-7b", "q_proj,o_proj,up_proj",
         {"query_key_value", "dense", "dense_h_to_4h"}),
    ],
)  # fmt: skip
def test_targets_are_put_into_the_model_s_own_names(
    tmp_path: Path, model: str, stated: str, targets: set[str]
) -> None:
    text = AXOLOTL.replace(QWEN, model)
    names = json.dumps(stated.split(",") if "(" not in stated else stated)
    found = job(
        tmp_path / "a.yml", f"{text}adapter: lora\nlora_r: 8\nlora_target_modules: {names}\n"
    )
    assert set(found.method.targets) == targets


def test_a_pattern_of_some_layers_is_counted_on_all_and_says_so(tmp_path: Path) -> None:
    pattern = r".*\\.layers\\.(3|7)\\.self_attn\\.(q|k)_proj"
    text = f'{AXOLOTL}adapter: lora\nlora_r: 8\nlora_target_modules: "{pattern}"\n'
    assert "some layers alone" in first_warning(job(tmp_path / "a.yml", text))


def test_a_name_that_no_model_has_is_still_refused(tmp_path: Path) -> None:
    text = f"{AXOLOTL}adapter: lora\nlora_r: 8\nlora_target_modules: [no_such]\n"
    with pytest.raises(InputError, match="unknown LoRA target"):
        job(tmp_path / "a.yml", text)


def test_a_deepspeed_config_with_precision_alone_is_told_as_one(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{"bf16": {"enabled": "auto"}, "gradient_accumulation_steps": "auto"}')
    with pytest.raises(InputError, match="config of DeepSpeed"):
        load_jobs(path, Overrides(("h100",)))


def test_a_launcher_s_config_is_found_from_the_folder_of_the_script(tmp_path: Path) -> None:
    inside = tmp_path / "examples" / "sft"
    (tmp_path / "configs").mkdir()
    inside.mkdir(parents=True)
    (tmp_path / "configs" / "acc.yaml").write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nnum_processes: 4\n"
    )
    text = (
        f"accelerate launch --config_file configs/acc.yaml train.py --model_name_or_path {QWEN} "
        "--per_device_train_batch_size 2 --num_train_epochs 1 --max_seq_length 64\n"
    )
    found = job(inside / "run.sh", text, **{"method.kind": "full"})
    assert found.global_batch_size == 8


FACTORY_V1 = f"""\
model: {QWEN}
model_class: llm
peft_config: {{name: lora, r: 16, lora_alpha: 32, target_modules: all}}
quant_config: {{name: bnb, quantization_bit: 4}}
dist_config: {{name: fsdp2}}
train_dataset: data/mine.yaml
micro_batch_size: 2
global_batch_size: 16
cutoff_len: 512
max_steps: 10
"""


def test_llama_factory_s_newer_format_is_read_and_given_back(tmp_path: Path) -> None:
    found = job(tmp_path / "a.yaml", FACTORY_V1, gpu="h100:2")
    assert (found.method.kind, found.method.base, found.method.rank) == ("lora", "nf4", 16)
    assert (found.max_length, found.steps, found.global_batch_size) == (512, 10, 16)
    assert (found.today.micro_batch_size, found.today.sharding) == (2, "fsdp")
    changed = found.today.with_knobs(micro_batch_size=4, gradient_accumulation_steps=2)
    text = patched("same", found, found.offers[0], changed).text
    assert text.startswith(FACTORY_V1.replace("micro_batch_size: 2", "micro_batch_size: 4"))


def test_no_checkpoints_are_offloaded_where_none_are_made(tmp_path: Path) -> None:
    text = AXOLOTL + "gradient_checkpointing: true\nactivation_offloading: true\n"
    found = job(tmp_path / "a.yml", text)
    changed = found.today.with_knobs(activation_checkpointing="none", offload="none")
    assert "activation_offloading" not in patched("same", found, found.offers[0], changed).text


def test_ring_attention_keeps_its_one_row(tmp_path: Path) -> None:
    found = job(tmp_path / "a.yml", AXOLOTL + "context_parallel_size: 2\n", gpu="h100:2")
    assert found.lock["micro_batch_size"] == 1


def test_a_reference_that_does_not_fit_is_named(tmp_path: Path) -> None:
    text = AXOLOTL.replace("micro_batch_size: 1", "micro_batch_size: 64") + "rl: dpo\n"
    text = text.replace("sequence_len: 512", "sequence_len: 16384")
    missing = estimate(job(tmp_path / "a.yml", text, gpu="t4"), fidelity="formula").shortfall
    assert missing is not None


@pytest.mark.parametrize("kind", ["GPTQ", "AWQ", "AQLM-2Bit-1x16"])
def test_an_adapter_on_a_checkpoint_quantised_otherwise_is_refused_not_priced_in_16_bit(
    tmp_path: Path, kind: str
) -> None:
    text = (
        f"model_name_or_path: TechxGenus/Meta-Llama-3-8B-Instruct-{kind}\nstage: sft\n"
        "finetuning_type: lora\ncutoff_len: 512\ndataset: a\nper_device_train_batch_size: 1\n"
    )
    with pytest.raises(InputError, match="stores its weights quantised by") as refused:
        job(tmp_path / "a.yaml", text)
    assert "name the model it was made from" in (refused.value.hint or "")


def test_pairs_are_cut_where_their_trainer_says_not_where_the_model_was_loaded(
    tmp_path: Path,
) -> None:
    text = (
        'model, tok = FastLanguageModel.from_pretrained("unsloth/Qwen2.5-0.5B", '
        "max_seq_length=4096, load_in_4bit=True)\n"
        "model = FastLanguageModel.get_peft_model(model, r=8)\n"
        "DPOTrainer(model, beta=0.1, max_length=1024, max_prompt_length=512, args=DPOConfig(\n"
        "    per_device_train_batch_size=2, max_steps=9))\n"
    )
    found = job(tmp_path / "a.py", text)
    assert (found.objective, found.max_length) == ("dpo", 1024)


@pytest.mark.parametrize(
    "cut",
    ["DataCollatorForRows(0, max_length=CUT)", "tokenizer(text, truncation=True, max_length=CUT)"],
)
def test_a_script_of_the_plain_trainer_is_cut_where_its_own_code_cuts(
    tmp_path: Path, cut: str
) -> None:
    text = (
        f'CUT = 384\nmodel = AutoModelForCausalLM.from_pretrained("{QWEN}")\nrows = {cut}\n'
        "Trainer(model=model, args=TrainingArguments(max_steps=9, per_device_train_batch_size=2))\n"
    )
    found = job(tmp_path / "a.py", text, **{"method.kind": "full"})
    assert found.max_length == 384


PRETRAIN = """\
model_name: SmolLM2-135M
tokenizer_dir: checkpoints/HuggingFaceTB/SmolLM2-135M
train:
  {global_batch_size: 64, micro_batch_size: 8, max_tokens: 13107200000000, max_seq_length: 2048}
"""


def test_litgpt_s_pretraining_names_its_model_and_its_tokens_make_steps(tmp_path: Path) -> None:
    found = job(tmp_path / "a.yaml", PRETRAIN)
    assert found.model.name == "HuggingFaceTB/SmolLM2-135M"
    assert found.steps == 13107200000000 // (64 * 2048)


def test_a_model_folder_that_is_not_there_is_an_unknown_model_with_what_it_may_be(
    tmp_path: Path,
) -> None:
    tune = TUNE.replace("tmp/Llama-3.2-1B-Instruct", "nowhere/Qwen2.5-0.6B")
    with pytest.raises(
        InputError, match=r"unknown model .*no such folder here.*Qwen2\.5-0\.5B"
    ) as no:
        job(tmp_path / "a.yaml", tune.replace("llama3_2.llama3_2_1b", "qwen2_5.builder"))
    assert "--set model=" in (no.value.hint or "")


@pytest.mark.parametrize("word", ["legacy", "disk", "hidden_states"])
def test_axolotl_s_ways_of_offloading_checkpoints_are_read_and_widen(
    tmp_path: Path, word: str
) -> None:
    more = f"gradient_checkpointing: true\nactivation_offloading: {word}\n"
    found = job(tmp_path / "a.yml", AXOLOTL + more)
    assert found.today.offload == "activations"
    assert f"activation_offloading {word}" in first_warning(found).casefold()


def test_offloading_beside_sharding_is_priced_without_it_and_says_so_first(tmp_path: Path) -> None:
    more = (
        "gradient_checkpointing: true\nactivation_offloading: true\nfsdp_config: "
        "{fsdp_version: 2}\n"
    )
    found = job(tmp_path / "a.yml", AXOLOTL + more, gpu="h100:2")
    assert found.today.offload == "none"
    assert "priced without it beside fsdp" in first_warning(found)
    alone = job(tmp_path / "a.yml", AXOLOTL + more, gpu="h100")
    assert alone.today.offload == "activations"


def test_compiling_beside_fused_kernels_is_priced_without_it_and_says_so_first(
    tmp_path: Path,
) -> None:
    more = "torch_compile: true\nliger_rms_norm: true\nliger_fused_linear_cross_entropy: true\n"
    plugin = "plugins: [axolotl.integrations.liger.LigerPlugin]\n"
    found = job(tmp_path / "a.yml", AXOLOTL + plugin + more)
    assert (found.today.compile, found.today.kernels) == ("off", "liger")
    assert "beside fused kernels" in first_warning(found)


SWIFT = """nproc_per_node=2
swift sft --model Qwen/Qwen2.5-7B-Instruct --train_type full --torch_dtype bfloat16 \\
    --dataset 'own/a#600' 'own/b#400' --split_dataset_ratio 0.1 \\
    --per_device_train_batch_size 2 --gradient_accumulation_steps $(expr 16 / $nproc_per_node) \\
    --model_author own --model_name helper --template qwen2_5 --deepspeed zero3_offload
"""


def test_ms_swifts_own_words_say_the_job(tmp_path: Path) -> None:
    found = job(tmp_path / "train.sh", SWIFT, "h100:2", rows=None)
    assert found.model.name == "Qwen/Qwen2.5-7B-Instruct"  # model_name is a name that is learned
    assert (found.rows, found.method.kind, found.global_batch_size) == (900, "full", 2 * 8 * 2)


def test_ms_swift_gets_the_words_that_every_version_of_it_has(tmp_path: Path) -> None:
    found = job(tmp_path / "train.sh", SWIFT, "h100:2", rows=None)
    wanted = found.today.with_knobs(activation_checkpointing="none", length_grouping="on")
    text = patched("same", found, found.offers[0], wanted).text
    assert "--gradient_checkpointing False" in text
    assert "--group_by_length True" in text


@pytest.mark.parametrize(
    "flag", ["--optimizer muon", "--freeze_parameters_ratio 0.5", "--sequence_parallel_size 4"]
)
def test_what_ms_swift_trains_otherwise_is_said_first(flag: str) -> None:
    words = f"swift sft --model Qwen/Qwen2.5-7B-Instruct --tuner_type full --dataset own/a {flag}"
    assert flag[2:].partition(" ")[0] in first_warning(command(words))


@pytest.mark.parametrize(
    "words",
    ["swift rlhf --rlhf_type dpo --model Qwen/Qwen2.5-7B --tuner_type full --dataset own/a",
     "swift pt --model Qwen/Qwen2.5-7B --tuner_type full --dataset own/a",
     "trl kto --model_name_or_path Qwen/Qwen2.5-7B --dataset_train_split train --use_peft false"],
)  # fmt: skip
def test_a_flags_value_is_not_taken_for_the_script(words: str) -> None:
    found = command(f"{words} --per_device_train_batch_size 2")
    assert (found.model.name, found.method.kind) == ("Qwen/Qwen2.5-7B", "full")


def test_a_step_of_ms_swift_takes_sixteen_rows_where_none_are_stated() -> None:
    words = "swift sft --model Qwen/Qwen2.5-7B-Instruct --dataset own/a --output_dir out"
    found = command(words)
    assert (found.global_batch_size, found.method.kind, found.method.rank) == (16, "lora", 8)


def test_adapters_by_rank_alone_are_no_llamafactory(tmp_path: Path) -> None:
    found = job(
        tmp_path / "own.yaml",
        "model_name_or_path: meta-llama/Llama-2-7b-hf\nuse_lora: true\nlora_rank: 64\n"
        "lora_alpha: 16\nmax_seq_length: 4096\nper_device_train_batch_size: 1\n"
        "gradient_accumulation_steps: 16\nnum_train_epochs: 5\noutput_dir: out\n",
    )
    assert (found.origin.trainer if found.origin else "", found.max_length) == ("trl", 4096)
    assert found.method.rank == 64


def test_a_file_of_two_objectives_is_refused_with_both_keys(tmp_path: Path) -> None:
    text = f"{AXOLOTL}rl: dpo\nreward_model: true\n"
    with pytest.raises(InputError, match="says two objectives") as refused:
        job(tmp_path / "a.yml", text)
    assert "reward_model: true" in refused.value.message
    assert "rl: 'dpo'" in refused.value.message
    assert "--as" in refused.value.hint


def notebook(*cells: str) -> str:
    made = [{"cell_type": "code", "source": cell.splitlines(keepends=True)} for cell in cells]
    return json.dumps({"nbformat": 4, "cells": [{"cell_type": "markdown", "source": "#"}, *made]})


def test_a_notebook_is_read_as_the_script_that_its_code_cells_are(tmp_path: Path) -> None:
    cells = (
        '!pip install unsloth \\\n   "trl>=1"\n', "%%bash\nnvidia-smi | head\n", "not python\n",
        "%%capture\nimport torch\nif torch.cuda.is_available():\n    !nvidia-smi\n", NOTEBOOK,
    )  # fmt: skip
    found = job(tmp_path / "a.ipynb", notebook(*cells))
    assert (found.model.name, found.max_length, found.method.rank) == (QWEN, 4096, 16)
    wanted = found.today.with_knobs(micro_batch_size=1, gradient_accumulation_steps=8)
    back = patched("same", found, found.offers[0], wanted)
    assert back.name == "a.py"
    assert "per_device_train_batch_size = 1" in back.text
    compile(back.text, "a.py", "exec")
    assert "# !pip install unsloth" in back.text


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "no whole notebook"), ('{"worksheets": []}', "no cells"), ('{"cells": []}', "code cell"),
     ('{"cells": [3, {"cell_type": "code", "source": {"a": 1}}]}', "code cell")],
)  # fmt: skip
def test_what_is_no_notebook_is_refused_by_name(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        job(tmp_path / "a.ipynb", text)
    assert "a.ipynb" in refused.value.message
    assert said in refused.value.message


OPTIONS = """\
import argparse
from dataclasses import dataclass, field
parser = argparse.ArgumentParser()
parser.add_argument("--lora-r", type=int, default=24)
parser.add_argument("--epochs", type=float, default=3)
parser.add_argument("--quantised", action="store_true")
args = parser.parse_args()


@dataclass
class Settings:
    model_name: str = "Qwen/Qwen2.5-0.5B"
    batch: int = field(default=6, metadata={"help": "rows"})


SIZES = {"run": {"total": 48}, "length": 768}
settings = Settings()


def main(accumulation: int = 5):
    model = AutoModelForCausalLM.from_pretrained(settings.model_name)
    if args.quantised:
        bnb = BitsAndBytesConfig(load_in_4bit=True)
    SFTTrainer(model=model, peft_config=LoraConfig(r=args.lora_r), args=SFTConfig(
        per_device_train_batch_size=settings.batch, num_train_epochs=args.epochs,
        gradient_accumulation_steps=SIZES["run"]["total"] // settings.batch,
        max_length=SIZES.get("length", 4096))).train()
"""


def test_a_script_s_own_defaults_are_read_and_said(tmp_path: Path) -> None:
    made = job(tmp_path / "train.py", OPTIONS)
    assert made.model.name in QWEN
    assert (made.method.rank, made.method.base) == (24, "16bit")
    assert (made.epochs, made.max_length, made.global_batch_size) == (3, 768, 6 * 8)
    said = [each for each in made.origin.uncounted if "own defaults" in each.why]
    assert "lora_r 24" in said[0].value
    assert "per_device_train_batch_size 6" in said[0].value


@pytest.mark.parametrize(
    "more",
    [
        "settings.batch = read()\n",
        "args.lora_r = int(read())\n",
        'SIZES["run"] = read()\n',
        'parser.add_argument("--epochs", default=9)\n',
    ],
)
def test_a_default_that_the_script_changes_is_not_taken(tmp_path: Path, more: str) -> None:
    with pytest.raises(InputError, match="must be written out"):
        job(tmp_path / "train.py", OPTIONS + more)


def test_a_class_of_settings_made_with_other_values_has_those(tmp_path: Path) -> None:
    text = OPTIONS.replace("settings = Settings()", "settings = Settings(batch=12)")
    assert job(tmp_path / "train.py", text).global_batch_size == 12 * 4


def test_arguments_made_for_nothing_are_not_the_training_s(tmp_path: Path) -> None:
    text = '_ = SFTConfig(".")\n' + OPTIONS
    assert job(tmp_path / "train.py", text).global_batch_size == 48


def test_a_script_without_a_word_of_adapters_trains_in_full(tmp_path: Path) -> None:
    text = f"""\
model = AutoModelForCausalLM.from_pretrained("{QWEN}")
Trainer(model, TrainingArguments("out", per_device_train_batch_size=2, num_train_epochs=1)).train()
"""
    assert job(tmp_path / "train.py", text).method.kind == "full"


def test_a_checkpoint_dir_alone_is_not_litgpt_s(tmp_path: Path) -> None:
    text = AXOLOTL + "optimizer: adamw_torch\ncheckpoint_dir: ./runs\nlora_r: 8\nadapter: lora\n"
    assert job(tmp_path / "a.yaml", text).origin.trainer == "axolotl"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "text",
    [
        "python finetune_dpo_trainer.py --use_lora True",
        "python train.py --use_lora True --use_dpo True --dpo_beta 0.1",
    ],
)
def test_a_program_of_pairs_is_priced_as_pairs(text: str) -> None:
    more = f" --model_name_or_path {QWEN} --per_device_train_batch_size 2 --num_train_epochs 1"
    assert command(text + more).objective == "dpo"


def test_a_programs_own_num_epochs_makes_no_axolotl_of_its_arguments() -> None:
    values = {
        "model_name_or_path": "Qwen/Qwen2.5-7B", "max_seq_length": 2048, "num_epochs": 2,
        "per_device_train_batch_size": 1, "gradient_accumulation_steps": 16,
    }  # fmt: skip
    found = detect(values, "dpo.yaml")
    assert found.name == "trl"
    read = found.read(values, "dpo.yaml").values
    assert (read["model"], read["data"]["max_length"], read["train"]["epochs"]) == (
        "Qwen/Qwen2.5-7B", 2048, 2.0,
    )  # fmt: skip
    axolotl = detect({"base_model": "Qwen/Qwen2.5-7B", "num_epochs": 2, "micro_batch_size": 1}, "a")
    assert axolotl.name == "axolotl"


LAUNCHED = (
    "!torchrun --nproc_per_node=2 train.py --model_name_or_path Qwen/Qwen2.5-0.5B \\\n"
    "    --use_peft --lora_r 16 --per_device_train_batch_size 4 --max_length 1024\n"
)


@pytest.mark.parametrize("cell", [LAUNCHED, f"%%bash\ncd work\n{LAUNCHED[1:]}"])
def test_a_notebook_that_trains_by_a_command_is_the_script_of_its_commands(
    tmp_path: Path, cell: str
) -> None:
    written = "%%writefile train.py\nargs = SFTConfig(max_length=77)\n"
    found = job(tmp_path / "a.ipynb", notebook("!pip install trl\n", written, "x = 1\n", cell))
    assert (found.max_length, found.global_batch_size, found.method.rank) == (1024, 8, 16)
    wanted = found.today.with_knobs(micro_batch_size=2, gradient_accumulation_steps=2)
    back = patched("same", found, found.offers[0], wanted)
    assert back.name == "a.sh"
    assert "--per_device_train_batch_size 2" in back.text
    assert "pip install trl" in back.text


def test_a_notebook_with_arguments_of_its_own_is_no_command(tmp_path: Path) -> None:
    found = job(tmp_path / "a.ipynb", notebook(NOTEBOOK, LAUNCHED))
    assert (found.max_length, found.method.rank) == (4096, 16)


def test_rows_are_cut_where_a_tokenizer_of_any_name_cuts_them(tmp_path: Path) -> None:
    text = f"""\
LENGTH = 1536
tok = AutoTokenizer.from_pretrained("{QWEN}")
model = AutoModelForCausalLM.from_pretrained("{QWEN}")
rows = rows.map(lambda row: tok(row["text"], truncation=True, max_length=LENGTH))
model = get_peft_model(model, LoraConfig(r=8))
args = TrainingArguments(per_device_train_batch_size=1)
Trainer(model=model, args=args, train_dataset=rows).train()
model.generate(**tok("hello"), max_length=64)
"""
    assert job(tmp_path / "train.py", text).max_length == 1536


def test_a_family_without_a_fused_kernel_trains_without_and_that_can_run(tmp_path: Path) -> None:
    arguments = "num_train_epochs: 1\nper_device_train_batch_size: 2\nbf16: true\nmax_steps: -1\n"
    found = job(
        tmp_path / "args.yaml", f"model_name_or_path: bigscience/bloom-560m\n{arguments}",
        **{"method.kind": "full", "data.max_length": "512"},
    )  # fmt: skip
    assert found.today is not None
    assert found.today.attention == "eager"
    assert not any("cannot run" in w for w in estimate(found, fidelity="formula").warnings)


def test_a_key_of_trls_configs_alone_makes_a_file_trls() -> None:
    arguments = {"output_dir": "o", "per_device_train_batch_size": 2, "num_train_epochs": 1}
    plain, own = detect(arguments, "a"), detect({**arguments, "completion_only_loss": True}, "a")
    assert plain is not None
    assert own is not None
    assert (plain.name, own.name) == ("hf", "trl")


def test_a_config_whose_flags_go_to_the_plain_trainer_is_no_sign(tmp_path: Path) -> None:
    script = f"""\
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments
from trl import RewardConfig
(own,) = HfArgumentParser(RewardConfig).parse_args_into_dataclasses()
model = AutoModelForCausalLM.from_pretrained("{QWEN}")
args = TrainingArguments("out", per_device_train_batch_size=2, num_train_epochs=1)
rows = tokenizer(texts, truncation=True, max_length=256)
Trainer(model=model, args=args, train_dataset=rows).train()
"""
    assert job(tmp_path / "sft.py", script).objective == "sft"
    reward = script.replace("import RewardConfig", "import RewardConfig, RewardTrainer")
    reward = reward.replace("Trainer(model", "RewardTrainer(model")
    assert job(tmp_path / "sft.py", reward).objective == "reward"


@pytest.mark.parametrize(
    ("optim", "holds"), [("adamw_torch", True), ("paged_adamw_32bit", False), ("adafactor", False)]
)
def test_paged_and_factored_states_take_none_of_the_device(
    tmp_path: Path, optim: str, holds: bool
) -> None:
    text = AXOLOTL + f"optimizer: {optim}\nbf16: true\n"
    stated = job(tmp_path / "a.yml", text)
    found = estimate(stated, fidelity="formula").row.memory_bytes.optimizer
    two = 2.0 * 2.0 * 494_032_768  # of Qwen2.5-0.5B, in 16 bit
    assert found >= two if holds else found < 0.05 * two
    assert stated.software.no_moments is not holds
    other = job(tmp_path / "a.yml", text, optimizer="adamw_torch_fused")
    assert other.software.no_moments is False


@pytest.mark.parametrize("older", [True, False])
def test_the_trainer_s_older_switch_for_adafactor_wins_over_its_optimizer(
    tmp_path: Path, older: bool
) -> None:
    arguments = {
        "model_name_or_path": QWEN, "output_dir": "o", "per_device_train_batch_size": 1,
        "num_train_epochs": 1, "optim": "adamw_torch", "adafactor": older,
    }  # fmt: skip
    more = {"method.kind": "full", "data.max_length": "512"}
    found = job(tmp_path / "a.json", json.dumps(arguments), **more)
    assert found.software.no_moments is older


def test_the_traced_step_holds_no_states_either(tmp_path: Path) -> None:
    found = job(tmp_path / "a.yml", AXOLOTL + "optimizer: adafactor\nbf16: true\n")
    assert request_for(found, found.today, 512).optimizer == "paged_adamw_8bit"


def test_metas_own_folder_inside_of_a_checkpoint_is_none_of_its_name(tmp_path: Path) -> None:
    text = TUNE.replace("Llama-3.2-1B-Instruct}", "Llama-3.2-1B-Instruct/original/}")
    assert job(tmp_path / "a.yaml", text).model.name == job(tmp_path / "b.yaml", TUNE).model.name


PREFERENCES = """\
from transformers import AutoModelForCausalLM
from trl import DPOConfig, DPOTrainer
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B"%s)
args = DPOConfig(output_dir="out", max_steps=10)
DPOTrainer(model=model, args=args, train_dataset=data).train()
"""


@pytest.mark.parametrize(
    ("trl", "transformers", "dtype", "expected"),
    [
        ("0.16.0", "4.50.0", "", ("32bit", "fp32", "none")),
        ("0.16.0", "4.50.0", ", torch_dtype=torch.bfloat16", ("16bit", "bf16", "none")),
        ("0.20.0", "4.50.0", "", ("32bit", "bf16", "none")),
        ("0.22.2", "4.50.0", "", ("32bit", "bf16", "full")),
        ("1.14.0", "5.10.0", "", ("16bit", "bf16", "full")),
    ],
)
def test_a_stated_release_brings_its_own_defaults(
    tmp_path: Path, trl: str, transformers: str, dtype: str, expected: tuple[str, ...]
) -> None:
    versions = {"software.trl": trl, "software.transformers": transformers}
    found = job(tmp_path / "a.py", PREFERENCES % dtype, **versions)
    now = found.today
    assert (found.method.base, now.precision, now.activation_checkpointing) == expected


LLAMA_FACTORY = f"""\
model_name_or_path: {QWEN}
stage: sft
do_train: true
finetuning_type: lora
template: qwen
dataset: own
cutoff_len: 512
bf16: true
"""
LAUNCHED = """\
distributed_type: DEEPSPEED
deepspeed_config: {zero_stage: 3, zero3_init_flag: %s}
num_machines: 1
num_processes: 2
"""


NAMES_AN_OPTIMIZER = '{"zero_optimization": {"stage": 2}, "optimizer": {"type": "AdamW"}}'


@pytest.mark.parametrize(
    ("line", "config", "versions", "optimizer"),
    [
        ("", "", {"transformers": "4.41.2"}, "adamw_torch"),
        ("", "", {"torch": "2.5.1"}, "adamw_torch"),
        ("", "", {"transformers": "4.57.1"}, "adamw_torch_fused"),
        ("", "", {}, "adamw_torch_fused"),
        ("optim: adamw_bnb_8bit\n", "", {"transformers": "4.41.2"}, "adamw_bnb_8bit"),
        ("", NAMES_AN_OPTIMIZER, {"transformers": "4.41.2"}, "adamw_torch_fused"),
    ],
)
def test_a_stated_release_brings_the_trainers_optimizer(
    tmp_path: Path, line: str, config: str, versions: dict[str, str], optimizer: str
) -> None:
    (tmp_path / "a.yaml").write_text(LLAMA_FACTORY + line)
    (tmp_path / "ds.json").write_text(config)
    typed = {f"software.{name}": own for name, own in versions.items()}
    beside = (str(tmp_path / "ds.json"),) if config else ()
    given = Overrides(("h100:2",), set_values=typed, stated={"data.rows": 1000}, beside=beside)
    (found,) = load_jobs(tmp_path / "a.yaml", given)
    assert found.job.today.optimizer == optimizer


@pytest.mark.parametrize(("flag", "whole"), [("false", True), ("true", False)])
def test_llama_factory_loads_the_whole_model_where_zero3_does_not_load_it(
    tmp_path: Path, flag: str, whole: bool
) -> None:
    (tmp_path / "a.yaml").write_text(LLAMA_FACTORY)
    beside = tmp_path / "accelerate.yaml"
    beside.write_text(LAUNCHED % flag)
    given = Overrides(("h100:2",), stated={"data.rows": 1000}, beside=(str(beside),))
    (found,) = load_jobs(tmp_path / "a.yaml", given)
    assert found.job.software.loads_whole is whole
    step = Step.of(found.job, memory_columns(offer__count=2, sharding="zero3"))
    loaded = float(step.static.loaded[0])
    assert loaded == (pytest.approx(2.0 * 494_032_768, rel=0.01) if whole else 0.0)
    assert ("loading" in instants(step)) is whole


@pytest.mark.parametrize("component", ["llama3_2_1b", "lora_llama3_2_1b"])
def test_a_recipe_in_fp32_holds_every_weight_in_fp32(tmp_path: Path, component: str) -> None:
    text = TUNE.replace("llama3_2_1b}", f"{component}, lora_rank: 8, lora_attn_modules: [q_proj]}}")
    found = job(tmp_path / "a.yaml", f"{text}dtype: fp32\n")
    assert found.method.base == "32bit"
    assert "cannot run" not in warnings(found)


def test_a_script_that_trains_all_weights_under_fp16_loads_them_in_fp32(tmp_path: Path) -> None:
    text = f"""\
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("{QWEN}")
args = TrainingArguments("out", per_device_train_batch_size=1, num_train_epochs=1, fp16=True)
Trainer(model=model, args=args).train()
"""
    found = job(tmp_path / "a.py", text)
    assert found.method.base == "32bit"
    assert "cannot run" not in warnings(found)
    plain = job(tmp_path / "b.py", text.replace("fp16", "bf16"))
    assert plain.method.base == "16bit"


def test_axolotl_packs_no_preferences_whatever_its_file_says(tmp_path: Path) -> None:
    more = "sample_packing: true\nrl: dpo\nadapter: lora\nlora_r: 8\nlora_target_linear: true\n"
    found = job(tmp_path / "a.yml", f"{AXOLOTL}{more}")
    assert found.objective == "dpo"
    assert found.today.packing == "off"


@pytest.mark.parametrize(("packed", "length"), [(256, 256), (2048, 512)])
def test_axolotl_s_old_word_for_packing_packs_to_no_more_than_the_length_of_a_row(
    tmp_path: Path, packed: int, length: int
) -> None:
    found = job(tmp_path / "a.yml", f"{AXOLOTL}max_packed_sequence_len: {packed}\n")
    assert found.today is not None
    assert found.today.packing == "on"
    assert found.max_length == length


SWIFT_YAML = f"""\
model: {QWEN}
tuner_type: lora
dataset: [a]
max_length: 1024
per_device_train_batch_size: 1
gradient_accumulation_steps: 1
"""


@pytest.mark.parametrize(("packing", "length"), [("true", 4096), ("false", 1024)])
def test_ms_swift_packs_to_a_length_of_its_own(tmp_path: Path, packing: str, length: int) -> None:
    text = f"{SWIFT_YAML}packing: {packing}\npacking_length: 4096\n"
    assert job(tmp_path / "s.yml", text).max_length == length


def test_a_checkpoint_without_states_is_read_priced_and_written_again(tmp_path: Path) -> None:
    text = AXOLOTL + "optimizer: adamw_torch_fused\nbf16: true\n"
    whole, alone = (
        job(tmp_path / "a.yml", text + more) for more in ("", "save_only_model: true\n")
    )
    assert not whole.software.saves_model_only
    assert alone.software.saves_model_only
    first, then = (
        estimate(each, fidelity="formula").row.time_s.checkpoint for each in (whole, alone)
    )
    assert then < 0.9 * first


ADAPTED = f"""\
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments  # torch_dtype: none
model = AutoModelForCausalLM.from_pretrained("{QWEN}"MORE)
model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj"]))
args = TrainingArguments("out", per_device_train_batch_size=1, num_train_epochs=1, bf16=True, WHEN)
Trainer(model=model, args=args).train()
"""


@pytest.mark.parametrize(
    ("when", "more", "base"),
    [
        ('evaluation_strategy="no"', "", "32bit"),
        ('evaluation_strategy="no"', ", torch_dtype=torch.bfloat16", "16bit"),
        ('eval_strategy="no"', "", "16bit"),
        ("warmup_ratio=0.1", "", "16bit"),  # which transformers 5 had as well
    ],
)
def test_arguments_that_transformers_5_has_no_more_load_as_transformers_4_does(
    tmp_path: Path, when: str, more: str, base: str
) -> None:
    found = job(tmp_path / "a.py", ADAPTED.replace("WHEN", when).replace("MORE", more))
    assert found.method.base == base


@pytest.mark.parametrize(("flag", "base"), [("", "32bit"), (" --torch_dtype bfloat16", "16bit")])
def test_a_script_that_is_started_loads_as_its_flags_release_does(
    tmp_path: Path, flag: str, base: str
) -> None:
    (tmp_path / "train.py").write_text(
        "from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer\n"
        "from transformers import TrainingArguments\nfrom peft import LoraConfig, get_peft_model\n"
        "args, = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()\n"
        f'model = AutoModelForCausalLM.from_pretrained("{QWEN}")\n'
        "model = get_peft_model(model, LoraConfig(r=8, target_modules=['q_proj']))\n"
        "Trainer(model=model, args=args).train()\n"
    )
    flags = "--per_device_train_batch_size 1 --num_train_epochs 1 --bf16 true"
    start = f"python train.py {flags} --evaluation_strategy no{flag}\n"
    assert job(tmp_path / "run.sh", start).method.base == base
