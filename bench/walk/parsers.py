"""Exported files read by the trainer's own parser, in a process of its own."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import TYPE_CHECKING

from bench.walk.terminal import WalkError

if TYPE_CHECKING:
    from pathlib import Path

# Trainer: the module that must be installed, and what reads sys.argv[1] with its parser. The file
# of transformers is not here: the run itself reads it.
_READERS = {
    "trl": ("trl", """
from transformers import HfArgumentParser
from trl import SFTConfig
(read,) = HfArgumentParser(SFTConfig).parse_json_file(sys.argv[1])
"""),
    "axolotl": ("axolotl", """
from axolotl.utils.schemas.config import AxolotlInputConfig
from ruamel.yaml import YAML
read = AxolotlInputConfig(**YAML(typ="safe", pure=True).load(open(sys.argv[1])))
"""),
    "llamafactory": ("llamafactory", """
import transformers
from llamafactory import hparams
from ruamel.yaml import YAML
parser = transformers.HfArgumentParser([
    hparams.ModelArguments, hparams.DataArguments, hparams.TrainingArguments,
    hparams.FinetuningArguments, hparams.GeneratingArguments,
])
read = parser.parse_dict({**YAML(typ="safe", pure=True).load(open(sys.argv[1])), "use_cpu": True})
"""),
    "litgpt": ("litgpt", """
import jsonargparse
from litgpt.finetune import lora
parser = jsonargparse.ArgumentParser()
parser.add_argument("--config", action="config")
parser.add_function_arguments(lora.setup)
read = parser.parse_args(["--config", sys.argv[1]])
"""),
}  # fmt: skip
_NAMES = {"trl": "sft_config.json"}


def parse_export(trainer: str, files: list[Path]) -> str:
    """Read the trainer's own file among those written; why it was not tried, else empty.

    Raises WalkError where it was not written, or the trainer refuses it.
    """
    name = _NAMES.get(trainer, trainer)
    own = [path for path in files if path.name.startswith(name) and path.is_file()]
    if not own:
        msg = f"the export for {trainer} wrote {[path.name for path in files]}, and no {name}"
        raise WalkError(msg)
    if trainer not in _READERS:
        return f"nothing here knows the parser of {trainer}"
    module, reader = _READERS[trainer]
    if importlib.util.find_spec(module) is None:
        return f"{module} is not installed, so its parser did not read {own[0].name}"
    code = f"import sys\n{reader}\nassert read is not None"
    done = subprocess.run(
        [sys.executable, "-c", code, str(own[0])], capture_output=True, text=True, check=False
    )
    if done.returncode:
        msg = f"{trainer} does not read {own[0]}: {done.stderr[-1500:]}"
        raise WalkError(msg)
    return ""
