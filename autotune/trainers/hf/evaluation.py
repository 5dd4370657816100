"""Evaluations during a run, and the rows held out for them, in the words of TrainingArguments.

Source: training_args.py of transformers 4.57.6 to 5.23.0.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from autotune.trainers.schema import schema_of

if TYPE_CHECKING:
    from autotune.trainers.parsed import Keys, Parsed

# What programs call the rows that they take from the training for evaluation. Source: trl 1.16
# scripts/utils.py, datasets `train_test_split`, alpaca-lora's finetune.py, qlora's qlora.py.
HELD_OUT = ("test_split_size", "test_size", "val_set_size", "val_size", "eval_dataset_size")


def read_held_out(keys: Keys, parsed: Parsed, *names: str) -> None:
    """Rows of the data that evaluate and are not trained on: a share below 1, or how many."""
    stated = keys.number(*names)
    if stated and stated != 1.0:
        parsed.part("data", held_out=stated)


# What programs call the most rows that they take of a data set. Source: transformers 5.23
# examples/pytorch/language-modeling/run_clm.py; llamafactory 0.9.5 hparams/data_args.py.
AT_MOST = ("max_train_samples", "max_samples", "num_train_samples")


def read_rows_at_most(keys: Keys, parsed: Parsed, *names: str) -> None:
    """The most rows of each data set, where one number says it; lists stay unread."""
    stated = next((keys.at(name) for name in names if keys.at(name) is not None), None)
    if str(stated).isdecimal() and int(str(stated)[:12]) > 0:
        parsed.rows_at_most = keys.whole(*names)


def _evaluate_by_share(parsed: Parsed, share: float) -> int | None:
    """`eval_steps: 0.1`: ten evaluations over the whole run; how many steps apart, if known."""
    train = parsed.values.get("train", {})
    if "steps" in train:
        steps: int = train["steps"]
        return math.ceil(share * steps)
    if train.get("epochs"):
        parsed.evaluations_per_epoch = times_an_epoch(share, train["epochs"])
    return None


def times_an_epoch(share: float, epochs: float) -> float:
    """How often an epoch what comes after every `share` of a run of so many epochs comes."""
    return 1.0 / max(share * epochs, _LEAST_SHARE)


_LEAST_SHARE = 1e-12  # of an epoch: less than a step of any


# The program is the trainer's own, so that nothing but the file switches evaluations on.
_OFF_UNLESS_STATED = {"llamafactory"}


def read_evaluation(keys: Keys, parsed: Parsed) -> None:
    """Evaluations, of rows that are held out; of others the arguments do not say how many.

    A program of people's own may compute the strategy: its steps say enough.
    """
    strategy = keys.word("eval_strategy", "evaluation_strategy")
    every = keys.number("eval_steps", low=-1)
    names = ("per_device_eval_batch_size", "per_gpu_eval_batch_size")
    left_open = "$" in str(keys.get(*names))  # a shell decides it, and it decides little
    batch = None if left_open else keys.whole(*names, low=1)
    first = keys.switch("eval_on_start")
    keeps = read_metrics(keys)
    keys.get("do_eval")
    keys.get("do_train")
    implied = strategy is None and every and every > 0
    if strategy in {"steps", "epoch"} or (implied and parsed.trainer not in _OFF_UNLESS_STATED):
        whole = int(every) if every and every >= 1 and strategy != "epoch" else None
        parsed.evaluations_per_epoch = 1.0 if strategy == "epoch" else None
        if every and 0 < every < 1 and strategy != "epoch":
            whole = _evaluate_by_share(parsed, every)
        parsed.part("evaluation", every_steps=whole, batch_size=batch, at_start=first or None)
        parsed.part("evaluation", **(keeps if parsed.trainer != "unsloth" else {}))
        parsed.values.setdefault("evaluation", {})
        size_by_default(parsed)


METRICS = "compute_metrics"  # what a script hands to its trainer, where nothing thins the logits


def read_metrics(keys: Keys) -> dict[str, object]:
    """Whether the logits of an evaluation are kept, and of how many batches on the device.

    Does not cover: Unsloth, whose forward returns none unless it is told to.
    Source: transformers 5.23 trainer.py, evaluate and evaluation_loop: without metrics only losses.
    """
    metrics, often = keys.switch(METRICS), keys.whole("eval_accumulation_steps", low=1)
    off = [keys.switch("prediction_loss_only"), keys.switch("batch_eval_metrics")]
    kept = bool(metrics) and not any(off) and not keys.switch("predict_with_generate")
    return {"keeps_logits": True, "accumulation_steps": often} if kept else {}


# Rows of an evaluation batch where nothing is stated, of those whose schema does not say.
# Source: unsloth 2025.3 and 2026.10 models/rl.py, the defaults of the SFTConfig that it puts in the
# place of TRL's; axolotl 0.19 utils/config/__init__.py, normalize_config: as many as it trains on.
_DEFAULT_ROWS = {"unsloth": 4, "axolotl": 0}
EVALUATION_BATCH = "per_device_eval_batch_size"


def size_by_default(parsed: Parsed) -> None:
    """How many rows its trainer evaluates at once where the file does not say.

    Source: the schemas; transformers 5.23 training_args.py: 8, whatever the training's batch is.
    """
    if "batch_size" not in parsed.values["evaluation"]:
        own = schema_of(parsed.trainer).default(EVALUATION_BATCH)
        parsed.evaluation_rows = _DEFAULT_ROWS.get(parsed.trainer, own or 0)
