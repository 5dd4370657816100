"""What a file leaves to its trainer, its version and its machine is what that run would do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from autotune.app.estimate import estimate
from autotune.app.job.load import load_jobs
from autotune.domain.typed.overrides import Overrides

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.app.estimate import Estimate

QWEN = "Qwen/Qwen2.5-0.5B"
FACTORY = f"""\
model_name_or_path: {QWEN}
stage: sft
finetuning_type: full
cutoff_len: 512
per_device_train_batch_size: 4
gradient_accumulation_steps: 4
num_train_epochs: 1
bf16: true
"""
NOTEBOOK = f"""\
model = AutoModelForCausalLM.from_pretrained("{QWEN}", torch_dtype=torch.bfloat16)
trainer = SFTTrainer(model, peft_config=LoraConfig(r=8, target_modules=["q_proj"]),
    args=SFTConfig(per_device_train_batch_size=2, bf16=True, CUT=512))
"""


def priced(path: Path, text: str, gpu: str = "h100", **set_values: str) -> Estimate:
    """What `estimate` says of the text as a file."""
    path.write_text(text)
    asked = Overrides((gpu,), stated={"data.rows": 20_000}, set_values=set_values)
    (found,) = load_jobs(path, asked)
    return estimate(found.job)


def _on_one(folder: Path) -> Path:
    (folder / "one.yaml").write_text("distributed_type: 'NO'\nnum_processes: 1\n")
    flags = " ".join(f"--{line.replace(':', '')}" for line in FACTORY.splitlines())
    (folder / "run.sh").write_text(f"accelerate launch --config_file one.yaml src/train.py {flags}")
    return folder / "run.sh"


def test_on_more_devices_than_the_file_has_its_other_settings_stay(tmp_path: Path) -> None:
    path = _on_one(tmp_path)
    text = path.read_text()
    alone, spread = priced(path, text), priced(path, text, "8xh100")
    ours, theirs = spread.row.config.as_dict(), alone.row.config.as_dict()
    split = {"micro_batch_size", "gradient_accumulation_steps"}
    same = {name for name in theirs if ours[name] == theirs[name]}
    assert set(theirs) - same == {*split, "sharding"}
    assert theirs["activation_checkpointing"] == "full"  # LLaMA-Factory's own default
    assert [ours[name] for name in sorted(split)] == [1, 2]
    assert spread.job.global_batch_size == alone.job.global_batch_size == 16
    assert any("split 2 x 1 on each, not 4 x 4" in each for each in spread.warnings)
    assert not any("was assumed" in each for each in spread.warnings)


def test_the_batch_that_keeps_what_a_device_takes_is_named_and_keeps_it(tmp_path: Path) -> None:
    path = _on_one(tmp_path)
    found = priced(path, path.read_text(), "8xh100", **{"train.global_batch_size": "128"})
    config = found.row.config
    assert (config.micro_batch_size, config.gradient_accumulation_steps) == (4, 4)
    assert not any("on each, not" in each for each in found.warnings)


@pytest.mark.parametrize(
    ("more", "base"),
    [
        ("", "32bit"),
        ("pure_bf16: true\n", "16bit"),
        ("deepspeed: ds.json\n", "16bit"),  # its engine casts the model
    ],
)
def test_llama_factory_makes_fp32_of_what_it_trains(tmp_path: Path, more: str, base: str) -> None:
    stage = '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}'
    (tmp_path / "ds.json").write_text(stage)
    text = FACTORY.replace("bf16: true\n", "") if "pure" in more else FACTORY
    found = priced(tmp_path / "f.yaml", text + more, "2xh100")
    assert found.job.method.base == base


@pytest.mark.parametrize(
    ("cut", "kept", "said"), [("max_seq_length", "none", True), ("max_length", "full", False)]
)
def test_a_file_of_an_older_trl_recomputes_only_if_told(
    tmp_path: Path, cut: str, kept: str, said: bool
) -> None:
    text = NOTEBOOK.replace("CUT", cut)
    found = priced(tmp_path / "t.py", text)
    assert found.row.config.activation_checkpointing == kept
    assert any("gradient_checkpointing" in each for each in found.warnings) == said
    told = priced(tmp_path / "t.py", text.replace("bf16=True", "gradient_checkpointing=True"))
    assert told.row.config.activation_checkpointing == "full"


def test_deepspeeds_masters_on_one_device_are_counted(tmp_path: Path) -> None:
    stage = '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}'
    (tmp_path / "ds.json").write_text(stage)
    flags = FACTORY.replace("finetuning_type: full", "use_peft: false").replace("stage: sft\n", "")
    flags = flags.replace("cutoff_len", "max_length") + "dtype: bfloat16\n"
    plain = priced(tmp_path / "p.yaml", flags)
    zero = priced(tmp_path / "z.yaml", flags + "deepspeed: ds.json\n")
    alone = zero.row.memory_bytes
    weights = plain.row.memory_bytes.weights
    assert plain.job.method.base == "16bit"
    assert alone.weights + alone.gradients + alone.optimizer > 7.5 * weights  # 16 bytes, not 8
    assert any("fp32 masters" in each for each in zero.warnings)


@pytest.mark.parametrize(
    ("model", "base"),
    [
        (f'"{QWEN}"', "32bit"),
        (f'AutoModelForCausalLM.from_pretrained("{QWEN}", torch_dtype=torch.bfloat16)', "16bit"),
    ],
)
def test_a_model_that_trl_loads_by_its_name_is_in_fp32(
    tmp_path: Path, model: str, base: str
) -> None:
    text = f"""\
