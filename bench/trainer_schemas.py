"""Which keys each trainer takes, read from its released packages.

    python -m bench.trainer_schemas FOLDER

FOLDER holds wheels or source archives, downloaded without installing anything:

    python -m bench.trainer_schemas --list |
        xargs -n1 pip download --no-deps --ignore-requires-python -d FOLDER

The sources are parsed, never imported: dataclass and pydantic fields, parameters of functions,
flags of argument parsers and, for torchtune, the recipes' YAML. Written is one JSON file a trainer
into `autotune/trainers/data/`: the versions read, and every key with its kinds of value, its
default where it is a literal, and the first and last version that has it.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.schema_sources import (
    KINDS,
    Keys,
    Sources,
    entry,
    fields_of,
    flags_of,
    parameters_of,
    prefixed,
    runs_on,
    sources_in,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OUT = Path(__file__).resolve().parent.parent / "autotune" / "trainers" / "data"


def _transformers(known: Sources) -> Keys:
    known.learn("transformers/training_args.py")
    known.learn("transformers/trainer_utils.py")
    return fields_of(known, "TrainingArguments")


def _trl(known: Sources) -> Keys:
    known.learn("trl/trainer/")
    known.learn("trl/scripts/utils.py")
    known.learn("trl/commands/cli_utils.py")
    names = ("ScriptArguments", "SFTScriptArguments", "DatasetMixtureConfig", "ModelConfig")
    found: Keys = {}
    for name in (*names, "SFTConfig"):
        found |= fields_of(known, name)
    return found


def _axolotl(known: Sources) -> Keys:
    known.learn("axolotl/utils/schemas/")
    known.learn("axolotl/utils/config/models/")
    found = fields_of(known, "AxolotlInputConfig") | fields_of(known, "AxolotlConfigWCapabilities")
    plugins = [
        name for name in known.texts if re.search(r"axolotl/integrations/\w+/args\.py$", name)
    ]
    for path in sorted(plugins):
        tree = known.tree(path)
        own = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name.endswith("Args")]
        for node in own:
            known.classes[node.name] = node
        found |= {k: v for node in own for k, v in fields_of(known, node.name).items()}
    return found


def _llamafactory(known: Sources) -> Keys:
    known.learn("/hparams/")
    found: Keys = {}
    for name in (
        "ModelArguments", "DataArguments", "TrainingArguments", "FinetuningArguments",
        "GeneratingArguments",
    ):  # fmt: skip
        found |= fields_of(known, name)
    return found


def _litgpt(known: Sources) -> Keys:
    known.learn("litgpt/args.py")
    found: Keys = {}
    for section, name in (("train", "TrainArgs"), ("eval", "EvalArgs"), ("log", "LogArgs")):
        found |= prefixed(fields_of(known, name), section)
    for path in ("litgpt/finetune/full.py", "litgpt/finetune/lora.py"):
        for key, value in parameters_of(known, path, "setup").items():
            found[key] = {**value, "type": found.get(key, value)["type"]}
    return found


def _unsloth(known: Sources) -> Keys:
    found = parameters_of(known, "unsloth/models/loader.py", "FastLanguageModel.from_pretrained")
    lora = parameters_of(known, "unsloth/models/llama.py", "FastLlamaModel.get_peft_model")
    known.learn("unsloth/trainer.py")
    return {**lora, **found, **fields_of(known, "UnslothTrainingArguments")}


def _swift(known: Sources) -> Keys:
    known.learn("swift/llm/argument/")  # until 3.x
    known.learn("swift/arguments/")
    known.learn("swift/trainers/arguments.py")
    return {**fields_of(known, "TrainArgumentsMixin"), **fields_of(known, "SftArguments"),
            **fields_of(known, "TrainArguments"), **fields_of(known, "RLHFArguments")}  # fmt: skip


def _peft(known: Sources) -> Keys:
    known.learn("peft/tuners/lora/config.py")
    known.learn("peft/config.py")
    return fields_of(known, "LoraConfig")


def default_targets(known: Sources) -> dict[str, list[str]]:
    """The modules that PEFT adapts where none are stated, by the model's type."""
    for node in known.tree("peft/utils/constants.py").body:
        names = [getattr(target, "id", "") for target in getattr(node, "targets", [])]
        if "TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING" in names:
            found = ast.literal_eval(node.value)  # type: ignore[attr-defined]
            return {key: value for key, value in found.items() if isinstance(value, list)}
    msg = "PEFT's table of target modules has moved"
    raise KeyError(msg)


