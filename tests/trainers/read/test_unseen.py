"""What no reader evaluates is noticed by itself and said first; what changes nothing is not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from autotune.app.job.load import load_jobs
from autotune.domain.errors import InputError
from autotune.domain.typed.overrides import Overrides
from autotune.trainers.unread import decides
from tests.strangers import file, warnings

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.domain.job import Job

QWEN = "Qwen/Qwen2.5-0.5B"
FILE = {
    "model_name_or_path": QWEN, "per_device_train_batch_size": 2, "num_train_epochs": 1,
    "use_peft": True, "lora_r": 8, "max_length": 512, "packing": False,
    "gradient_checkpointing": True,
}  # fmt: skip
SCRIPT = f"""\
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
BEFORE
model = AutoModelForCausalLM.from_pretrained("{QWEN}"LOADED)
ADAPTED
args = TrainingArguments("out", per_device_train_batch_size=2, num_train_epochs=1GIVEN)
rows = rows.map(lambda row: tokenizer(row["text"], truncation=True, max_length=256))
trainer = Trainer(model=model, args=args, train_dataset=rowsPASSED)
trainer.train()
"""
LORA = 'model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj"]%s))'


def read(path: Path, text: str) -> tuple[Job, str]:
    """The job, and all of its first warnings."""
    job = file(path, text)
    return job, warnings(job)


def script(
    folder: Path, *, before: str = "", loaded: str = "", adapted: str = "", given: str = "",
    passed: str = "", text: str = SCRIPT,
) -> str:  # fmt: skip
    """What is said first of a script with these parts."""
    put = {"BEFORE": before, "LOADED": loaded, "ADAPTED": adapted, "GIVEN": given, "PASSED": passed}
    for place, part in put.items():
        text = text.replace(place, part)
    return read(folder / "train.py", text)[1]


def settings(folder: Path, **more: object) -> str:
    return read(folder / "train.json", json.dumps({**FILE, **more}))[1]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("total_turns", 4096, "not read total_turns 4096"),  # a word that nobody listed
        ("num_layer_trainable", 8, "num_layer_trainable 8: of the program's own"),
        ("checkpointing_steps", 50, "checkpointing_steps 50"),
        ("_base_", "common", "_base_ 'common': the file builds on another one"),
        ("training_method", "refuel", "training_method refuel: another way of training"),
    ],
)
def test_a_setting_of_a_programs_own_is_said(
    tmp_path: Path, name: str, value: object, said: str
) -> None:
    assert said in settings(tmp_path, **{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("wandb_project", "mine"), ("eval_batch_size", 4), ("train_file", "rows.json"),
        ("prompt_template", "alpaca"), ("dpo_beta", 0.1), ("preprocessing_num_workers", 8),
        ("max_train_samples", -1), ("num_warmup_steps", 20), ("trainable", "q_proj"),
    ],
)  # fmt: skip
def test_a_setting_that_moves_no_price_is_not_said(
    tmp_path: Path, name: str, value: object
) -> None:
    assert name not in settings(tmp_path, **{name: value})


def test_settings_of_which_nothing_is_known_are_one_sentence(tmp_path: Path) -> None:
    said = settings(tmp_path, relevant=3, peers=7)
    assert "not read relevant 3, peers 7: no arguments of the trainer's" in said


def test_evaluation_comes_before_what_decides() -> None:
    assert (decides("eval_steps"), decides("total_steps"), decides("zeal")) == (False, True, None)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"adapted": LORA % ", trainable_token_indices=[3]"}, "trainable_token_indices a list"),
        ({"adapted": LORA % ", layers_to_transform=[1, 2]"}, "layers_to_transform a list"),
        ({"passed": ", optimizers=(mine, None)"}, "Trainer: optimizers computed"),
        ({"loaded": ", quantization_config=HqqConfig(nbits=4)"}, "HqqConfig called"),
        (
            {"before": "for p in body.parameters():\n    p.requires_grad = False"},
            "requires_grad false: weights that the script freezes",
        ),
        ({"before": "rows = pack_dataset(rows)"}, "pack_dataset called: joins rows"),
        ({"before": 'import os\nos.environ["CUDA_VISIBLE_DEVICES"] = "0,1"'}, "devices 2"),
        ({"given": ", bf16=of_the_run()"}, "bf16 computed"),
        ({"given": ", save_steps=often(), eval_steps=often()"}, "save_steps, eval_steps computed"),
        (
            {"before": 'rows = tokenizer(texts, truncation=True, padding="max_length")'},
            "the length that the script cuts rows at computed",
        ),
    ],
)  # fmt: skip
def test_what_a_script_does_and_nothing_evaluates_is_said(
    tmp_path: Path, parts: dict[str, str], said: str
) -> None:
    assert said in script(tmp_path, **parts)


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"adapted": LORA % ', bias="none", task_type="CAUSAL_LM"'},
        {"loaded": ', trust_remote_code=True, device_map="auto", token=key'},
        {"given": ", bf16=torch.cuda.is_bf16_supported(), fp16=not torch.cuda.is_bf16_supported()"},
        {"passed": ", data_collator=collate, callbacks=[stop]"},
        {"before": "for p in ref_model.parameters():\n    p.requires_grad_(False)"},
        {
            "adapted": LORA % "",
            "before": "for p in head.parameters():\n    p.requires_grad = False",
        },
        {"before": 'import struct\nhead = struct.pack("i", 4)'},
        {"before": "def main():\n    pass\nmain()\nmain()"},
    ],
)
def test_a_script_that_is_read_whole_gets_no_note(tmp_path: Path, parts: dict[str, str]) -> None:
    said = script(tmp_path, **parts)
    assert not [line for line in said.splitlines() if "read" in line or "script" in line], said


def test_flash_attention_by_its_older_argument_is_read(tmp_path: Path) -> None:
    text = SCRIPT.replace("LOADED", ", use_flash_attention_2=True")
    for place in ("BEFORE", "ADAPTED", "GIVEN", "PASSED"):
        text = text.replace(place, "")
    job, _ = read(tmp_path / "train.py", text)
    assert job.today is not None
    assert job.today.attention == "flash_attention_2"


@pytest.mark.parametrize(
    ("begins", "said"),
    [
        ("fit()\nfit()", True),
        ("for rate in rates:\n    fit()", True),
        ("def both():\n    fit()\nboth()\nboth()", True),
        ("fit()", False),
        ("if cold:\n    fit()\nelse:\n    fit()", False),
        ("for rate in [1e-4]:\n    fit()", False),
    ],
)
def test_a_training_that_begins_several_times_is_priced_once_and_said(
    tmp_path: Path, begins: str, *, said: bool
) -> None:
    text = SCRIPT.replace("trainer.train()", f"def fit():\n    trainer.train()\n{begins}")
    assert ("several times there" in script(tmp_path, text=text)) is said


def test_a_loss_of_its_own_is_said(tmp_path: Path) -> None:
    own = "class Taught(Trainer):\n    def compute_loss(self, model, inputs): ..."
    said = script(
        tmp_path, before=own, text=SCRIPT.replace("trainer = Trainer(", "trainer = Taught(")
    )
    assert "Taught compute_loss: code of the script's own" in said


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (
            "class Mine(Trainer):\n    def compute_loss(self, model, inputs): ...\n",
            "Mine compute_loss: code of the script's own",
        ),
        (
            "class Mine(TrainerCallback):\n    def on_step_end(self):\n        m.generate()\n",
            "Mine generate: a callback of the script's own",
        ),
    ],
)
def test_code_of_a_step_in_a_module_of_its_own_is_said(
    tmp_path: Path, module: str, said: str
) -> None:
    (tmp_path / "ours.py").write_text(module)
    text = SCRIPT.replace("PASSED", ", callbacks=[Mine(model)]PASSED")
    assert said in script(tmp_path, before="from ours import Mine", text=text)
    assert said not in script(tmp_path, before="from theirs import Mine", text=text)


def test_logits_that_unsloth_is_told_to_make_are_said(tmp_path: Path) -> None:
    told = 'import os\nos.environ["UNSLOTH_RETURN_LOGITS"] = "%s"'
    assert "makes all logits at once" in script(tmp_path, before=told % 1, adapted=LORA % "")
    assert "all logits" not in script(tmp_path, before=told % 0, adapted=LORA % "")


def test_a_model_that_another_file_makes_is_said(tmp_path: Path) -> None:
    """How it is loaded may be another memory by four times, and stands in that file."""
    text = SCRIPT.replace(f'AutoModelForCausalLM.from_pretrained("{QWEN}"LOADED)', "made.model")
    path = tmp_path / "train.py"
    for place in ("BEFORE", "ADAPTED", "GIVEN", "PASSED"):
        text = text.replace(place, "")
    path.write_text(text)
    asked = Overrides(("h100",), stated={"data.rows": 1000, "model": QWEN, "method.kind": "full"})
    job = load_jobs(path, asked)[0].job
    said = warnings(job)
    assert "the model not loaded here: made by another file" in said


def test_a_started_script_that_sets_arguments_anew_is_said(tmp_path: Path) -> None:
    flags = "--num_train_epochs 1 --per_device_train_batch_size 2 --gradient_checkpointing true"
    (tmp_path / "run.sh").write_text(f"python train.py --model_name_or_path {QWEN} {flags}\n")
    (tmp_path / "train.py").write_text(
        "from transformers import HfArgumentParser, Trainer, TrainingArguments\n"
        "(training_args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()\n"
        "training_args.per_device_train_batch_size = 16\n"
        "training_args.gradient_checkpointing = True\n"
        "Trainer(model=model, args=training_args).train()\n"
    )
    stated = {"data.rows": 1000, "method.kind": "full"}
    job = load_jobs(tmp_path / "run.sh", Overrides(("h100",), stated=stated))[0].job
    said = warnings(job)
    assert "train.py: per_device_train_batch_size 16: set by the script after" in said
    assert "train.py: gradient_checkpointing" not in said  # as the flag has it


def test_a_started_script_with_a_loop_of_its_own_is_said(tmp_path: Path) -> None:
    flags = "--num_train_epochs 1 --per_device_train_batch_size 2 --max_length 256"
    (tmp_path / "run.sh").write_text(f"python train.py --model_name_or_path {QWEN} {flags}\n")
    (tmp_path / "train.py").write_text("for batch in rows:\n    model(batch).loss.backward()\n")
    stated = {"data.rows": 1000, "method.kind": "full"}
    job = load_jobs(tmp_path / "run.sh", Overrides(("h100",), stated=stated))[0].job
    said = warnings(job)
    assert "train.py backward(): a training loop of its own" in said


def test_launches_by_files_in_variables_are_all_found(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / f"{name}.yaml").write_text(
            f"model_name_or_path: {QWEN}\nstage: sft\nfinetuning_type: lora\ncutoff_len: 512\n"
            "per_device_train_batch_size: 2\nnum_train_epochs: 1\n"
        )
    text = (
        "GPUS=2\nFIRST=first.yaml\nSECOND=second.yaml\n"
        "torchrun --nproc_per_node=$GPUS src/train.py $FIRST\nsleep 60\n"
        "torchrun --nproc_per_node=$GPUS src/train.py $SECOND\n"
    )
    _, said = read(tmp_path / "run.sh", text)
    assert "another launch on line 6" in said


def test_train_type_of_a_program_of_ones_own_is_not_ms_swifts(tmp_path: Path) -> None:
    flags = "--batch_size 4 --train_type hqq_lora --gradient_accumulation_steps 2 --num_epochs 1"
    with pytest.raises(InputError) as refused:
        read(tmp_path / "run.sh", f"python mine.py --model_name {QWEN} {flags}\n")
    assert "ms-swift" in refused.value.message
    assert refused.value.hint


def test_tasks_of_a_scheduler_are_said(tmp_path: Path) -> None:
    flags = "--num_train_epochs 1 --per_device_train_batch_size 2 --use_peft false --max_length 256"
    text = f"#SBATCH --array=0-7\npython train.py --model_name_or_path {QWEN} {flags}\n"
    assert (
        "tasks 0-7: #SBATCH --array starts it once for each" in read(tmp_path / "run.sh", text)[1]
    )
    single = text.replace("0-7", "3")
    assert "tasks" not in read(tmp_path / "run.sh", single)[1]


def test_an_array_of_flags_that_the_script_fills_itself_is_said(tmp_path: Path) -> None:
    flags = "--num_train_epochs 1 --per_device_train_batch_size 2 --use_peft false --max_length 256"
    text = f'more=()\npython train.py --model_name_or_path {QWEN} {flags} "${{more[@]}}"\n'
    assert "flags ${more[@]}: the script decides" in read(tmp_path / "run.sh", text)[1]


def test_a_script_in_a_folder_of_a_variable_is_found(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text("for batch in rows:\n    model(batch).backward()\n")
    flags = "--num_train_epochs 1 --per_device_train_batch_size 2 --use_peft false --max_length 256"
    text = f'python "$ROOT/src/train.py" --model_name_or_path {QWEN} {flags}\n'
    assert "train.py backward()" in read(tmp_path / "run.sh", text)[1]


def test_trls_default_is_said_where_another_program_reads_the_file(tmp_path: Path) -> None:
    """TRL recomputes where nothing is said; the program of this file may not."""
    silent = settings(tmp_path, reader_file="rows.json", gradient_checkpointing=None)
    assert "on by TRL's default; reader_file" in silent
    assert "TRL's default" not in settings(tmp_path, reader_file="rows.json")
    assert "TRL's default" not in settings(tmp_path, gradient_checkpointing=None)


def test_the_block_of_a_data_set_is_its_length(tmp_path: Path) -> None:
    own = 'rows.map(lambda row: tokenizer(row["text"], truncation=True, max_length=256))'
    text = SCRIPT.replace(own, "TextDataset(tokenizer, file, block_size=128)")
    for place in ("BEFORE", "LOADED", "ADAPTED", "GIVEN", "PASSED"):
        text = text.replace(place, "")
    assert read(tmp_path / "train.py", text)[0].max_length == 128


def test_a_script_that_hides_every_gpu_says_so(tmp_path: Path) -> None:
    hidden = 'import os\nos.environ["CUDA_VISIBLE_DEVICES"] = "%s"'
    for value, shown in (("-1", "-1"), ("", "empty")):
        said = script(tmp_path, before=hidden % value, adapted=LORA % "")
        assert f"CUDA_VISIBLE_DEVICES {shown}: the script hides every GPU" in said
    assert "hides every GPU" not in script(tmp_path, before=hidden % "0", adapted=LORA % "")


def test_a_reference_model_beside_adapters_is_said(tmp_path: Path) -> None:
    pairs = SCRIPT.replace("Trainer(model=model,", "DPOTrainer(model, REF,").replace(
        "transformers import AutoModelForCausalLM, Trainer",
        "transformers import AutoModelForCausalLM",
    )
    given = pairs.replace("REF", 'AutoModelForCausalLM.from_pretrained("m")')
    assert "ref_model AutoModelForCausalLM" in script(tmp_path, adapted=LORA % "", text=given)
    for none in ("None", "ref_model=None"):
        text = pairs.replace("REF", none)
        assert "ref_model" not in script(tmp_path, adapted=LORA % "", text=text)
    assert "its weights are held" not in script(tmp_path, text=given)  # in full, it is counted
    frozen = 'reference = AutoModelForCausalLM.from_pretrained("m").requires_grad_(False)'
    trainer = SCRIPT.replace("Trainer(model=model,", "OurTrainer(model=model, ref_model=reference,")
    said = script(tmp_path, before=frozen, text=trainer)
    assert "ref_model reference: given beside what is trained" in said
    assert "weights that the script freezes" not in said


def test_a_script_for_tpus_says_so_and_one_that_can_do_without_them_does_not(
    tmp_path: Path,
) -> None:
    for needs in ("import torch_xla", "from torch_xla import runtime"):
        assert "torch_xla imported" in script(tmp_path, before=needs, adapted=LORA % "")
    tried = "try:\n    import torch_xla\nexcept ImportError:\n    pass"
    assert "torch_xla" not in script(tmp_path, before=tried, adapted=LORA % "")


def test_a_file_that_starts_no_training_says_so(tmp_path: Path) -> None:
    ends = SCRIPT[SCRIPT.index("trainer = ") :]
    unstarted = SCRIPT.replace(", Trainer", "").replace(ends, "export(model, args)PASSED\n")
    assert "train() not here" in script(tmp_path, adapted=LORA % "", text=unstarted)
    for starts in (SCRIPT, SCRIPT.replace("trainer.train()", "begin(trainer)")):
        assert "train() not here" not in script(tmp_path, adapted=LORA % "", text=starts)


def test_a_computed_argument_that_splits_the_model_is_said(tmp_path: Path) -> None:
    said = script(tmp_path, adapted=LORA % "", given=", parallelism_config=layout()")
    assert "parallelism_config computed: splits sequences over devices" in said
    assert "run_name" not in script(tmp_path, adapted=LORA % "", given=", run_name=named()")


def test_bits_of_a_model_that_is_not_the_trained_one_are_not_its(tmp_path: Path) -> None:
    """One file may train with adapters in 16 bit first, and in four bits after it."""
    bits = "bits = BitsAndBytesConfig(load_in_4bit=True)\n"
    second = bits + 'again = AutoModelForCausalLM.from_pretrained("m", quantization_config=bits)'
    for place in ({"before": bits}, {"text": SCRIPT + second}):
        text = str(place.get("text", SCRIPT))
        before = str(place.get("before", ""))
        for part, put in {"BEFORE": before, "LOADED": "", "ADAPTED": LORA % "", "GIVEN": "",
                          "PASSED": ""}.items():  # fmt: skip
            text = text.replace(part, put)
        assert read(tmp_path / "train.py", text)[0].method.base == "16bit"
    loaded = ", quantization_config=bits"
    text = SCRIPT.replace("BEFORE", bits).replace("LOADED", loaded).replace("ADAPTED", LORA % "")
    text = text.replace("GIVEN", "").replace("PASSED", "")
    assert read(tmp_path / "train.py", text)[0].method.base == "nf4"


def test_what_is_put_into_a_mapping_made_by_dict_is_seen(tmp_path: Path) -> None:
    """`more = dict(r=8)`, and one entry set under a condition: the script decides that one."""
    mapped = (
        'more = dict(r=32, lora_alpha=16)\nif wide():\n    more["target_modules"] = ours()\n'
        "model = get_peft_model(model, LoraConfig(**more))"
    )
    text = SCRIPT.replace("ADAPTED", mapped)
    for part in ("BEFORE", "LOADED", "GIVEN", "PASSED"):
        text = text.replace(part, "")
    job, said = read(tmp_path / "train.py", text)
    assert job.method.rank == 32
    assert "lora_target_modules computed" in said
    with pytest.raises(InputError, match="lora_r must be written out"):
        read(tmp_path / "train.py", text.replace("r=32", "r=ours.rank"))


def test_the_length_of_a_template_is_the_scripts(tmp_path: Path) -> None:
    own = 'rows.map(lambda row: tokenizer(row["text"], truncation=True, max_length=256))'
    text = SCRIPT.replace(own, "get_template(kind, tokenizer, max_length=768)")
    for place in ("BEFORE", "LOADED", "ADAPTED", "GIVEN", "PASSED"):
        text = text.replace(place, "")
    assert read(tmp_path / "train.py", text)[0].max_length == 768


def test_the_model_is_the_one_that_is_trained_wherever_adapters_are_put_on_it(
    tmp_path: Path,
) -> None:
    """A function above puts adapters on what is loaded below; what is loaded again is another."""
    text = (
        "from peft import AutoPeftModelForCausalLM, LoraConfig, get_peft_model\n"
        "from transformers import *\n"
        "def adapted(model):\n    return get_peft_model(model, LoraConfig(r=8))\n"
        "bits = BitsAndBytesConfig(load_in_4bit=True)\n"
        f'model = AutoModelForCausalLM.from_pretrained("{QWEN}", quantization_config=bits)\n'
        'args = TrainingArguments("out", per_device_train_batch_size=2, num_train_epochs=1)\n'
        "Trainer(model=adapted(model), args=args).train()\n"
        'again = AutoPeftModelForCausalLM.from_pretrained("out")\n'
    )
    job, _ = read(tmp_path / "train.py", text)
    assert (job.method.base, job.model.name) == ("nf4", QWEN)


def test_another_adapter_than_lora_is_said(tmp_path: Path) -> None:
    other = "from peft import PromptTuningConfig\nours = PromptTuningConfig(num_virtual_tokens=9)"
    given = ", peft_config=ours, max_seq_length=64"
    text = SCRIPT.replace(" Trainer(", " SFTTrainer(").replace("PASSED", given)
    text = text.replace("import AutoModel", "import LoraConfig, AutoModel")
    adapted = "model = get_peft_model(model, ours)"
    said = script(tmp_path, before=other, adapted=adapted, text=text)
    assert "PromptTuningConfig called: another adapter of PEFT's than LoRA" in said
    for before in (other, "from peft import PeftConfig, PromptTuningConfig"):
        assert "another adapter" not in script(tmp_path, before=before, adapted=LORA % "")


def test_bits_that_another_file_describes_are_said(tmp_path: Path) -> None:
    said = script(tmp_path, loaded=", quantization_config=bits_of(ours)", adapted=LORA % "")
    assert "load_in_4bit computed" in said
    none = script(tmp_path, loaded=", quantization_config=None", adapted=LORA % "")
    assert "load_in_4bit" not in none


def test_the_name_of_a_model_that_another_call_loads_says_that_it_sees(tmp_path: Path) -> None:
    text = (
        'model_id = "Qwen/Qwen2-VL-2B-Instruct"\nmodel = get_model(model_id)\n'
        'args = TrainingArguments("out", per_device_train_batch_size=2, num_train_epochs=1)\n'
        "Trainer(model=model, args=args).train()\n"
    )
    with pytest.raises(InputError, match="a model that sees"):
        read(tmp_path / "train.py", text)


def test_flags_beside_a_file_of_settings_are_said(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("rows: 4\npasses: 2\nbase: Qwen/Qwen2.5-0.5B\n")
    (tmp_path / "train.py").write_text(
        "import yaml, argparse\n"
        "p = argparse.ArgumentParser()\np.add_argument('--config')\n"
        "cfg = yaml.safe_load(open(p.parse_args().config))\n"
        'model = AutoModelForCausalLM.from_pretrained(cfg["base"])\n'
        'args = TrainingArguments("out", per_device_train_batch_size=cfg["rows"],\n'
        '                         num_train_epochs=cfg["passes"])\n'
        "Trainer(model=model, args=args).train()\n"
    )
    start = f"python {tmp_path / 'train.py'} --config {tmp_path / 'own.yaml'}"
    job, said = read(tmp_path / "run.sh", f"{start} --lora_rank 32 --seed 3\n")
    assert job.today.micro_batch_size == 4
    assert "flags lora_rank" in said
    assert "seed" not in said
    assert "flags" not in read(tmp_path / "run.sh", f"{start} --seed 3\n")[1]


@pytest.mark.parametrize(("kept", "said"), [
    ('rows = rows.filter(lambda row: len(row["input_ids"]) <= 100)', True),
    ('frame = frame[frame["num_tokens"] < LONGEST // 2]', True),
    ('frame = frame.loc[frame["N"] <= limit()]', True),
    ('rows = rows.filter(lambda row: len(row["input_ids"]) <= 256)', False),
    ('rows = rows.filter(lambda row: len(row["input_ids"]) > 3)', False),
    ('rows = rows.filter(lambda row: row["score"] < 3)', False),
])  # fmt: skip
def test_rows_that_are_dropped_by_their_length_are_said(
    tmp_path: Path, kept: str, said: bool
) -> None:
    text = f"""\
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
LONGEST = 256
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")
rows = rows.map(lambda row: tokenizer(row["text"], truncation=True, max_length=LONGEST))
{kept}
args = TrainingArguments("out", per_device_train_batch_size=2, num_train_epochs=1, bf16=True)
Trainer(model=model, args=args, train_dataset=rows).train()
"""
    assert ("longer rows are dropped" in warnings(file(tmp_path / "a.py", text))) is said
