"""What decides a run and stands elsewhere than in its trainer's arguments: read, or said first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from autotune.app.job.load import jobs_of_command
from autotune.app.runs.user_file import patched, same_export
from autotune.domain.errors import InputError
from autotune.domain.typed.overrides import Overrides
from tests.strangers import command as typed
from tests.strangers import file as job
from tests.strangers import today, warnings

if TYPE_CHECKING:
    from pathlib import Path


QWEN = "Qwen/Qwen2.5-0.5B"
MADE = """\
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments
bnb = BitsAndBytesConfig(load_in_4bit=True)
"""
TRAINED = """\
model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj"]))
args = TrainingArguments("out", per_device_train_batch_size=2, num_train_epochs=1{more})
Trainer(model=model, args=args, train_dataset=rows).train()
"""
LOADED = f'model = AutoModelForCausalLM.from_pretrained("{QWEN}", quantization_config=bnb)\n'


def script(body: str = "", more: str = "", loaded: str = LOADED) -> str:
    return MADE + loaded + body + TRAINED.format(more=more)


@pytest.mark.parametrize(
    ("call", "recomputes"),
    [
        ("model.gradient_checkpointing_enable()", "full"),
        ("model = prepare_model_for_kbit_training(model)", "full"),
        ("model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)",
         "none"),
        ("pass", "none"),
    ],
)  # fmt: skip
def test_a_call_on_the_model_switches_recomputing_on(
    tmp_path: Path, call: str, recomputes: str
) -> None:
    for more in ("", ", gradient_checkpointing=False"):
        found = job(tmp_path / "train.py", script(call + "\n", more))
        assert today(found).activation_checkpointing == recomputes


@pytest.mark.parametrize("bits", ["4", "8"])
def test_what_a_prepared_base_does_not_quantise_is_in_fp32(tmp_path: Path, bits: str) -> None:
    """Source: peft 0.21 utils/other.py casts every 16-bit parameter that is left."""
    text = script("model = prepare_model_for_kbit_training(model)\n").replace("in_4", f"in_{bits}")
    found = job(tmp_path / "train.py", text)
    plain = job(tmp_path / "plain" / "train.py", script().replace("in_4", f"in_{bits}"))
    assert (found.software.kbit_upcast, plain.software.kbit_upcast) == ("all", "none")


def test_weights_of_16_bits_are_not_prepared(tmp_path: Path) -> None:
    """Source: peft 0.21 utils/other.py: it recomputes only what is loaded in few bits."""
    plain = f'model = AutoModelForCausalLM.from_pretrained("{QWEN}")\n'
    text = script("model = prepare_model_for_kbit_training(model)\n", loaded=plain)
    text = text.replace("bnb = BitsAndBytesConfig(load_in_4bit=True)\n", "")
    found = job(tmp_path / "train.py", text)
    assert (today(found).activation_checkpointing, found.software.kbit_upcast) == ("none", "none")


def test_recomputing_by_the_model_is_not_taken_back_by_the_arguments(tmp_path: Path) -> None:
    text = script("model.gradient_checkpointing_enable()\n", ", gradient_checkpointing=True")
    found = job(tmp_path / "train.py", text)
    wanted = today(found).with_knobs(activation_checkpointing="none", checkpoint_every_steps=9)
    back = patched("same", found, found.offers[0], wanted)
    assert "gradient_checkpointing=True" in back.text
    assert any(note.startswith("activation_checkpointing none") for note in back.notes)


CUT = {
    "slice": "def rows_of(ids, MOST=384):\n    input_ids = ids\n    return input_ids[:MOST]\n",
    "passed": "rows = tokenize_all(load(), max_length=384)\n",
    "besides an answer": (
        "def rows_of(text):\n    return tok(text, truncation=True, max_length=384)\n"
        "def answer(text, new):\n"
        "    return tok(text, truncation=True, max_length=512 - new, return_tensors='pt')\n"
    ),
}


@pytest.mark.parametrize("how", CUT)
def test_rows_are_as_long_as_the_script_cuts_them(tmp_path: Path, how: str) -> None:
    found = job(tmp_path / "train.py", script(CUT[how]))
    assert found.max_length == 384
    assert "cuts rows" not in warnings(found)


@pytest.mark.parametrize(
    "body",
    [
        "def rows_of(ids, most):\n    input_ids = ids\n    return input_ids[:most]\n",
        "tok(x, truncation=True, max_length=256)\ntok(y, truncation=True, max_length=512)\n",
    ],
)
def test_a_length_that_the_script_computes_is_said_first(tmp_path: Path, body: str) -> None:
    found = job(tmp_path / "train.py", script(body))
    assert "the length that the script cuts rows at" in warnings(found)
    assert found.uncounted_sd > job(tmp_path / "b.py", script()).uncounted_sd


def test_tokens_that_are_shown_cut_no_rows(tmp_path: Path) -> None:
    body = "print(rows[0]['input_ids'][:10])\n"
    assert job(tmp_path / "train.py", script(body)).max_length == 1024


def test_what_is_set_on_the_arguments_later_counts(tmp_path: Path) -> None:
    text = script().replace("Trainer(model", "args.max_steps = 7\nTrainer(model")
    assert job(tmp_path / "train.py", text).steps == 7
    text = script().replace("Trainer(model", "args.per_device_train_batch_size = 4\nTrainer(model")
    with pytest.raises(InputError, match="per_device_train_batch_size must be written out"):
        job(tmp_path / "train.py", text)


def test_a_mapping_that_is_filled_further_on_says_how_the_model_is_loaded(tmp_path: Path) -> None:
    loaded = (
        'how = {"quantization_config": bnb}\n'
        'how["attn_implementation"] = "flash_attention_2"\n'
        f'model = AutoModelForCausalLM.from_pretrained("{QWEN}", **how)\n'
    )
    found = job(tmp_path / "a.py", script(loaded=loaded))
    assert today(found).attention == "flash_attention_2"
    loaded = loaded.replace("model =", 'how["attn_implementation"] = "eager"\nmodel =')
    assert "attn_implementation computed" in warnings(job(tmp_path / "b.py", script(loaded=loaded)))


def test_arguments_that_stand_in_for_others_are_not_the_trainings(tmp_path: Path) -> None:
    body = 'class Settings:\n    args = TrainingArguments(output_dir="out")\n'
    assert today(job(tmp_path / "a.py", script(body))).micro_batch_size == 2
    text = script(body).replace("per_device_train_batch_size=2, num_train_epochs=1", "**read()")
    with pytest.raises(InputError, match=r"\*\* must be written out"):
        job(tmp_path / "b.py", text)


def test_a_dtype_that_the_script_computes_is_said_where_nothing_quantises(tmp_path: Path) -> None:
    loaded = f'model = AutoModelForCausalLM.from_pretrained("{QWEN}", torch_dtype=best())\n'
    text = script(loaded=loaded).replace("bnb = BitsAndBytesConfig(load_in_4bit=True)\n", "")
    assert "dtype computed" in warnings(job(tmp_path / "a.py", text))


AXOLOTL = f"""\
base_model: {QWEN}
sequence_len: 512
micro_batch_size: 1
num_epochs: 2
datasets: [{{path: a, type: alpaca}}]
val_set_size: 0.1
"""


def test_evaluations_and_saves_by_a_share_of_the_run_are_that_many(tmp_path: Path) -> None:
    found = job(tmp_path / "a.yaml", f"{AXOLOTL}eval_steps: 0.05\nsave_steps: 0.25\n")
    assert (found.steps, found.evaluation.every_steps) == (1800, 90)
    assert today(found).checkpoint_every_steps == 450
    found = job(tmp_path / "b.yaml", f"{AXOLOTL}max_steps: 200\neval_steps: 0.1\n")
    assert found.evaluation.every_steps == 20


@pytest.mark.parametrize(
    "rest",
    [
        "steps: 300\ngroup_size: 4\nlearning_rate: 1.0e-5\nlora_rank: 16\nrun_name: agent\n",
        "lr: 1.0e-5\ndataset_jsonl: a\nlora_rank: 16\nname: x\n",
    ],
)
def test_a_base_model_alone_makes_no_file_of_axolotl(tmp_path: Path, rest: str) -> None:
    with pytest.raises(InputError, match="neither a job file nor a trainer's file"):
        job(tmp_path / "train.yaml", f"base_model: {QWEN}\n{rest}")


def test_settings_of_ones_own_beside_a_base_model_are_the_trainers_arguments(
    tmp_path: Path,
) -> None:
    text = f"base_model: {QWEN}\nmax_steps: 200\nbf16: true\nuse_qlora: true\nlora_r: 64\n"
    found = job(tmp_path / "sft.yaml", f"{text}output_dir: out\n")
    assert (found.model.name, found.steps) == (QWEN, 200)
    assert (found.method.rank, found.method.base) == (64, "nf4")


def test_a_length_inside_a_section_of_ones_own_is_said_first(tmp_path: Path) -> None:
    text = (
        f"model: {QWEN}\nlora_r: 16\nper_device_train_batch_size: 1\nnum_train_epochs: 1\n"
        "chunking: {strategy: truncate, max_seq_length: 512}\n"
    )
    assert "chunking.max_seq_length 512" in warnings(job(tmp_path / "sft.yaml", text))


FACTORY = f"""\
model_name_or_path: {QWEN}
stage: sft
finetuning_type: lora
template: qwen
per_device_train_batch_size: 1
output_dir: out
"""


CHAT = f"""\
model_name_or_path: {QWEN}
adapter_name_or_path: out
finetuning_type: lora
template: qwen
cutoff_len: 2000
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (FACTORY.replace("sft", "grpo"), "reinforcement learning"),
        (FACTORY.replace("sft", "sftt"), "stage is 'sftt'"),
        (CHAT, "inference"),
    ],
)  # fmt: skip
def test_a_stage_of_llama_factory_that_trains_otherwise_is_refused(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        job(tmp_path / "a.yaml", text)


def test_older_and_shorter_names_of_llama_factorys_settings_are_read() -> None:
    found = jobs_of_command(
        f"llamafactory-cli train --stage sft --do_train --model_name_or_path {QWEN} "
        "--finetuning_type lora --lora_r 128 --quant_bit 4 --max_source_length 1024 "
        "--max_target_length 512 --per_device_train_batch_size 1 --lora_layers 4",
        Overrides(("h100",), stated={"data.rows": 1000}),
    )[0].job
    assert (found.method.rank, found.method.base, found.max_length) == (128, "nf4", 1536)
    assert "lora_layers" in warnings(found)


TUNE = """\
model: {_component_: torchtune.models.llama3_2.llama3_2_1b}
checkpointer: {_component_: torchtune.training.FullModelHFCheckpointer,
               checkpoint_dir: /tmp/Llama-3.2-1B-Instruct}
tokenizer: {max_seq_len: 512}
"""


def test_epochs_of_torchtune_end_after_the_steps_that_the_file_says(tmp_path: Path) -> None:
    text = f"{TUNE}batch_size: 2\nepochs: 3\nmax_steps_per_epoch: 20\n"
    found = job(tmp_path / "a.yaml", text)
    assert (found.steps, today(found).checkpoint_every_steps) == (60, 20)
    more = job(tmp_path / "a.yaml", text.replace("20", "600"))  # than the rows make
    assert (more.steps, more.epochs, today(more).checkpoint_every_steps) == (1500, 3.0, 500)


def test_a_model_of_somebodys_own_in_torchtunes_file_is_said_first(tmp_path: Path) -> None:
    text = f"{TUNE}batch_size: 2\nepochs: 1\n".replace("torchtune.models", "mine.models")
    assert "no model of torchtune's" in warnings(job(tmp_path / "a.yaml", text))


def test_a_config_of_torchtune_without_steps_trains_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="trains nothing"):
        job(tmp_path / "a.yaml", TUNE)


