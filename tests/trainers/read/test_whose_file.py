"""Whose file it is and what it is called: programs with settings of their own, llama-recipes'."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from autotune.app.estimate import estimate
from autotune.app.runs.user_file import patched
from autotune.cost.memory.experts import experts_fused
from autotune.domain.errors import InputError
from autotune.trainers.registry import detect
from tests.commandline import typed
from tests.strangers import command, file, notebook, warnings

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.domain.job import Job

QWEN = "Qwen/Qwen2.5-0.5B"
LLAMA = "meta-llama/Llama-3.1-8B"
RECIPE = f"finetuning.py --model_name {LLAMA} --output_dir out"


def knobs(job: Job) -> dict[str, object]:
    return dict(job.origin.knobs)


# --- llama-recipes


def test_llama_recipes_flags_are_read_with_its_own_defaults() -> None:
    found = command(f"torchrun --nproc_per_node 4 {RECIPE} --enable_fsdp --use_peft")
    said = knobs(found)
    assert (said["micro_batch_size"], said["sharding"], said["packing"]) == (4, "fsdp", "on")
    assert said["activation_checkpointing"] == "full"
    assert (found.max_length, found.method.rank, found.method.base) == (4096, 8, "16bit")
    assert found.method.targets == ("q_proj", "v_proj")
    assert found.epochs == 3
    assert found.origin.devices == 4


@pytest.mark.parametrize(
    ("flags", "base"),
    [("--quantization 4bit", "nf4"), ("--quantization", "int8"), ("--use_fp16", "16bit")],
)
def test_llama_recipes_quantises_as_its_word_says(flags: str, base: str) -> None:
    text = f"python {RECIPE} --use_peft --peft_method lora --batch_size_training 1 {flags}"
    found = command(text)
    assert found.method.base == base
    assert knobs(found)["activation_checkpointing"] == "none"  # FSDP alone recomputes


def test_rows_that_llama_recipes_pads_make_batches_of_one_length() -> None:
    text = f"python {RECIPE} --use_peft --batching_strategy padding --context_length 512"
    found = command(text + " --num_epochs 1 --gradient_accumulation_steps 8")
    said = knobs(found)
    assert (said["packing"], said["length_grouping"]) == ("off", "on")
    assert (found.max_length, said["gradient_accumulation_steps"]) == (512, 8)


def test_what_fsdp_of_llama_recipes_is_told_counts() -> None:
    start = f"torchrun --nproc_per_node 2 {RECIPE} --enable_fsdp --batch_size_training 2"
    plain = command(f"{start} --fsdp_config.fsdp_activation_checkpointing False")
    assert knobs(plain)["activation_checkpointing"] == "none"
    assert plain.method.kind == "full"
    other = command(f"{start} --fsdp_config.sharding_strategy ShardingStrategy.NO_SHARD")
    assert "sharding_strategy" in warnings(other)


def test_another_adapter_of_llama_recipes_is_said() -> None:
    assert "prefix" in warnings(command(f"python {RECIPE} --use_peft --peft_method prefix"))


def test_flags_of_llama_recipes_stay_as_they_are(tmp_path: Path) -> None:
    text = f"torchrun --nproc_per_node 2 {RECIPE} --enable_fsdp --batch_size_training 2\n"
    found = file(tmp_path / "run.sh", text)
    wanted = found.today.with_knobs(micro_batch_size=1, gradient_accumulation_steps=2)
    assert patched("same", found, found.offers[0], wanted).text.strip() == text.strip()


# --- settings of a program of people's own


TRAIN = """\
import yaml
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer
from peft import LoraConfig
cfg = yaml.safe_load(open("own.yaml"))
model = AutoModelForCausalLM.from_pretrained(cfg["model_name_or_path"])
peft_config = LoraConfig(r=cfg["lora_rank"], target_modules=["q_proj"])
args = SFTConfig("out", per_device_train_batch_size=cfg["per_device_train_batch_size"],
                 num_train_epochs=cfg["num_train_epochs"], max_length=cfg["cutoff_len"],
                 gradient_checkpointing=False)