def _accelerate(known: Sources) -> Keys:
    known.learn("accelerate/commands/config/config_args.py")
    flags = flags_of(known, "accelerate/commands/launch.py")
    for made in flags.values():  # text on a command line; in the file a switch or number as well
        if "str" in made["type"]:
            made["type"] = "|".join(sorted({*made["type"].split("|"), "bool", "int"}))
    found = fields_of(known, "ClusterConfig")
    for section, pattern in (
        ("fsdp_config", "fsdp_"), ("dynamo_config", "dynamo_"), ("fp8_config", "fp8_"),
        ("megatron_lm_config", "megatron_lm_"), ("parallelism_config", "parallelism_config_"),
    ):  # fmt: skip
        found |= prefixed({k: v for k, v in flags.items() if k.startswith(pattern)}, section)
    inner = ("zero", "offload_", "gradient_", "deepspeed_")
    found |= prefixed({k: v for k, v in flags.items() if k.startswith(inner)}, "deepspeed_config")
    return found


def _deepspeed(known: Sources) -> Keys:
    known.learn("deepspeed/runtime/zero/")
    known.learn("deepspeed/runtime/precision_config.py")
    names = {
        getattr(target, "id", ""): node.value.value
        for path in ("deepspeed/runtime/constants.py", "deepspeed/runtime/zero/config.py")
        for node in known.tree(path).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
    }
    found: Keys = {}
    for node in ast.walk(known.tree("deepspeed/runtime/config.py")):
        called = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
        if called not in {"get_scalar_param", "get_dict_param"} or len(node.args) < 3:  # type: ignore[attr-defined]  # noqa: PLR2004
            continue
        holder, key, default = node.args[:3]  # type: ignore[attr-defined]
        name = names.get(getattr(key, "id", ""))
        if getattr(holder, "id", "") == "param_dict" and isinstance(name, str):
            value = names.get(getattr(default, "id", ""))
            kind = KINDS.get(type(value).__name__, "any")
            found[name] = {"type": "any" if value is None else kind, "default": value}
    for section, model in (
        ("zero_optimization", "DeepSpeedZeroConfig"), ("bf16", "DeepSpeedBF16Config"),
        ("fp16", "DeepSpeedFP16Config"),
        ("zero_optimization.offload_param", "DeepSpeedZeroOffloadParamConfig"),
        ("zero_optimization.offload_optimizer", "DeepSpeedZeroOffloadOptimizerConfig"),
    ):  # fmt: skip
        found.setdefault(section, {"type": "dict"})
        found |= prefixed(fields_of(known, model), section)
    return found


def _torchtune(known: Sources) -> Keys:
    """What the recipes read of their config, and what the shipped configs state."""
    from ruamel.yaml import YAML

    found: Keys = {}
    recipes = [n for n in known.texts if re.search(r"recipes/(lora|full)_finetune_\w+\.py$", n)]
    for name in sorted(recipes):
        found |= _read_of_config(ast.parse(known.texts[name]))
    configs = [n for n in known.texts if re.search(r"recipes/configs/.*(lora|full)[^/]*\.yaml$", n)]
    other = re.compile("ppo|dpo|grpo|knowledge|_kd_|qat|generation|quantization")
    configs = [name for name in configs if not other.search(name)]
    for name in sorted(configs):
        for key, value in _flat(YAML(typ="safe", pure=True).load(known.texts[name])):
            kind = KINDS.get(type(value).__name__, "null")
            kinds = {*found.get(key, {}).get("type", kind).split("|"), kind} - {"any"}
            found[key] = {**found.get(key, {}), "type": "|".join(sorted(kinds)) or "any"}
    return found


def _read_of_config(tree: ast.Module) -> Keys:
    """`cfg.name` and `cfg.get("name", default)`."""
    found: Keys = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "get":
            owner = getattr(getattr(node.func, "value", None), "id", "")
            if owner == "cfg" and isinstance(node.args[0], ast.Constant):
                default = node.args[1] if len(node.args) > 1 else None
                found[str(node.args[0].value)] = entry({"any"}, default)
        elif isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "cfg":
            found.setdefault(node.attr, {"type": "any"})
    return {key: value for key, value in found.items() if key not in {"get", "pop"}}


def _flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        yield f"{prefix}{key}", value
        if isinstance(value, dict) and not prefix:
            yield from _flat(value, f"{key}.")


@dataclass(frozen=True, slots=True)
class Trainer:
    """One trainer's package: which releases are read, how, and whose keys it takes over."""

    package: str
    versions: tuple[str, ...]
    read: Callable[[Sources], Keys]
    source: str
    extends: tuple[str, ...] = ()  # whose keys it takes over, up to the version that it runs on