trainer = SFTTrainer({model}, args=SFTConfig(per_device_train_batch_size=2, bf16=True))
trainer.train()
"""
    found = priced(tmp_path / "t.py", text, **{"method.kind": "full"})
    assert found.job.method.base == base
    told = text.replace("bf16=True", 'bf16=True, model_init_kwargs={"torch_dtype": "bfloat16"}')
    assert (
        priced(tmp_path / "t.py", told, **{"method.kind": "full"}).job.method.base == "16bit"
    )  # in either way


PROGRAM = """\
@dataclass
class Own:
    model_name_or_path: str = field()
    lora_rank: int = field(default=32)

args, training_args = HfArgumentParser((Own, TrainingArguments)).parse_json_file("a.json")
model = AutoModelForCausalLM.from_pretrained(args.model_name_or_path, torch_dtype=torch.bfloat16)
model = get_peft_model(model, LoraConfig(r=args.lora_rank, target_modules=["q_proj", "o_proj"]))
Trainer(model=model, args=training_args, train_dataset=rows).train()
"""


def test_a_program_that_reads_a_file_of_arguments_says_the_rest_itself(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "sft.json").write_text(
        f'{{"model_name_or_path": "{QWEN}", "per_device_train_batch_size": 4, "fp16": true,'
        ' "num_train_epochs": 1, "output_dir": "out", "max_seq_length": 512}'
    )
    start = "deepspeed --num_gpus 2 train.py --train_args_file sft.json\n"
    found = priced(tmp_path / "run.sh", start, "h100").job
    assert (found.method.kind, found.method.rank) == ("lora", 32)
    assert found.method.targets == ("q_proj", "o_proj")
    assert (found.max_length, found.global_batch_size) == (512, 8)


TWO_LOADERS = f"""\
def fast(name):
    model, tok = FastLanguageModel.from_pretrained(name, load_in_4bit=False)
    return FastLanguageModel.get_peft_model(model, r=16, target_modules=["q_proj"])

def plain(name):
    model = AutoModelForCausalLM.from_pretrained(name)
    return get_peft_model(model, LoraConfig(r=16, target_modules=["q_proj"]))

name = "{QWEN}"
model = fast(name) if "unsloth" in name else plain(name)
Trainer(model=model, args=TrainingArguments(per_device_train_batch_size=2, bf16=True)).train()
"""


def test_a_script_that_loads_in_one_of_two_ways_says_so_first(tmp_path: Path) -> None:
    found = priced(tmp_path / "t.py", TWO_LOADERS, model=QWEN)
    assert any("Unsloth's and PEFT's" in each for each in found.warnings)
    one = TWO_LOADERS.partition("def plain")
    alone = one[0] + f'model = fast("{QWEN}")\n' + one[2].partition("plain(name)\n")[2]
    told = priced(tmp_path / "t.py", alone, model=QWEN).warnings
    assert not any("PEFT's" in each for each in told)