SFTTrainer(model, args=args, peft_config=peft_config, train_dataset=rows).train()
"""
OWN = (
    f"model_name_or_path: {QWEN}\nlora_rank: 4\nper_device_train_batch_size: 3\n"
    "num_train_epochs: 2\ncutoff_len: 256\n"
)


def test_settings_in_a_trainers_words_are_those_of_the_script_that_is_started(
    tmp_path: Path,
) -> None:
    (tmp_path / "src" / "train").mkdir(parents=True)
    (tmp_path / "src" / "train" / "train.py").write_text(TRAIN)
    (tmp_path / "own.yaml").write_text(OWN)
    found = file(tmp_path / "run.sh", "python src/train/train.py --config own.yaml\n")
    assert found.origin.trainer == "trl"
    assert knobs(found)["activation_checkpointing"] == "none"
    assert (found.method.rank, found.max_length) == (4, 256)


def test_a_file_of_settings_by_itself_is_asked_for_with_its_script(tmp_path: Path) -> None:
    text = "lora: {r: 8}\ntraining: {per_device_train_batch_size: 2, num_train_epochs: 1}\n"
    with pytest.raises(InputError) as error:
        file(tmp_path / "own.yaml", text)
    assert "the script that loads it" in str(error.value.hint)


# --- what an error calls it


def test_a_notebook_and_a_page_are_called_by_their_own_names(tmp_path: Path) -> None:
    code = 'args = TrainingArguments("o", per_device_train_batch_size=2, num_train_epochs=1)\n'
    with pytest.raises(InputError, match=r"a\.ipynb does not say the model"):
        file(tmp_path / "a.ipynb", notebook(code + "Trainer(model=model, args=args).train()"))
    page = "```bash\npython train.py --per_device_train_batch_size 2 --num_train_epochs 1\n```\n"
    with pytest.raises(InputError, match=r"README\.md does not say the model"):
        file(tmp_path / "README.md", page)


# --- what else a file leaves open


def test_a_batch_of_evaluation_that_a_shell_decides_stops_nothing(tmp_path: Path) -> None:
    text = (
        f"python train.py --model_name_or_path {QWEN} --use_peft False --num_train_epochs 1 "
        "--per_device_train_batch_size $BS --per_device_eval_batch_size $BS\n"
    )
    found = file(tmp_path / "run.sh", text, micro_batch_size="2")
    assert knobs(found)["micro_batch_size"] == 2


def test_ms_swift_2_names_the_model_and_the_way_otherwise(tmp_path: Path) -> None:
    text = (
        f"swift sft --model_type qwen --model_id_or_path {QWEN} --sft_type full --batch_size 2 "
        "--num_train_epochs 1 --max_length 512\n"
    )
    found = file(tmp_path / "run.sh", text)
    assert (found.model.name, found.method.kind) == (QWEN, "full")


UNSLOTH = """\
from unsloth import FastLanguageModel
model, tok = FastLanguageModel.from_pretrained("%s", max_seq_length=512, load_in_4bit=True)
%s
args = TrainingArguments("o", per_device_train_batch_size=2, num_train_epochs=1)
Trainer(model=model, args=args, train_dataset=rows).train()
"""
ADAPTED = 'model = FastLanguageModel.get_peft_model(model, r=8, target_modules=["q_proj"])'


def test_unsloth_without_adapters_is_said_first(tmp_path: Path) -> None:
    bare = file(tmp_path / "bare.py", UNSLOTH % (QWEN, ""))
    assert "get_peft_model" in warnings(bare)
    assert "get_peft_model" not in warnings(file(tmp_path / "a.py", UNSLOTH % (QWEN, ADAPTED)))


def test_unsloth_holds_the_experts_of_gpt_oss_in_4_bits(tmp_path: Path) -> None:
    ours = file(tmp_path / "a.py", UNSLOTH % ("unsloth/gpt-oss-20b", ADAPTED))
    assert not experts_fused(ours)
    held = estimate(ours, fidelity="formula").row.memory_bytes
    assert 11.0 < held.weights / 2**30 < 14.0  # a T4 held 12.8 GiB after loading
    mixture = file(tmp_path / "b.py", UNSLOTH % ("Qwen/Qwen3-30B-A3B", ADAPTED))
    assert experts_fused(mixture)


MAPPED = f"""\
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
def prepare(rows):
    return tokenizer(rows["text"], truncation=True, max_length=256, padding=%s)
