"""One trainer's own parser, answering line by line: `python real_parser.py TRAINER`.

Run by the Python of the trainer's environment (`make parsers`), which has nothing of this project
in it. A line of JSON in is a file's mapping, a line out is why the parser refuses it, empty where
it takes it. What a parser prints goes to stderr.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

Values = dict[str, Any]
READY = "ready"


def _trl() -> Callable[[Values], object]:
    from trl import (
        DatasetMixtureConfig,
        DPOConfig,
        ModelConfig,
        ScriptArguments,
        SFTConfig,
        TrlParser,
    )  # fmt: skip

    def parser(arguments: type) -> TrlParser:
        return TrlParser((ScriptArguments, arguments, ModelConfig, DatasetMixtureConfig))

    sft, dpo = parser(SFTConfig), parser(DPOConfig)

    def take(values: Values) -> object:
        of = dpo if "beta" in values else sft
        return of.parse_dict({"output_dir": "out", **values, "use_cpu": True})

    return take


def _hf() -> Callable[[Values], object]:
    from transformers import HfArgumentParser, TrainingArguments

    parser = HfArgumentParser(TrainingArguments)
    return lambda values: parser.parse_dict({"output_dir": "out", **values, "use_cpu": True})


def _llamafactory() -> Callable[[Values], object]:
    from llamafactory import hparams
    from llamafactory.v1.config import data_args, model_args, sample_args, training_args
    from transformers import HfArgumentParser

    parser = HfArgumentParser((
        hparams.ModelArguments, hparams.DataArguments, hparams.TrainingArguments,
        hparams.FinetuningArguments, hparams.GeneratingArguments,
    ))  # fmt: skip

    newer = HfArgumentParser((
        model_args.ModelArguments, data_args.DataArguments, training_args.TrainingArguments,
        sample_args.SampleArguments,
    ))  # fmt: skip

    def take(values: Values) -> object:
        if "train_dataset" in values:  # only v1 has it
            return newer.parse_dict(values)
        # The DeepSpeed file lies beside the user's own, and is not here.
        told = {key: value for key, value in values.items() if key != "deepspeed"}
        return parser.parse_dict({**told, "use_cpu": True})

    return take


def _litgpt() -> Callable[[Values], object]:
    from jsonargparse import ArgumentParser
    from litgpt import pretrain
    from litgpt.finetune import full, lora

    def take(values: Values) -> object:
        parser = ArgumentParser(exit_on_error=False)
        parser.add_argument("--config", action="config")
        of = full.setup
        if "model_name" in values or "model_config" in values:
            of = pretrain.setup
        elif any(key.startswith("lora_") for key in values):
            of = lora.setup
        parser.add_function_arguments(of)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "config.json"
            path.write_text(json.dumps(values), encoding="utf-8")
            return parser.parse_args(["--config", str(path)])

    return take


def _torchtune() -> Callable[[Values], object]:
    from omegaconf import OmegaConf
    from torchtune import config

    def take(values: Values) -> object:
        read = OmegaConf.create(values)
        OmegaConf.resolve(read)
        if read.get("enable_activation_offloading") and not read.get(
            "enable_activation_checkpointing"
        ):  # as recipes/lora_finetune_single_device.py and its like check before they load a model
            msg = "enable_activation_offloading needs enable_activation_checkpointing"
            raise RuntimeError(msg)
        return config.validate(read)

    return take


def _axolotl() -> Callable[[Values], object]:
    from axolotl.utils.schemas.config import AxolotlInputConfig

    known = {*AxolotlInputConfig.model_fields, "model_type"}

    def take(values: Values) -> object:
        made = AxolotlInputConfig(**values)
        # It passes over what it does not know, such as a plugin's switch or a key with a slip in it
        if unknown := sorted(set(values) - known):
            msg = f"Some keys are not used by AxolotlInputConfig: {unknown}"
            raise ValueError(msg)
        return made

    return take


PARSERS = {
    "trl": _trl, "hf": _hf, "llamafactory": _llamafactory, "litgpt": _litgpt,
    "torchtune": _torchtune, "axolotl": _axolotl,
}  # fmt: skip


def refusal(take: Callable[[Values], object], values: Values) -> str:
    """Why the parser refuses a mapping, in one line; empty where it takes it."""
    try:
        take(values)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a parser raises is its word
        return " ".join(f"{type(error).__name__}: {error}".split())
    return ""


def main() -> int:
    """Says that the parser is there, then answers until the lines end."""
    os.environ.setdefault("DISABLE_VERSION_CHECK", "1")  # LLaMA-Factory's, of packages left out
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    with contextlib.redirect_stdout(sys.stderr):
        take = PARSERS[sys.argv[1]]()
        print(READY, file=answers, flush=True)
        for line in sys.stdin:
            print(json.dumps(refusal(take, json.loads(line))), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