TRAINERS = {
    "hf": Trainer(
        "transformers",
        ("4.40.2", "4.46.3", "4.57.6", "5.0.0", "5.2.0", "5.10.0", "5.20.0", "5.23.0"),
        _transformers, "TrainingArguments in training_args.py",
    ),
    "trl": Trainer(
        "trl",
        ("0.9.6", "0.12.2", "0.15.2", "0.16.1", "0.19.1", "0.22.0", "0.24.0", "1.0.0", "1.9.0",
         "1.16.0"),
        _trl,
        "SFTConfig, ModelConfig and ScriptArguments in trainer/ and scripts/utils.py", ("hf",),
    ),
    "axolotl": Trainer(
        "axolotl", ("0.6.0", "0.8.1", "0.12.2", "0.16.1", "0.19.0", "0.21.0"), _axolotl,
        "AxolotlInputConfig in utils/schemas/ (until 0.7 utils/config/models/), and the plugins' "
        "args.py in integrations/",
    ),
    "llamafactory": Trainer(
        "llamafactory", ("0.8.3", "0.9.1", "0.9.3", "0.9.5"), _llamafactory,
        "the dataclasses of hparams/", ("hf",),
    ),
    "torchtune": Trainer(
        "torchtune", ("0.4.0", "0.6.1"), _torchtune,
        "recipes/{lora,full}_finetune_*.py and recipes/configs/",
    ),
    "litgpt": Trainer(
        "litgpt", ("0.5.3", "0.5.13"), _litgpt, "setup() in finetune/{lora,full}.py, args.py",
    ),
    "unsloth": Trainer(
        "unsloth", ("2025.3.19", "2026.10.9"), _unsloth,
        "from_pretrained in models/loader.py, get_peft_model in models/llama.py, trainer.py",
        ("hf", "trl"),
    ),
    "swift": Trainer(
        "ms-swift", ("3.0.3", "3.8.3", "4.6.0"), _swift,
        "SftArguments and RLHFArguments in arguments/ (until 3.x llm/argument/)", ("hf",),
    ),
    "peft": Trainer("peft", ("0.10.0", "0.21.2"), _peft, "LoraConfig in tuners/lora/config.py"),
    "accelerate": Trainer(
        "accelerate", ("0.34.2", "1.15.0"), _accelerate,
        "ClusterConfig in commands/config/config_args.py, the flags of commands/launch.py",
    ),
    "deepspeed": Trainer(
        "deepspeed", ("0.19.8",), _deepspeed, "runtime/config.py, runtime/zero/config.py",
    ),
}  # fmt: skip


def schema_of(name: str, folder: Path) -> dict[str, Any]:
    """One trainer's file: versions, and every key with its first and last version."""
    trainer = TRAINERS[name]
    read: list[tuple[str, Keys]] = []
    versions = {}
    for version in trainer.versions:
        found = sources_in(folder, trainer.package, version)
        versions[version] = found.built
        read.append((version, trainer.read(found)))
    keys: Keys = {}
    for key in sorted({key for _, found in read for key in found}):
        having = [version for version, found in read if key in found]
        made = dict(next(found for version, found in read if version == having[-1])[key])
        if having[0] != trainer.versions[0]:
            made["since"] = having[0]
        if having[-1] != trainer.versions[-1]:
            made["until"] = having[-1]
        keys[key] = made
    made = {
        "trainer": name, "package": trainer.package, "source": trainer.source,
        "built": versions, "runs_on": runs_on(found), "extends": list(trainer.extends),
        "keys": keys,
    }  # fmt: skip
    if name == "peft":
        made["targets"] = default_targets(found)
    return made


def written(schema: dict[str, Any]) -> str:
    """One line a key, so that a difference between two versions can be read."""
    head = {key: value for key, value in schema.items() if key != "keys"}
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    keys = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in schema["keys"].items()]
    return "{\n" + ",\n".join(lines) + ',\n "keys": {\n' + ",\n".join(keys) + "\n }\n}\n"


def main() -> int:
    """Write the schemas of every trainer whose releases lie in the folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--list", action="store_true", help="print the releases to download")
    parser.add_argument("--only", help="one trainer")
    given = parser.parse_args()
    if given.list or given.folder is None:
        for trainer in TRAINERS.values():
            for version in trainer.versions:
                print(f"{trainer.package}=={version}")
        return 0
    OUT.mkdir(exist_ok=True)
    for name in [given.only] if given.only else TRAINERS:
        schema = schema_of(name, given.folder)
        (OUT / f"{name}.json").write_text(written(schema), encoding="utf-8")
        print(
            f"{name}: {len(schema['keys'])} keys, {schema['package']} {', '.join(schema['built'])}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