def test_further_launches_by_a_file_are_said_first(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text(FACTORY)
    text = "llamafactory-cli train a.yaml\nllamafactory-cli export a.yaml\n"
    assert "another launch" not in warnings(job(tmp_path / "one.sh", text))
    found = job(tmp_path / "two.sh", f"{text}llamafactory-cli train b.yaml\n")
    assert "another launch on line 3" in warnings(found)


def test_a_program_that_starts_on_every_device_runs_on_those_that_slurm_gives(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.yaml").write_text(FACTORY)
    text = (
        "#!/bin/bash\n#SBATCH --gres=gpu:4  # of one machine\nsrun llamafactory-cli train a.yaml\n"
    )
    assert job(tmp_path / "run.slurm", text).offers[0].count == 4


def test_the_program_in_a_text_of_several_lines_is_seen(tmp_path: Path) -> None:
    text = (
        "read -r -d '' training_commands <<EOF\nopenrlhf.cli.train_sft \\\n   --max_len 2048 \\\n"
        "   --train_batch_size 256 --max_samples 500 --bf16 --flash_attn --save_steps -1 \\\n"
        "   --max_epochs 1\nEOF\ndeepspeed --module $training_commands\n"
    )
    with pytest.raises(InputError, match="a command of OpenRLHF, whose words are not read"):
        job(tmp_path / "train.sh", text)


@pytest.mark.parametrize(
    ("start", "title", "says"),
    [
        (
            "deepspeed mine.py --pretrain $M --micro_train_batch_size 2 --train_batch_size 16",
            "OpenRLHF",
            "--method full --global-batch 16 --set micro_batch_size=2",
        ),
        (
            f"megatron sft --model {QWEN} --train_type lora --micro_batch_size 8 --max_epochs 1",
            "Megatron-SWIFT",
            f"--method lora --model {QWEN} --epochs 1 --set micro_batch_size=8 --set",
        ),
    ],
)
def test_a_program_of_other_words_is_told_by_them_with_the_job_in_one_line(
    tmp_path: Path, start: str, title: str, says: str
) -> None:
    (tmp_path / "mine.py").write_text("from openrlhf.trainer import SFTTrainer\n")
    with pytest.raises(InputError, match=f"a command of {title}") as refused:
        job(tmp_path / "train.sh", f"{start}\n")
    assert says in str(refused.value.hint)


def test_a_trainer_of_rewards_of_ones_own_is_priced_as_one(tmp_path: Path) -> None:
    text = script().replace("Trainer(model", "JointRewardTrainer(model")
    assert job(tmp_path / "train.py", text).objective == "reward"


def test_a_file_of_arguments_is_read_where_a_command_names_it(tmp_path: Path) -> None:
    (tmp_path / "sft.json").write_text(
        f'{{"model_name_or_path": "{QWEN}", "per_device_train_batch_size": 8, "lora_rank": 64,'
        ' "max_seq_length": 512, "num_train_epochs": 1}'
    )
    text = "torchrun --nproc_per_node=2 train_qlora.py --train_args_file sft.json\n"
    found = job(tmp_path / "run.sh", text)
    assert (found.method.rank, found.global_batch_size) == (64, 16)


@pytest.mark.parametrize(
    ("start", "sharding", "stops"),
    [
        ("torchrun --nproc_per_node=8", "fsdp", True),
        ("torchrun --nproc_per_node=8", "ddp", False),
        ("accelerate launch --num_processes 8", "zero2", False),
    ],
)
def test_a_command_that_cannot_shard_as_it_starts_is_stopped_and_told(
    tmp_path: Path, start: str, sharding: str, *, stops: bool
) -> None:
    flags = f"--model_name_or_path {QWEN} --use_peft False --num_train_epochs 1 --bf16 True"
    text = f"{start} train.py {flags} --per_device_train_batch_size 2\n"
    found = job(tmp_path / "go.sh", text)
    made = same_export("same", found, found.offers[0], today(found).with_knobs(sharding=sharding))
    told = [note for note in made.notes if "starts without accelerate" in note]
    assert bool(told) == stops
    assert ("grep -q accelerate" in made.files["run.sh"]) == stops


SHARDED = (
    f"torchrun --nproc_per_node 2 train.py --model_name_or_path {QWEN} --use_peft False "
    "--num_train_epochs 1 --per_device_train_batch_size 1 --model_max_length 512 --fsdp "
)


@pytest.mark.parametrize(
    ("words", "offload"),
    [("'full_shard auto_wrap offload'", "all"), ("'full_shard auto_wrap'", "none")],
)
def test_fsdp_is_told_to_offload_in_its_own_word(words: str, offload: str) -> None:
    found = typed(SHARDED + words, "h100:2")
    assert (today(found).sharding, today(found).offload) == ("fsdp", offload)


EVALUATED = f"""\
base_model: {QWEN}
adapter: lora
lora_r: 8
lora_target_linear: true
sequence_len: 512
micro_batch_size: 2
gradient_accumulation_steps: 2
num_epochs: 1
eval_steps: 10
datasets: [{{path: own/rows, type: alpaca}}]
"""


@pytest.mark.parametrize(
    ("more", "evaluates"),
    [("val_set_size: 0\n", False), ("", False), ("val_set_size: 0.1\n", True),
     ("test_datasets: [{path: own/others, type: alpaca}]\n", True)],
)  # fmt: skip
def test_axolotl_evaluates_where_it_has_rows_for_it(
    tmp_path: Path, more: str, *, evaluates: bool
) -> None:
    found = job(tmp_path / "a.yml", EVALUATED + more)
    assert (found.evaluation is not None) is evaluates


BY_OPTIONS = f"""\
import argparse
from dataclasses import dataclass, field
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments

@dataclass
class Adapter:
    layers: list = field(default_factory=lambda: ["q_proj", "k_proj"])

parser = argparse.ArgumentParser()
parser.add_argument("--four", dest="four", action="store_true")
parser.add_argument("--sixteen", dest="four", action="store_false")
parser.add_argument("--layers_of", default="o_proj, v_proj,")
parser.add_argument("--every", type=int, default=30)
DEFAULT
args, adapter = parser.parse_args(), Adapter()
if args.four:
    bits = BitsAndBytesConfig(load_in_4bit=True)
    model = AutoModelForCausalLM.from_pretrained("{QWEN}", quantization_config=bits)
else:
    model = AutoModelForCausalLM.from_pretrained("{QWEN}")
model = get_peft_model(model, LoraConfig(r=8, target_modules=LAYERS))
rows = rows.map(lambda row: tokenizer(row["text"], truncation=True, max_length=256))
settings = TrainingArguments(
    "out", per_device_train_batch_size=2, num_train_epochs=1, save_steps=max(1, args.every))
Trainer(model=model, args=settings, train_dataset=rows).train()
"""
SPLIT = "[word.strip() for word in args.layers_of.split(',') if word.strip()]"


@pytest.mark.parametrize(("default", "base"), [("True", "nf4"), ("False", "16bit")])
def test_defaults_that_a_parser_is_given_later_count(
    tmp_path: Path, default: str, base: str
) -> None:
    text = BY_OPTIONS.replace("DEFAULT", f"parser.set_defaults(four={default})")
    found = job(tmp_path / "a.py", text.replace("LAYERS", SPLIT))
    assert (found.method.base.replace("32bit", "16bit"), found.method.targets) == (
        base, ("v_proj", "o_proj"),
    )  # fmt: skip
    assert today(found).checkpoint_every_steps == 30


def test_a_base_that_may_be_held_either_way_is_said_first(tmp_path: Path) -> None:
    text = BY_OPTIONS.replace("args.four:", "decided():").replace("DEFAULT", "")
    found = job(tmp_path / "a.py", text.replace("LAYERS", "list(adapter.layers)"))
    assert "load_in_4bit computed" in warnings(found)
    assert found.method.targets == ("q_proj", "k_proj")


@pytest.mark.parametrize(
    ("gpu", "more", "precision"),
    [("h100", "bf16: auto\nfp16: true\n", "bf16"), ("t4", "bf16: auto\nfp16: true\n", "fp16"),
     ("h100", "bf16: false\nfp16: true\n", "fp16")],
)  # fmt: skip
def test_bf16_auto_comes_before_fp16_in_axolotl(
    tmp_path: Path, gpu: str, more: str, precision: str
) -> None:
    assert today(job(tmp_path / "a.yml", EVALUATED + more, gpu)).precision == precision


SPLIT_TWICE = f"""\
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
def local(rows):
    return rows.train_test_split(test_size=0.5)
model = AutoModelForCausalLM.from_pretrained("{QWEN}")
rows = rows.train_test_split(test_size=0.1)
rows = rows.map(lambda row: tokenizer(row["text"], truncation=True, max_length=256))
args = TrainingArguments("out", per_device_train_batch_size=2, num_train_epochs=1)
Trainer(model=model, args=args, train_dataset=rows["train"]).train()
"""


def test_of_two_ways_to_hold_rows_out_none_is_taken(tmp_path: Path) -> None:
    assert job(tmp_path / "a.py", SPLIT_TWICE).held_out == 0
    once = SPLIT_TWICE.replace("test_size=0.5", "test_size=0.1")
    assert job(tmp_path / "b.py", once).held_out == 100


def test_qloras_words_for_what_it_evaluates() -> None:
    text = SHARDED.replace("--fsdp ", "--evaluation_strategy steps --eval_steps 50 ")
    found = typed(f"{text}--eval_dataset_size 200 --do_mmlu_eval", "h100:2")
    assert (found.held_out, found.rows) == (200, 800)
    assert "do_mmlu_eval" in warnings(found)


def test_a_model_s_folder_of_another_machine_is_its_name_and_said_first(tmp_path: Path) -> None:
    text = "base_model: /mnt/models/Qwen2.5-7B\nadapter: lora\nlora_r: 8\nmicro_batch_size: 2\n"
    text += "num_epochs: 1\nsequence_len: 512\ndatasets: [{path: a.jsonl, type: alpaca}]\n"
    found = job(tmp_path / "a.yml", text)
    assert (found.model.name, found.model.shape_of) == ("/mnt/models/Qwen2.5-7B", "Qwen/Qwen2.5-7B")
    assert "priced as Qwen/Qwen2.5-7B" in warnings(found).splitlines()[0]


@pytest.mark.parametrize(("value", "asked"), [("0", True), ("1", None)])
def test_a_script_that_leaves_cudnn_s_attention_on_is_priced_with_it(
    tmp_path: Path, value: str, asked: bool | None
) -> None:
    """Source: torch 2.13 sdp_utils.cpp: only a true value asks cuDNN last."""
    text = f'import os\nos.environ["TORCH_CUDNN_SDPA_DEPRIORITIZED"] = "{value}"\n' + script()
    found = job(tmp_path / "train.py", text)
    assert found.software.cudnn_attention is asked
    assert found.as_it_stands.software.cudnn_attention is (value == "0")


FOUNDRY = """
variables: {max_seq_len: 2048}
max_seq_len: ${variables.max_seq_len}
model:
  name: hf_causal_lm
  pretrained_model_name_or_path: HuggingFaceTB/SmolLM2-135M
  peft_config: {r: 64, peft_type: LORA, target_modules: [q_proj, v_proj], use_dora: true}
train_loader: {name: finetuning, dataset: {packing_ratio: auto}}
max_duration: %s
global_train_batch_size: 8
device_train_microbatch_size: auto
fsdp_config: {activation_checkpointing: true}
"""


@pytest.mark.parametrize(
    ("duration", "said"), [("2ep", "--epochs 2"), ("9ba", "--set train.steps=9")]
)
def test_a_file_of_llm_foundry_is_told_with_the_job_in_one_line(
    tmp_path: Path, duration: str, said: str
) -> None:
    """Its words are not read, and the line that they come to is priced as it stands."""
    path = tmp_path / "lora.yaml"
    with pytest.raises(InputError, match="a file of llm-foundry, which is not read") as refused:
        job(path, FOUNDRY % duration)
    assert said in str(refused.value.hint)
    rest = "--set packing=on --set method.variant=dora --set method.targets=q_proj,v_proj"
    adapter = f"{rest} --set method.rank=64 --set activation_checkpointing=full"
    assert adapter in str(refused.value.hint)
    assert "--max-length 2048 --global-batch 8 " in str(refused.value.hint)


def test_a_file_of_llm_foundry_without_weights_has_no_such_line(tmp_path: Path) -> None:
    """It makes the model that it trains, and a job in one line names one."""
    text = FOUNDRY.replace("  pretrained_model_name_or_path: HuggingFaceTB/SmolLM2-135M\n", "")
    with pytest.raises(InputError, match="neither a job file nor a trainer's file"):
        job(tmp_path / "made.yaml", text % "2ep")