rows = rows.map(%s, batched=%s)
model = AutoModelForCausalLM.from_pretrained("{QWEN}")
args = TrainingArguments("out", per_device_train_batch_size=2, num_train_epochs=1)
Trainer(model=model, args=args, train_dataset=rows).train()
"""


@pytest.mark.parametrize(
    ("padding", "function", "batched", "filled"),
    [
        ("True", "prepare", "True", True),
        ('"longest"', "lambda each: prepare(each)", "True", True),
        ("True", "prepare", "False", False),
        ("False", "prepare", "True", False),
    ],
)
def test_rows_filled_up_where_they_are_mapped_in_batches_stay_so(
    tmp_path: Path, padding: str, function: str, batched: str, *, filled: bool
) -> None:
    found = file(
        tmp_path / "a.py", MAPPED % (padding, function, batched), **{"method.kind": "full"}
    )
    assert (found.padding == "max_length") is filled
    assert ("mapped together" in warnings(found)) is filled


FOUR_BITS = f"""\
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments
held = BitsAndBytesConfig(load_in_4bit=True%s)
model = AutoModelForCausalLM.from_pretrained("{QWEN}", quantization_config=held)
model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj"]))
rows = rows.map(lambda row: tokenizer(row["text"], truncation=True, max_length=256))
args = TrainingArguments("out", per_device_train_batch_size=2, num_train_epochs=1%s)
Trainer(model=model, args=args, train_dataset=rows).train()
"""


@pytest.mark.parametrize(
    ("held", "given", "slow"),
    [
        ("", "", True),
        (", bnb_4bit_compute_dtype=torch.float32", "", True),
        (", bnb_4bit_compute_dtype=torch.bfloat16", "", False),
        ("", ", bf16=True", False),
        ("", ", bf16=torch.cuda.is_bf16_supported()", False),
    ],
)
def test_4_bit_weights_that_are_multiplied_in_fp32_are_said(
    tmp_path: Path, held: str, given: str, *, slow: bool
) -> None:
    found = file(tmp_path / "a.py", FOUR_BITS % (held, given))
    assert ("multiplied in fp32" in warnings(found)) is slow
    assert found.software.fp32_products is slow


def test_all_of_ms_swift_2_is_every_linear_layer(tmp_path: Path) -> None:
    text = f"swift sft --model_id_or_path {QWEN} --sft_type lora --lora_target_modules ALL "
    found = file(tmp_path / "run.sh", text + "--batch_size 1 --num_train_epochs 1\n")
    assert len(found.method.targets) == 7


OF_2 = f"swift sft --model_id_or_path {QWEN} --batch_size 2 --gradient_accumulation_steps 4 "


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--sft_type full --deepspeed default-zero3", {"sharding": "zero3"}),
        ("--sft_type full --deepspeed zero3-offload", {"offload": "optimizer"}),
        ("--sft_type lora --use_flash_attn true", {"attention": "flash_attention_2"}),
        ("--sft_type lora --dtype fp16", {"precision": "fp16"}),
        ("--sft_type lora --dtype AUTO", {}),
    ],
)
def test_ms_swift_2_has_words_and_defaults_of_its_own(
    tmp_path: Path, flags: str, said: dict[str, object]
) -> None:
    found = file(tmp_path / "run.sh", f"NPROC_PER_NODE=2 {OF_2}{flags}\n", "h100:2")
    assert {knob: knobs(found)[knob] for knob in said} == said
    assert (found.epochs, found.max_length, found.rows, found.held_out) == (1.0, 2048, 990, 10)
    assert found.method.targets in {(), ("q_proj", "k_proj", "v_proj")}


def test_a_config_of_ms_swift_that_is_not_here_goes_by_its_name(tmp_path: Path) -> None:
    text = f"swift sft --model {QWEN} --train_type full --max_length 512 --deepspeed ds/z3.json\n"
    found = file(tmp_path / "run.sh", f"NPROC_PER_NODE=2 {text}", "h100:2")
    assert knobs(found)["sharding"] == "zero3"
    assert "no such file is found" in warnings(found)


def test_rows_of_another_data_set_evaluate_in_ms_swift(tmp_path: Path) -> None:
    text = f"swift sft --model {QWEN} --train_type lora --max_length 512 --val_dataset own/b\n"
    found = file(tmp_path / "run.sh", text)
    assert found.evaluation is not None
    assert (found.evaluation.every_steps, found.rows) == (500, 1000)


IN_FP32 = f"""\
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("{QWEN}"%s)
rows = rows.map(lambda row: tokenizer(row["text"], truncation=True, max_length=256))
args = TrainingArguments("out", per_device_train_batch_size=2, num_train_epochs=1%s)
Trainer(model=model, args=args, train_dataset=rows).train()
"""
FP32 = ", torch_dtype=torch.float32"


@pytest.mark.parametrize(
    ("loaded", "given", "precision"),
    [
        (FP32, "", "fp32"),
        (FP32, ", bf16=True", "bf16"),
        (FP32, ", bf16=torch.cuda.is_bf16_supported()", "bf16"),
        (", torch_dtype=torch.bfloat16", "", "bf16"),
    ],
)
def test_fp32_weights_without_mixed_precision_are_multiplied_in_fp32(
    tmp_path: Path, loaded: str, given: str, precision: str
) -> None:
    found = file(tmp_path / "a.py", IN_FP32 % (loaded, given))
    assert found.today.precision == precision


def test_a_launcher_that_switches_mixed_precision_on_decides(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(IN_FP32 % (FP32, ""))
    start = "accelerate launch --num_processes 1 %strain.py --per_device_train_batch_size 2\n"
    found = file(tmp_path / "run.sh", start % "--mixed_precision bf16 ")
    assert found.today.precision == "bf16"


@pytest.mark.parametrize("model", ["model_name", "model_args.model_name_or_path"])
def test_arguments_in_sections_of_a_command_are_read(tmp_path: Path, model: str) -> None:
    text = (
        f"python sft.py --{model} {QWEN} --max_seq_length 512 --training_args.max_steps -1 "
        "--training_args.num_train_epochs 2 --training_args.per_device_train_batch_size 4 "
        "--peft_config.r 64 --peft_config.target_modules q_proj v_proj\n"
    )
    found = file(tmp_path / "run.sh", text)
    assert (knobs(found)["micro_batch_size"], found.epochs, found.max_length) == (4, 2, 512)
    assert (found.method.rank, found.method.targets) == (64, ("q_proj", "v_proj"))
    wanted = found.today.with_knobs(micro_batch_size=2, gradient_accumulation_steps=2)
    assert patched("same", found, found.offers[0], wanted).text == text


def test_sections_of_a_programs_own_file_are_none_of_a_trainers(tmp_path: Path) -> None:
    text = f"model: {{name: {QWEN}}}\ntraining_args: {{num_train_epochs: 1, max_steps: 5}}\n"
    with pytest.raises(InputError, match="neither a job file nor"):
        file(tmp_path / "own.yaml", text)


def test_what_a_programs_own_sections_say_in_a_trainers_words_is_read(tmp_path: Path) -> None:
    text = (
        f"python sft.py --model_args.model_name_or_path {QWEN} --data_args.max_seq_length 768 "
        "--training_args.per_device_train_batch_size 4 --training_args.num_train_epochs 1 "
        "--script_args.sliding_depth 3 --eval_args.max_length 9 --peft_args.r 4\n"
    )
    found = file(tmp_path / "run.sh", text)
    assert (found.max_length, found.method.rank) == (768, 4)
    assert "script_args.sliding_depth" in warnings(found)


@pytest.mark.parametrize(
    ("command_line", "wanted"),
    [
        (("torchrun -m verl.trainer.fsdp_sft_trainer data.train_batch_size=256 data.max_length=2048"
         f" data.micro_batch_size_per_gpu=4 model.partial_pretrain={QWEN} model.lora_rank=32"),
         (f"--method lora --model {QWEN} --max-length 2048 --global-batch 256"
         " --set micro_batch_size=4 --set method.rank=32 --set activation_checkpointing=full")),
        ((f"deepspeed --module openrlhf.cli.train_dpo --pretrain {QWEN} --max_len 1024"
         " --train_batch_size 64 --micro_train_batch_size 2 --max_epochs 1 --zero_stage 3"),
         (f"--method full --model {QWEN} --max-length 1024 --global-batch 64 --epochs 1"
         " --set micro_batch_size=2 --set activation_checkpointing=none --objective dpo")),
        ((f"python finetune.py --base_model {QWEN} --batch_size 128 --micro_batch_size 4"
         " --num_epochs 3 --cutoff_len 512 --lora_r 8"),
         (f"--method lora --set method.base=int8 --model {QWEN} --max-length 512"
         " --global-batch 128 --epochs 3 --set micro_batch_size=4 --set activation")),
    ],
)  # fmt: skip
def test_a_program_that_is_not_read_is_named_with_the_job_that_its_flags_state(
    tmp_path: Path, command_line: str, wanted: str
) -> None:
    with pytest.raises(InputError, match="whose words are not read") as refused:
        command(command_line)
    hint = str(refused.value.hint)
    assert all(part in hint for part in wanted.split(" --"))
    line = hint.partition("autotune ")[2].replace("N --gpu NAME", "100 --gpu h100")
    done = typed(*line.split(), home=tmp_path)
    assert "Settings: micro-batch" in done.stdout


def test_a_batch_beside_a_micro_batch_is_that_of_all_devices() -> None:
    text = f"python go.py --model_name_or_path {QWEN} --batch_size 128 --micro_batch_size 4"
    found = command(f"{text} --num_train_epochs 1 --lora_r 8 --cutoff_len 512")
    said = knobs(found)
    assert (said["micro_batch_size"], said["gradient_accumulation_steps"]) == (4, 32)


PICKS = """
import argparse
from transformers import AutoModelForCausalLM
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer
parser = argparse.ArgumentParser()
parser.add_argument("--kind", default="sft")
args = parser.parse_args()
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")
if args.kind == "sft":
    config = SFTConfig("o", per_device_train_batch_size=4, max_length=512, num_train_epochs=1)
    trainer = SFTTrainer(model, config)
