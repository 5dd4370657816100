"""Software: which versions run together, what they compute and for whom, how an extra is installed.

Source of the loss rules: modelling and trainer code of the versions named; byte counts are those of
published peak memory (fms-acceleration A100 tables: transformers 4.45 peaks at 12 bytes a logit,
4.48 at 14).
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, requires, version
from typing import TYPE_CHECKING, Any, get_args

from autotune.catalog.tables import DATA, CatalogDataError
from autotune.domain.errors import InputError, unknown
from autotune.domain.job import Assumption
from autotune.domain.model import Mamba2
from autotune.domain.objective import PAIRED
from autotune.domain.software import LossKind, Software

if TYPE_CHECKING:
    from autotune.domain.job import Method
    from autotune.domain.model import Model
    from autotune.domain.objective import Objective

DEFAULT = "default"
REQUIRED = ("torch", "transformers", "peft", "accelerate")
OPTIONAL = (
    "trl", "flash_attn", "bitsandbytes", "liger_kernel", "torchao", "flash_attn_3", "hub_kernels",
    "flash_linear_attention", "mamba_ssm",
)  # fmt: skip
# Optional packages that open levers, and the version that is assumed of one to be installed.
# Source: newest releases on PyPI, 2026-11-22; flash-attention 3: setup.py of its folder `hopper`.
INSTALLABLE = {
    "flash_attn": (2, 8, 3), "bitsandbytes": (0, 50, 2), "liger_kernel": (0, 8, 5),
    "torchao": (0, 18, 0), "flash_attn_3": (3, 0, 0), "flash_linear_attention": (0, 5, 2),
    "mamba_ssm": (2, 3, 2),
}  # fmt: skip


# These do nothing for models without the layers that they have kernels for.
OF_MIXERS = ("flash_linear_attention", "mamba_ssm")
# What a trainer's own file can switch on: fp8; Liger; a loss in tiles that is not its default;
# states and checkpoints in the host's memory. `own_`: by code of its own, whatever the versions of
# transformers and TRL. "" is a job that was not read from a trainer's file: it becomes hf or trl.
_ARGUMENTS = frozenset({"fp8", "liger", "states", "checkpoints"})
LEVERS_OF = {
    "": _ARGUMENTS | {"tiles"}, "hf": _ARGUMENTS, "trl": _ARGUMENTS,
    "axolotl": _ARGUMENTS | {"own_tiles", "own_checkpoints"},
    "llamafactory": frozenset({"liger", "states"}),
    "swift": frozenset({"liger", "states"}), "torchtune": frozenset({"own_checkpoints"}),
}  # fmt: skip


def installing(package: str) -> str:
    """What is typed so that a job counts on one of the packages of INSTALLABLE."""
    return f"--set software.{package}={'.'.join(map(str, INSTALLABLE[package]))}"


def unkernelled(model: Model, method: Method, software: Software) -> list[Assumption]:
    """That a model with gated delta nets or Mamba layers runs without their kernels."""
    package = model.kernel_package
    if not package or software.has_kernels(package):
        return []
    beside = " (with causal-conv1d)" if package == Mamba2.package else ""
    why = "not stated; slower, and more memory. "
    why += f"Where it is installed{beside}: {installing(package)}"
    if package == Mamba2.package and method.is_quantised:
        why = "its kernels fail over quantised weights; slower, and more memory than with them"
    return [Assumption(f"software.{package}", "not installed", why)]


def installed_versions(packages: Iterable[str] = REQUIRED) -> dict[str, str]:
    """Versions that a process started now would import; absent ones are left out."""
    found = {}
    for name in packages:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


SWITCHES = (
    "autocast", "steps_in_backward", "syncs_each_batch", "fused_adapters", "reentrant", "own_model",
    "kbit_prepared", "saves_as_loaded", "no_moments", "loads_whole",
    "saves_model_only", "cudnn_attention", "fp32_products", "quantised_experts", "linear_experts",
    "keeps_inputs",
)  # fmt: skip
KERNELS = ("eager", "liger", "unsloth")
HALVES = ("bf16", "fp16")
OWN_CODE = ("litgpt", "torchtune")  # trainers with model code, adapters and loss of their own
OWN_LOOP = "own"  # a loop of one's own around the classes of transformers
TRAINERS = ("transformers", "trl", *OWN_CODE, OWN_LOOP)
FOLLOWS_VERSIONS = frozenset({"upcast", "upcast_copy"})  # losses that a release decides
SHIFTED_COPY_FROM, SHIFTED_COPY_BEFORE = (4, 46), (4, 50)
TRL_CHUNKS_FROM = (1, 9)
TRL_TILES_PAIRS_FROM = (1, 15)
# Arguments of TRL's trainers ask for bf16 from one release on, and recompute from another; before,
# only where they are told. Source: trl 0.18 to 0.23, trainer/sft_config.py and dpo_config.py.
TRL_MIXED_FROM, TRL_RECOMPUTES_FROM = (0, 19), (0, 22)
# accelerate's `use_regional_compilation`, which transformers' Trainer takes from the launcher.
# Source: accelerate 1.6.0 release notes, `utils/other.py` compile_regions.
REGIONAL_SINCE = (1, 6)
# Before, transformers loaded fp32 unless `torch_dtype` said otherwise; since then as it is stored.
# Source: transformers modeling_utils.py: 4.57.1 `_get_dtype`, torch's default dtype where none is
# given; 5.23 from_pretrained, "auto" there.
LOADS_AS_STORED_FROM = (5,)
# Classes without `_supports_flash_attn` in transformers 5.23; gpt_oss's sinks need another kernel.
NO_FLASH = frozenset({"gpt_oss", "bloom", "mpt", "codegen", "xglm"})
# Model types of decoders of text that Liger 0.8.5 patches; any other it leaves as it is.
# Source: liger-kernel 0.8.5 transformers/monkey_patch.py, MODEL_TYPE_TO_APPLY_LIGER_FN.
LIGER_FAMILIES = frozenset(
    {"deepseek_v2", "deepseek_v3", "deepseek_v4", "exaone4", "falcon_h1", "gemma", "gemma2",
     "gemma3_text", "gemma4_text", "glm4", "gpt_oss", "granite", "hunyuan_v1_dense",
     "hunyuan_v1_moe", "llama", "llama4_text", "ministral", "mistral", "mixtral", "muse_glimmer",
     "nemotron", "olmo2", "olmo3", "phi3", "qwen2", "qwen3", "qwen3_5_moe_text", "qwen3_5_text",
     "qwen3_moe", "qwen3_next", "smollm3"}
)  # fmt: skip
_VERSION = re.compile(r"\d{1,5}(\.\d{1,5}){0,3}")
_HINT = (
    "software takes the name of a profile, or versions such as {transformers: 5.23.0, "
    "flash_attn: 2.8.0}; none means not installed"
)


@lru_cache(maxsize=1)
def _document() -> dict[str, dict[str, str]]:
    document = tomllib.loads((DATA / "software.toml").read_text(encoding="utf-8"))
    if document.pop("schema_version", None) != 1:
        msg = "software.toml must have schema_version 1"
        raise CatalogDataError(msg)
    return document


@lru_cache(maxsize=1)
def load_software() -> dict[str, Software]:
    """Every dated profile by name."""
    return {name: _profile(name, table) for name, table in _document().items()}


def _profile(name: str, table: Mapping[str, str]) -> Software:
    found: dict[str, Any] = {key: _version(key, table[key]) for key in REQUIRED}
    found |= {key: _version(key, table[key]) if key in table else None for key in OPTIONAL}
    profile = Software(name=name, as_of=table["as_of"], **found)
    return replace(profile, loss=loss_kind(profile))


def loss_kind(software: Software, trainer: str = "transformers") -> LossKind:
    """What the loss materialises with these versions.

    `fused` with Unsloth's kernels, `liger` with Liger's; `chunked` under TRL's trainer from 1.9 on
    (Liger's loss is off there); `upcast_copy` in transformers 4.46 to 4.49, whose loss function
    keeps a shifted copy beside the caller's 16-bit logits; `upcast` otherwise (before 4.46 the
    16-bit logits are dropped at the upcast, from 4.50 on the labels are shifted instead).
    `chunked` with the code of litgpt and torchtune.
    """
    if trainer in OWN_CODE:
        return "chunked"
    if software.kernels == "unsloth":
        return "fused"
    if trainer == "trl" and software.trl is not None and software.trl >= TRL_CHUNKS_FROM:
        return "chunked"
    if software.kernels == "liger":
        return "liger"
    if SHIFTED_COPY_FROM <= software.transformers < SHIFTED_COPY_BEFORE:
        return "upcast_copy"
    return "upcast"


def of_pairs(
    software: Software, objective: Objective, spec: object, *, ours: bool, by: str = ""
) -> Software:
    """The same with what the trainer of a preference or a reward holds of the logits.

    TRL's DPO and KTO compute theirs in tiles from 1.15 on, its ORPO holds all under every kernel,
    and a reward has none. LLaMA-Factory's trainers of preferences take the logits of the model and
    switch the loss of Liger off. Source: trl 1.14 to 1.16 trainer/dpo_trainer.py and kto_trainer.py
    (add_fused_lm_head), experimental/orpo/orpo_trainer.py; AutoModelForSequenceClassification;
    llamafactory 0.9.3 model/model_utils/liger_kernel.py (require_logits), train/dpo/trainer.py and
    train/kto/trainer.py (logits.to(torch.float32)).

    spec: what the job says of the software; a loss that it states stands. ours: whether TRL trains
    because no trainer's own file says who does. by: the trainer whose file the job was read from.
    """
    named = isinstance(spec, Mapping) and "loss" in spec
    if named or software.kernels == "unsloth":
        return software
    trl = software.trl if ours or software.trainer == "trl" else None
    if by == "llamafactory" and objective != "reward":
        return _of_all_logits(software)
    if trl is None:
        return software
    if objective == "reward" or (objective in {"dpo", "kto"} and trl >= TRL_TILES_PAIRS_FROM):
        return replace(software, loss="chunked")
    if objective == "orpo":
        return _of_all_logits(software)
    return replace(software, loss=loss_kind(software))


def _of_all_logits(software: Software) -> Software:
    plain = replace(software, kernels="eager")
    return replace(software, loss=loss_kind(plain), whole_logits=True)


def with_its_loss(
    software: Software, known: Software, objective: Objective, *, ours: bool
) -> Software:
    """The same with the loss of its own versions, where that of the known ones follows theirs.

    ours: as in `of_pairs`.
    """

    def loss(each: Software) -> LossKind:
        if objective in PAIRED:
            return of_pairs(each, objective, None, ours=ours).loss
        return loss_kind(each, each.trainer)

    if known.loss == loss(known):
        return replace(software, loss=loss(software))
    if known.loss in FOLLOWS_VERSIONS:
        return replace(software, loss=loss_kind(software))
    return software


def find_software(spec: object) -> Software:
    """A profile by name, or a profile with some versions changed. None: the default profile.

    A mapping may hold `profile` (the one to start from), versions by package (`none`: not
    installed), `kernels` (eager, liger, unsloth; a version: of the package of that name, which
    loads the hub's kernels and is called `hub_kernels` here), `trainer` (transformers, trl: decides
    the loss; litgpt, torchtune: also whose model code runs, without autocast; own: a loop of one's
    own, which nobody measured, so that its time is less sure), `loss`, which overrides what follows
    from the versions, `autocast` (false for a trainer that computes in 16 bits without it),
    `steps_in_backward` (true for one whose optimizer takes each gradient as the backward makes
    it), `syncs_each_batch` (true where gradients are reduced after every micro-step, accelerate's
    `sync_each_batch`), `fused_adapters` (true where adapters and their weights are one operation,
    as axolotl's `lora_mlp_kernel` and its like make them), `reentrant` (how layers are
    checkpointed, torch's `use_reentrant`; not stated: as transformers has it), `own_model` (true
    for model code of one's own: then the loss of a loop of one's own is `native`, torch's
    cross-entropy on the logits as they come), `kbit_prepared` (true where the base went through
    PEFT's `prepare_model_for_kbit_training`: what is not quantised stays in fp32),
    `saves_as_loaded` (true where what trains whole keeps the dtype it was loaded in),
    `no_moments` (true of an optimizer whose states take next to nothing of the device),
    `saves_model_only` (true where checkpoints hold no optimizer states), `cudnn_attention` (false
    where TORCH_CUDNN_SDPA_DEPRIORITIZED is set; not stated: as run.sh sets it), `fp32_products`
    (true where 4-bit weights are multiplied in fp32: `bnb_4bit_compute_dtype` left out, and no
    autocast), `quantised_experts` (true where experts that are one parameter are quantised with
    the base, axolotl's `quantize_moe_experts`), `linear_experts` (true where they are linear layers
    whatever transformers does, axolotl's `llama4_linearized_experts`), `loads_whole` (true of a
    trainer that puts the whole model on each device before ZeRO-3 shards it), `keeps_inputs` (true
    where Unsloth checkpoints layers as transformers does: `use_gradient_checkpointing=True`) and
    `base_dtype` (bf16 or fp16: what a 16-bit base is stored in, where the run may compute in the
    other). Raises InputError.
    """
    if spec is None:
        return load_software()[DEFAULT]
    if isinstance(spec, str):
        return _named(spec)
    if not isinstance(spec, Mapping):
        msg = f"software {spec!r} must be a profile's name or versions by package"
        raise InputError(msg, _HINT)
    return _changed(spec)


def _named(text: str) -> Software:
    profiles = load_software()
    found = profiles.get(text.strip())
    if found is None:
        raise unknown(
            kind="software profile",
            value=text,
            known=profiles,
            hint=f"profiles: {', '.join(profiles)}; {_HINT}",
        )
    return found


def _changed(spec: Mapping[str, Any]) -> Software:
    known = (*REQUIRED, *OPTIONAL, "profile", "kernels", "trainer", "loss", "base_dtype", *SWITCHES)
    stated = {str(key).replace("-", "_"): value for key, value in spec.items()}
    if _VERSION.fullmatch(str(stated.get("kernels", ""))):
        stated["hub_kernels"] = stated.pop("kernels")
    for key in stated:
        if key not in known:
            raise unknown(kind="software key", value=key, known=known, hint=_HINT)
    software = _named(str(stated.get("profile", DEFAULT)))
    versions = {
        key: _stated_version(key, stated[key]) for key in (*REQUIRED, *OPTIONAL) if key in stated
    }
    kernels = _choice("kernels", stated.get("kernels", software.kernels), KERNELS)
    trainer = _choice("trainer", stated.get("trainer", "transformers"), TRAINERS)
    if versions or kernels != software.kernels:
        name = f"{software.name}, changed"
        changes: dict[str, Any] = {**versions, "kernels": kernels, "name": name}
        software = replace(software, **changes)
    loss: Any = loss_kind(software, trainer)
    if "loss" in stated:
        loss = _choice("loss", stated["loss"], get_args(LossKind))
    own = _own(stated, trainer)
    if own.get("own_model") and trainer == OWN_LOOP and "loss" not in stated:
        loss = "native"
    return replace(software, loss=loss, **own)


def _own(stated: Mapping[str, Any], trainer: str) -> dict[str, Any]:
    """What the trainer and the switches say of the training code."""
    own: dict[str, Any] = {}
    if trainer in OWN_CODE:
        own = {"own_model": True, "stack": trainer, "autocast": False}
    if trainer == "trl":
        own = {"trainer": trainer}
    if trainer == OWN_LOOP:
        own = {"stack": OWN_LOOP}
    own |= {key: _switch(key, stated[key]) for key in SWITCHES if key in stated}
    if "base_dtype" in stated:
        own["base_dtype"] = _choice("base_dtype", stated["base_dtype"], HALVES)
    if own.pop("kbit_prepared", False):
        own["kbit_upcast"] = "all"
    return own


def _switch(key: str, value: object) -> bool:
    word = str(value).casefold()
    if word not in {"true", "false"}:
        msg = f"software {key} {value!r} must be true or false"
        raise InputError(msg, _HINT)
    return word == "true"


def _choice(key: str, value: object, choices: tuple[str, ...]) -> str:
    if value not in choices:
        hint = f"{key} takes one of: {', '.join(choices)}"
        if key == "kernels":
            hint += "; or a version of the package of that name"
        raise unknown(kind=f"software {key}", value=str(value), known=choices, hint=hint)
    return str(value)


def _stated_version(key: str, value: object) -> tuple[int, ...] | None:
    """A version from YAML, where 2.8 is a number and null means not installed."""
    absent = value is None or value is False or str(value).strip().casefold() in {"none", "off"}
    if absent and key in OPTIONAL:
        return None
    return _version(key, str(value))


def parsed_version(text: str) -> tuple[int, ...]:
    """The numbers of a version such as 5.23.0. Raises InputError for what is none."""
    return _version("a package", text)


def _version(key: str, text: str) -> tuple[int, ...]:
    plain = re.split(r"[+]|\.?(?:dev|post|rc)|(?<=\d)[ab](?=\d)", text.strip())[0]
    if not _VERSION.fullmatch(plain):
        msg = f"version {text!r} of {key} must be numbers with dots, such as 5.23.0"
        raise InputError(msg, _HINT)
    parts = tuple(int(part) for part in plain.split("."))
    return parts + (0,) * (3 - len(parts))


DISTRIBUTION = "autotune-finetune"  # `autotune` on the package index is somebody else's
_EXTRA = re.compile(r"extra\s*==\s*['\"]([\w-]+)['\"]")


def install_command(extra: str) -> str:
    """The command that installs what an extra of ours holds: pip and the packages' own names.

    The packages are named because that works from a checkout, from a wheel and in any environment,
    whether or not this distribution is on an index. Raises KeyError for an extra that is not ours.
    """
    packages = _packages(extra)
    if packages is None:  # run from a source tree that nobody installed
        return f"pip install -e '.[{extra}]' in the folder of pyproject.toml"
    if not packages:
        raise KeyError(extra)
    return f"pip install {' '.join(shlex.quote(package) for package in packages)}"


def _packages(extra: str) -> list[str] | None:
    """Requirements of an extra, as stated; None where the distribution is not installed."""
    try:
        stated = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        return None
    found = []
    for requirement in stated:
        package, _, marker = requirement.partition(";")
        named = _EXTRA.search(marker)
        if named and named.group(1) == extra:
            found.append(package.strip())
    return found
