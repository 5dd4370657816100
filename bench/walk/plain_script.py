"""A training script as users have them: nothing in it knows of a plan, but for the lines given."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_SCRIPT = """
import json
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments
{head}

MOST = 256
rows = [json.loads(line) for line in open("jobs/data/tiny.jsonl", encoding="utf-8")]


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return len(rows)

    def __getitem__(self, index):
        text = rows[index]["prompt"] + rows[index]["completion"]
        return list(text.encode())[:MOST]


def padded(batch):
    width = max(map(len, batch))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in batch])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in batch])
    return {{"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}}


arguments = json.load(open({arguments}, encoding="utf-8")) | {{"output_dir": "my output"}}
config = AutoConfig.from_pretrained("jobs/data/tiny_model")
model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
lora = LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=16, target_modules="all-linear")
trainer = Trainer(
    model=get_peft_model(model, lora),
    args=TrainingArguments(**arguments),
    train_dataset=Rows(),
    eval_dataset=torch.utils.data.Subset(Rows(), range(16)),
    data_collator=padded,
)
{tail}
trainer.train()
"""


def script(lines: Sequence[str], arguments: Path) -> str:
    """The script with the printed lines: the first among the imports, the others before train().

    arguments: the trainer's arguments as they were exported.
    """
    head, *tail = lines
    path = json.dumps(str(arguments), ensure_ascii=False)
    return _SCRIPT.format(head=head, tail="\n".join(tail), arguments=path).lstrip()