else:
    config = DPOConfig("o", per_device_train_batch_size=2, max_length=256, num_train_epochs=2)
    trainer = DPOTrainer(model, args=config)
trainer.train()
"""


@pytest.mark.parametrize(("kind", "said"), [("sft", ("sft", 4, 512)), ("dpo", ("dpo", 2, 256))])
def test_an_option_that_picks_the_trainer_decides_what_is_priced(
    tmp_path: Path, kind: str, said: tuple[str, int, int]
) -> None:
    (tmp_path / "go_train.py").write_text(PICKS)
    text = f"for script in go_train.py other_train.py; do\n  python $script --kind {kind}\ndone\n"
    found = file(tmp_path / "run.sh", text)
    assert (found.objective, knobs(found)["micro_batch_size"], found.max_length) == said


PREPARED = """
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", torch_dtype="bfloat16"%s)
model = prepare_model_for_kbit_training(model)
model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj"]))
args = TrainingArguments("o", per_device_train_batch_size=2, num_train_epochs=1, bf16=True)
Trainer(model, args).train()
"""


@pytest.mark.parametrize(
    ("loaded", "base"),
    [
        ("", "32bit"),
        (", quantization_config=BitsAndBytesConfig(load_in_8bit=True)", "int8"),
    ],
)
def test_weights_that_are_prepared_for_few_bits_and_hold_16_are_widened(
    tmp_path: Path, loaded: str, base: str
) -> None:
    found = file(tmp_path / "a.py", PREPARED % loaded)
    assert found.method.base == base
    assert ("casts every 16-bit weight" in warnings(found)) == (base == "32bit")


STAGES = """
from transformers import AutoModelForCausalLM, TrainingArguments
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")
first = SFTTrainer(model, SFTConfig("o", per_device_train_batch_size=4, num_train_epochs=1))
first.train()
_Preferring = DPOTrainer
%s
"""


@pytest.mark.parametrize(
    "later",
    [
        "second = DPOTrainer(model, args=DPOConfig('o', num_train_epochs=2, beta=0.1))",
        "second = Trainer(model, TrainingArguments('o', max_steps=5), packing=True)",
    ],
)
def test_what_a_later_training_of_a_script_is_told_is_none_of_the_first(
    tmp_path: Path, later: str
) -> None:
    found = file(tmp_path / "a.py", STAGES % later)
    today = found.today
    assert (found.objective, today.micro_batch_size, today.packing) == ("sft", 4, "off")
    assert "trains again there" in warnings(found)


def test_a_length_that_a_script_sets_after_its_flags_is_said(tmp_path: Path) -> None:
    (tmp_path / "go.py").write_text(
        "from transformers import HfArgumentParser, Trainer, TrainingArguments\n"
        "training_args, = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()\n"
        "training_args.model_max_length = longest(rows)\nTrainer(model, training_args).train()\n"
    )
    text = f"python go.py --model_name_or_path {QWEN} --lora_r 8 --num_train_epochs 1"
    found = file(tmp_path / "run.sh", f"{text} --model_max_length 512 --output_dir o\n")
    assert "model_max_length computed" in warnings(found)


def test_a_fork_of_verl_is_known_by_its_words(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own/sft.py").write_text("import torch\n")
    text = f"torchrun -m own.sft data.train_batch_size=8 model.partial_pretrain={QWEN}\n"
    with pytest.raises(InputError, match="a command of verl"):
        file(tmp_path / "run.sh", text)


REPLACED = """
import torch
from transformers import AutoModelForCausalLM, TrainingArguments, Trainer
class OwnLinear(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.mlp = inner
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")
%s
args = TrainingArguments("o", per_device_train_batch_size=2, num_train_epochs=1, bf16=True)
Trainer(model, args).train()
"""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("model.model.layers[3].self_attn = OwnLinear(model.model.layers[3].self_attn)", True),
        ("setattr(model, 'lm_head', OwnLinear(model.lm_head))", True),
        ("setattr(model.config, 'use_cache', False)", False),
        ("model.config.use_cache = False", False),
    ],
)
def test_a_layer_that_a_script_puts_in_the_models_place_is_said(
    tmp_path: Path, line: str, said: bool
) -> None:
    found = file(tmp_path / "a.py", REPLACED % line)
    assert ("a layer of the script's own" in warnings(found)) == said


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--graph_model_path someone/roberta", True),
        (f"--language_model_path {QWEN}", False),
        ("--best_model_path out/best", False),
        ("--graph_model_path none", False),
    ],
)
def test_a_second_model_of_a_command_is_said(flag: str, said: bool) -> None:
    text = f"python go.py --model_name_or_path {QWEN} --per_device_train_batch_size 2 --lora_r 4"
    found = command(f"{text} --num_train_epochs 1 --max_seq_length 512 {flag}")
    assert ("another model beside" in warnings(found)) == said


@pytest.mark.parametrize(
    ("adapted", "count", "said"), [("full", 1, True), ("full", 2, False), ("lora", 1, False)]
)
def test_masters_that_deepspeed_keeps_on_one_device_are_said(
    adapted: str, count: int, said: bool
) -> None:
    text = f"llamafactory-cli train --stage sft --do_train --model_name_or_path {QWEN} --bf16"
    text += f" --finetuning_type {adapted} --deepspeed ds_z3_config.json --cutoff_len 512"
    found = command(f"{text} --per_device_train_batch_size 1 --dataset a", f"h100:{count}")
    assert ("keeps fp32 masters" in warnings(found)) == said


FEW = """
from peft import get_peft_model, LoraConfig, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments
own, args = HfArgumentParser((Own, TrainingArguments)).parse_args_into_dataclasses()
model = AutoModelForCausalLM.from_pretrained(own.model_name_or_path, torch_dtype=own.torch_dtype)
%s
model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj"]))
Trainer(model, args).train()
"""
PREPARES = "model = prepare_model_for_kbit_training(model)"


@pytest.mark.parametrize(
    ("line", "base"), [(PREPARES, "32bit"), (f"if own.load_in_8bit:\n    {PREPARES}", "16bit")]
)
def test_weights_that_are_prepared_where_a_condition_holds_are_left_as_flags_say(
    tmp_path: Path, line: str, base: str
) -> None:
    (tmp_path / "go.py").write_text(FEW % line)
    text = f"python go.py --model_name_or_path {QWEN} --torch_dtype float16 --fp16 --output_dir o"
    found = file(tmp_path / "run.sh", f"{text} --per_device_train_batch_size 2 --max_steps 9\n")
    assert found.method.base == base


def test_files_that_complete_a_file_are_said(tmp_path: Path) -> None:
    text = f"includes: [more.yaml]\nmodel_name_or_path: {QWEN}\nuse_peft: true\nmax_steps: 9\n"
    found = file(tmp_path / "a.yaml", f"{text}per_device_train_batch_size: 2\noutput_dir: o\n")
    assert "builds on another one" in warnings(found)


def test_a_section_of_what_stands_beside_it_too_makes_no_file_a_programs_own() -> None:
    values: dict[str, object] = {
        "base_model": QWEN, "sequence_len": 512, "micro_batch_size": 2, "adapter": "qlora",
        "gradient_accumulation_steps": 8, "datasets": [{"path": "a", "type": "alpaca"}],
        "deepspeed_config": {"gradient_accumulation_steps": 8, "zero_stage": 2},
    }  # fmt: skip
    found = detect(values, "q.yml")
    assert found is not None
    assert found.name == "axolotl"
    values["lora"] = {"lora_r": 8, "target_modules": ["q_proj"]}
    assert detect(values, "q.yml") is None


def test_a_file_built_of_components_is_torchtunes_whatever_other_words_it_holds() -> None:
    values = {"model": {"_component_": "own.moe"}, "enable_fsdp": True, "epochs": 1}
    found = detect(values, "moe.yaml")
    assert found is not None
    assert found.name == "torchtune"
