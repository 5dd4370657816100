"""Makes `fixtures/llamafactory`: a tiny model trained by the real LLaMA-Factory, its text kept.

`make llamafactory-fixture` runs it in an environment of its own. What is kept holds no path, no
name of a host and no binary file.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

KEPT = ("trainer_log.jsonl", "trainer_state.json", "all_results.json", "train_results.json",
        "config.json")  # fmt: skip
FIXTURE = Path(__file__).parent / "fixtures" / "llamafactory"
UNKNOWN = "<unk>"
SPECIAL = {
    "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": UNKNOWN,
}  # fmt: skip
ARGUMENTS = """model_name_or_path: model
stage: sft
do_train: true
finetuning_type: full
dataset: rows
dataset_dir: data
template: default
cutoff_len: 128
output_dir: out
logging_steps: 5
save_steps: 40
per_device_train_batch_size: 4
gradient_accumulation_steps: 2
learning_rate: 1.0e-4
num_train_epochs: 2.0
bf16: false
disable_gradient_checkpointing: true
report_to: none
"""


def make(folder: Path) -> None:
    """A model, a tokenizer of single characters, and rows of one length."""
    vocab = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3}
    vocab |= {chr(32 + i): 4 + i for i in range(96)}
    shape = LlamaConfig(
        hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, vocab_size=300, max_position_embeddings=512,
    )  # fmt: skip
    LlamaForCausalLM(shape).save_pretrained(folder / "model")
    words = Tokenizer(models.WordLevel(vocab, unk_token=UNKNOWN))
    words.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    PreTrainedTokenizerFast(
        tokenizer_object=words, **SPECIAL,
    ).save_pretrained(folder / "model")  # fmt: skip
    rows = [{"instruction": f"say {i}", "input": "", "output": "hello " * 40} for i in range(320)]
    (folder / "data").mkdir()
    (folder / "data" / "rows.json").write_text(json.dumps(rows))
    (folder / "data" / "dataset_info.json").write_text('{"rows": {"file_name": "rows.json"}}')
    (folder / "train.yaml").write_text(ARGUMENTS)


def main() -> None:
    """Train, and keep the text of what was written."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder)
        cli = Path(sys.executable).with_name("llamafactory-cli")
        subprocess.run([cli, "train", "train.yaml"], cwd=folder, check=True)
        shutil.rmtree(FIXTURE, ignore_errors=True)
        FIXTURE.mkdir(parents=True)
        for kept in KEPT:
            shutil.copy(folder / "out" / kept, FIXTURE / kept)
        shutil.copy(folder / "train.yaml", FIXTURE / "train.yaml")


main()
