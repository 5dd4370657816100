"""What a trainer's file trains, and whether that is priced: looked at before anything else is.

A sign is a key that is there with a certain value, the script that a command starts, or a class
that a script calls. The first sign that holds decides; without any the file trains supervised.
Source: the keys of axolotl 0.21, llamafactory 0.9.5 and its v1, torchtune 0.6.1, litgpt 0.5.13 and
the configs of trl 1.16 (DPOConfig, GRPOConfig, ...); unsloth 2026.10.9.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from autotune.catalog.models.families import SEES
from autotune.domain.errors import InputError
from autotune.domain.job import AS_SFT, PAIRED, WORK, Uncounted
from autotune.domain.typed.values import shown
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from autotune.domain.job import Objective
    from autotune.trainers.parsed import Parsed


@dataclass(frozen=True, slots=True)
class Sign:
    """One key that says what is trained. pattern: of its whole value as text, in any case."""

    objective: Objective
    key: str
    pattern: str = r".+"
    unless: tuple[str, ...] = ()  # keys that stand for another job where they are stated


@dataclass(frozen=True, slots=True)
class Aim:
    """What a file trains, and where it says so."""

    objective: Objective = "sft"
    said: str = ""
    other: str = ""  # where it says another beside it, of which a run has one
    as_sft: bool = False  # to be priced as supervised fine-tuning, though it is not


_ON = r"true|1|yes|on"
_PICTURES = r".*(stable-diffusion|/sdxl|/flux\.).*"
_EARS = r".*(whisper|voxtral|/csm-|-asr\b).*"
_OFF = {"", "false", "none", "null", "0", "0.0", "[]", "{}"}
_STEPS = ("optimizer", "optim", "train", "stage", "do_train", "train_dataset", "datasets",
          "per_device_train_batch_size", "num_train_epochs")  # fmt: skip
_TRAINS = (
    "dataset", "dataset_dir", "output_dir", "learning_rate", "tokenized_path", "num_train_epochs",
    "max_steps", "gradient_accumulation_steps", "export_dir",
)  # fmt: skip
_AXOLOTL = (
    Sign("reward", "reward_model", _ON), Sign("reward", "process_reward_model", _ON),
    Sign("rl", "rl", r"grpo|gdpo|ppo|ebft|rloo"), Sign("dpo", "rl", "dpo|ipo"),
    Sign("kto", "rl", "kto"), Sign("orpo", "rl", "orpo|simpo"), Sign("preference", "rl"),
    Sign("distillation", "kd_trainer", _ON), Sign("distillation", "plugins", r".*KDPlugin.*"),
    Sign("diffusion", "plugins", r".*DiffusionPlugin.*"),
    Sign("classification", "num_labels"), Sign("audio", "base_model", _EARS),
    Sign("classification", "model_type", r".*ForSequenceClassification"),
    Sign("vision", "processor_type"), Sign("vision", "base_model", SEES),
    Sign("pretraining", "pretraining_dataset"),
)  # fmt: skip
_FACTORY = (
    Sign("reward", "stage", "rm"), Sign("rl", "stage", "ppo"),
    Sign("rl", "reward_model_name_or_path"),
    Sign("kto", "stage", "kto"), Sign("orpo", "stage", "orpo|simpo"),
    Sign("orpo", "pref_loss", "orpo|simpo"), Sign("dpo", "stage", "dpo"),
    Sign("merging", "export_dir", unless=("do_train",)),
    Sign("evaluation", "do_predict", _ON, unless=("do_train",)),
    Sign("inference", "infer_backend", unless=_STEPS),
    Sign("rl", "stage", r"grpo|gspo|rloo|reinforce\w*"),
    Sign("inference", "sample_backend", unless=_STEPS),
    Sign("evaluation", "task", r".*(mmlu|ceval|cmmlu).*"),
    *(Sign("vision", key) for key in (
        "image_max_pixels", "video_max_pixels", "freeze_vision_tower", "image_resolution",
        "freeze_multi_modal_projector", "train_mm_proj_only",
    )),
    Sign("audio", "model_name_or_path", _EARS), Sign("vision", "model_name_or_path", SEES),
    Sign("vision", "model", SEES), Sign("vision", "model_class", "(m|v)llm"),
    Sign("classification", "model_class", "cls|classification"),
    Sign("preference", "train_dataset", r".*(dpo|preference|pairwise).*"),
    Sign("vision", "train_dataset", r".*(multimodal|mllm).*"),
    Sign("pretraining", "stage", "pt"),
    Sign("inference", "template", unless=(*_STEPS, *_TRAINS)),
    Sign("inference", "adapter_name_or_path", unless=(*_STEPS, *_TRAINS)),
)  # fmt: skip
_TUNE = (
    Sign("evaluation", "tasks", unless=("optimizer",)),
    Sign("merging", "quantizer", unless=("optimizer",)),
    Sign("inference", "max_new_tokens", unless=("optimizer",)),
    Sign("distillation", "teacher_model"), Sign("distillation", "kd_ratio"),
    Sign("rl", "loss._component_", r".*(grpo|ppo).*"), Sign("rl", "kl_coeff"),
    Sign("rl", "ppo_epochs"), Sign("rl", "grpo_samples"), Sign("rl", "orchestration"),
    Sign("orpo", "loss._component_", r".*simpo.*"),
    Sign("dpo", "loss._component_", r".*(dpo|rsoloss|ipo).*"),
    Sign("preference", "dataset._component_", r".*(preference|paired|hh_rlhf).*"),
    Sign("classification", "model._component_", r".*(classifier|reward).*"),
    Sign("vision", "model._component_", r".*(vision|flamingo|early_fusion).*"),
    Sign("vision", "tokenizer.image_size"),
    Sign("evaluation", "checkpointer._component_", unless=("optimizer", "epochs", "batch_size")),
)  # fmt: skip
_LITGPT = (
    Sign("inference", "max_new_tokens"), Sign("pretraining", "train.max_tokens"),
    Sign("pretraining", "initial_checkpoint_dir"), Sign("pretraining", "model_name"),
)  # fmt: skip
_ARGUMENTS = (
    Sign("rl", "actor_model_name_or_path"), Sign("rl", "critic_model_name_or_path"),
    Sign("rl", "num_generations"), Sign("rl", "reward_funcs"), Sign("rl", "kl_coef"),
    Sign("rl", "num_ppo_epochs"), Sign("rl", "reward_model_path"), Sign("rl", "vllm_mode"),
    Sign("distillation", "teacher_model_name_or_path"), Sign("distillation", "lmbda"),
    Sign("orpo", "loss_type", "simpo|orpo"), Sign("kto", "loss_type", "kto|kto_pair"),
    Sign("dpo", "loss_type", r"dpo|sigmoid|hinge|ipo|apo_\w+"), Sign("dpo", "rpo_alpha"),
    Sign("dpo", "use_dpo", _ON), Sign("dpo", "dpo_beta"), Sign("orpo", "gamma_beta_ratio"),
    Sign("preference", "loss_type", r"bco_pair"), Sign("dpo", "ref_model"),
    Sign("rl", "reward_model_name_or_path"),
    Sign("preference", "max_prompt_length"), Sign("preference", "beta"),
    Sign("preference", "prompt_max_length"),
    Sign("reward", "center_rewards_coefficient"), Sign("classification", "num_labels"),
    Sign("classification", "task_name", r"cola|mnli|mrpc|qnli|qqp|rte|sst2|stsb|wnli"),
    Sign("evaluation", "do_predict", _ON, unless=("do_train", "per_device_train_batch_size")),
    Sign("inference", "max_new_tokens", unless=_STEPS),
    Sign("audio", "model_name_or_path", _EARS), Sign("vision", "model_name_or_path", SEES),
    Sign("vision", "vision_tower"), Sign("vision", "mm_projector_lr"),
    Sign("vision", "vision_model_id"), Sign("vision", "vision_model_name_or_path"),
    Sign("vision", "vision_encoder"), Sign("vision", "freeze_vision"),
    Sign("vision", "image_folder"), Sign("vision", "image_encoder_name_or_path"),
    Sign("diffusion", "model_name_or_path", _PICTURES),
    Sign("diffusion", "resolution"), Sign("diffusion", "pretrained_teacher_model"),
)  # fmt: skip
_SWIFT = (
    Sign("audio", "model", _EARS), Sign("vision", "model", SEES),
    Sign("vision", "freeze_vit"), Sign("vision", "max_pixels"),
    Sign("rl", "rlhf_type", r"ppo|grpo"), Sign("distillation", "rlhf_type", r"gkd|opd\w*"),
    Sign("kto", "rlhf_type", "kto"), Sign("orpo", "rlhf_type", "orpo|simpo|cpo"),
    Sign("dpo", "rlhf_type", "dpo"), Sign("reward", "rlhf_type", "rm"),
    Sign("distillation", "teacher_model"), Sign("classification", "task_type", "seq_cls"),
    Sign("embedding", "task_type", r"embedding|(generative_)?reranker"),
    Sign("classification", "num_labels"), Sign("rl", "reward_funcs"), Sign("rl", "num_generations"),
)  # fmt: skip
SIGNS: Final[Mapping[str, Sequence[Sign]]] = {
    "axolotl": _AXOLOTL, "llamafactory": _FACTORY, "torchtune": _TUNE, "litgpt": _LITGPT,
    "hf": _ARGUMENTS, "trl": _ARGUMENTS, "unsloth": _ARGUMENTS,
    "swift": _SWIFT,
}  # fmt: skip

# Scripts and subcommands by their stem, and classes that a script calls.
_PROGRAMS: tuple[tuple[Objective, str], ...] = (
    ("rl", r"(\w*_)?(a?grpo|gspo|ppo|rloo|online_dpo|nash_md|xpo|ssd|sdpo|reinforce)(_\w+)?"),
    ("dpo", r"(?!.*sft)([a-z\d]+_)*dpo(_\w+)?"), ("kto", r"(?!.*sft)([a-z\d]+_)*kto(_\w+)?"),
    ("orpo", r"(?!.*sft)([a-z\d]+_)*(orpo|cpo|simpo)(_\w+)?"),
    ("preference", r"(run_|train_)?(bco|tpo|mpo)(_\w+)?"),
    ("reward", r"(\w+_)?(reward|reward_model(l?ing|s)?|prm|rm)(_train(er|ing)?)?"),
    ("distillation", r"(gkd|gold|distill?(ation)?|minillm|sdft)(_\w+)?"),
    ("vision", (r"(sft|train)_vlm(_\w+)?|train_dreambooth\w*|\w*image_classification\w*|"
               r"\w*multi_?modal\w*|gr00t\w*")),
    ("diffusion", r"(\w*_)?(t2i|text_to_image|unet)(_\w+)?"),
    ("classification", r"(\w+_)?run_(glue|classification|ner|xnli|swag|squad|qa)\w*"),
    ("evaluation", r"(run_|lm_)?eval(uate|uation)?(_\w+)?"),
    ("preparation", (r"(pre_?process|prepare|(pre)?tokeni[sz]e|download)(_\w*)?|(make|build|create|"
                    r"gen|generate|convert|split|filter)_(\w+_)?(data|datasets?|corpus)(_\w+)?")),
    ("inference", (r"(\w+_)?(infer|inference)|(chat|generate|infer|inference|deploy|rollout|"
                  r"vllm_infer|serve|vllm-serve)(_\w+)?")),
    ("merging", r"(merge|convert|export)(_\w+)?"),
)  # fmt: skip
_CALLS: tuple[tuple[Objective, str], ...] = (
    ("rl", r"(Async)?(GRPO|PPO|RLOO|OnlineDPO|NashMD|XPO|SSD|SDPO)(Config|Trainer)"),
    ("orpo", r"(ORPO|CPO|SimPO)(Config|Trainer)"), ("kto", r"KTO(Config|Trainer)"),
    ("dpo", r"DPO(Config|Trainer)"), ("preference", r"(BCO|TPO)(Config|Trainer)|PatchDPOTrainer"),
    ("reward", r"([A-Z]\w*)?(Reward|PRM)(Config|Trainer)"),
    ("distillation", r"(GKD|GOLD|MiniLLM|SDFT|\w*Distill\w*)(Config|Trainer)"),
    ("embedding", r"(Fast)?SentenceTransformer\w*"),
    ("classification", r"AutoModelFor(Sequence|Token|Image|Audio)Classification|num_labels"),
    ("audio", r"(Whisper|Csm|Voxtral)\w*|AutoModelForSpeechSeq2Seq|finetune_audio_layers"),
    ("vision", (r"FastVisionModel|UnslothVisionDataCollator|AutoModelForImageTextToText|"
                r"AutoModelForVision2Seq|\w*VisionTrainer|finetune_vision_layers|"
                r"GR00T\w*|(PaliGemma|Qwen\d\w*VL|Qwen2_5_VL|Llava\w*|Idefics\d?|Mllama|SmolVLM|Pixtral|"
                r"InternVL|Blip\w*|Florence\w*)(ForConditionalGeneration|Processor)")),
    ("encoder", r"AutoModelFor(MaskedLM|Seq2SeqLM)|(M?T5|M?Bart|Pegasus)ForConditionalGeneration"),
    ("diffusion", r"(StableDiffusion|UNet2D|DDPM)\w*"),
)  # fmt: skip

# TRL's own sft.py: the model's architecture says which class loads it, and its name what it is.
_BY_ARCHITECTURE = {"MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES", "AutoModelForCausalLM"}

# A program's name that says nothing, and folders that then do. Source: DeepSpeedExamples,
# applications/DeepSpeed-Chat/training: every step there is a main.py of its own.
_PLAIN_PROGRAM = "main"
_FOLDERS: tuple[tuple[Objective, str], ...] = (
    ("dpo", r"step\d_dpo_finetuning"), ("reward", r"step\d_reward_model_finetuning"),
    ("rl", r"step\d_rlhf_finetuning"),
)  # fmt: skip

# Arguments that several kinds of preference share: the names of a run say which.
_NAMED = ("output_dir", "run_name", "hub_model_id", "wandb_project", "exp_name")
_NAMES: tuple[tuple[Objective, str], ...] = (
    ("orpo", r"orpo|simpo|cpo"), ("kto", "kto"), ("dpo", "dpo|ipo"),
)  # fmt: skip

_WORDS: dict[Objective, str] = {
    "dpo": "trains preference pairs against a reference model (DPO)",
    "kto": "trains preferences against a reference model (KTO)",
    "orpo": "trains preference pairs without a reference model (ORPO, SimPO)",
    "preference": "trains preference pairs, a chosen answer beside a rejected one",
    "reward": "trains a reward model",
    "rl": "trains by reinforcement learning (rl)",
    "distillation": "trains by distillation from a teacher",
    "classification": "trains classification, not a decoder's next token",
    "embedding": "trains an embedding model",
    "encoder": "trains an encoder, or one beside a decoder, not a decoder alone",
    "vision": "trains a model that sees (vision)",
    "audio": "trains a model that hears or speaks (audio)",
    "diffusion": "trains by diffusion",
    "evaluation": "is an evaluation and trains nothing",
    "inference": "runs a model (inference) and trains nothing",
    "preparation": "prepares data and trains nothing",
    "merging": "merges or converts weights (merging) and trains nothing",
}
_TRAINS_NOTHING = frozenset({"evaluation", "inference", "merging", "preparation"})
PRICED = (
    "supervised fine-tuning, continued pre-training, DPO, KTO, ORPO and reward models are priced"
)
# How far the run may lie from its price as supervised fine-tuning: a reference model's forward and
# pairs of sequences are two to three times its time. An assumption, wide on purpose.
_AS_OTHER_SD = (0.7, 0.4)


def aim_of(
    trainer: str,
    values: Mapping[str, Any],
    program: Sequence[str] = (),
    calls: Collection[str] = (),
    folders: Collection[str] = (),
) -> Aim:
    """What a file or a command trains, by the first sign that holds.

    Args:
        trainer: whose words the values are.
        values: the file's mapping, or a command's flags.
        program: words of the command in front of its flags.
        calls: names that a script calls.
        folders: those that a shell script lies in.
    """
    # What trains says it before what it is told: any of TRL's configs may be handed to SFTTrainer,
    # or its flags to the Trainer.
    plain = {"SFTTrainer", "Trainer"} & {*calls}  # any other trainer of TRL's is a sign itself
    told = {name for name in calls if name.endswith("Config")} if plain else set()
    told |= {"AutoModelForImageTextToText"} if {*calls} >= _BY_ARCHITECTURE else set()
    for objective, pattern in _CALLS:
        found = sorted(name for name in {*calls} - told if re.fullmatch(pattern, name))
        if found:
            return Aim(objective, f"{found[0]}(...)")
    for word in program:
        stem = word.rpartition("/")[2].removesuffix(".py").rpartition(".")[2]
        for objective, pattern in _PROGRAMS:
            if re.fullmatch(pattern, stem) and not word.startswith("-"):
                return Aim(objective, word)
        for objective, pattern in _FOLDERS if stem == _PLAIN_PROGRAM else ():
            found = [folder for folder in folders if re.fullmatch(pattern, folder)]
            if found:
                return Aim(objective, found[0])
    if trainer in {"hf", "trl", "llamafactory"} and (off := _only_evaluates(values)):
        return Aim("evaluation", off)
    held = [sign for sign in SIGNS.get(trainer, ()) if _holds(sign, values)]
    held.sort(key=lambda sign: sign.objective not in {"merging", "evaluation"})  # of any stage
    if not held:
        return Aim()
    said = [f"{sign.key}: {shown(at_key(values, sign.key))}" for sign in held]
    own = _APART.get(held[0].objective)
    apart = [_APART.get(sign.objective, own) != own for sign in held]
    other = said[apart.index(True)] if own and True in apart else ""
    return Aim(held[0].objective, said[0], other=other)


# Of these a run has one; a key may say which preference it is, and vision, audio and so on may
# stand beside any of them.
_APART: Final = {
    **dict.fromkeys(("dpo", "kto", "orpo"), "preference"),
    **{word: word for word in ("reward", "rl", "distillation")},
}


def trains_nothing(command: str) -> bool:
    """Whether the program that a command starts is named after what trains nothing."""
    script = re.search(r"(\S+\.py)\b|-m\s+([\w.]+)", command)
    named = [each for each in script.groups() if each] if script else []
    return aim_of("", {}, named).objective in _TRAINS_NOTHING


def _only_evaluates(values: Mapping[str, Any]) -> str:
    """What says that a file evaluates and does not train: the training is switched off."""
    trains = str(at_key(values, "do_train")).strip().casefold()
    done = next((key for key in ("do_eval", "do_predict") if _text(values, key)), "")
    return f"do_train: {trains}, {done}: true" if done and trains in {"false", "0", "no"} else ""


def _holds(sign: Sign, values: Mapping[str, Any]) -> bool:
    text = _text(values, sign.key)
    stated = text is not None and not any(_text(values, key) for key in sign.unless)
    return stated and bool(re.fullmatch(sign.pattern, str(text), re.IGNORECASE | re.DOTALL))


def at_key(values: Mapping[str, Any], dotted: str) -> Any:  # noqa: ANN401 - any value
    """What stands at a dotted key; None where nothing does."""
    value: Any = values
    for part in dotted.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _text(values: Mapping[str, Any], dotted: str) -> str | None:
    """What a key says; None where it says nothing, or that it is off."""
    value = at_key(values, dotted)
    text = str(value).strip()
    return None if value is None or text.casefold() in _OFF else text


def settled(aim: Aim, name: str, asked: str = "", values: Mapping[str, Any] | None = None) -> Aim:
    """As what it is priced. Raises InputError for what is not priced and not asked to be.

    Args:
        aim: what the file trains.
        name: what the error calls it.
        asked: what `--as` says: an objective that is priced, or nothing.
        values: the file's mapping, whose names may say which preference it is.
    """
    if aim == Aim() and asked != AS_SFT:
        aim = _called(name)
    if aim.objective == "preference":
        aim = replace(aim, objective=_named(f"{_near(name)} {_names(values or {})}"))
    if aim.objective in _TRAINS_NOTHING:
        msg = f"{name} {_WORDS[aim.objective]} ({aim.said}): {PRICED}"
        raise InputError(msg, "name the file that the training was started with")
    if asked == AS_SFT:
        return replace(aim, as_sft=aim.objective not in {"sft", "pretraining"})
    if asked in PAIRED:
        return Aim(asked, aim.said or "--as")
    if aim.other:
        msg = f"{name} says two objectives: {aim.said}, and {aim.other}"
        raise InputError(msg, "a run has one: take one of the keys out, or say which by --as")
    if aim.objective in WORK:
        return aim
    msg = f"{name} {_WORDS[aim.objective]} ({aim.said}): {PRICED}"
    hint = "--as sft prices supervised fine-tuning with the same settings, and says so"
    if aim.objective == "preference":
        msg = f"{name} trains preferences ({aim.said}), and does not say which kind"
        hint = "--as dpo or kto (with a reference model), or --as orpo (without one)"
    raise InputError(msg, hint)


def _names(values: Mapping[str, Any]) -> str:
    return " ".join(str(values[key]) for key in _NAMED if key in values)


def _called(name: str) -> Aim:
    """What a file that says nothing of what it trains is called after: preferences, or rewards.

    Such scripts hand plain settings to a program of their own. A name that says "sft" as well means
    the model that comes before or after it.
    """
    stem = name.replace("\\", "/").rpartition("/")[2].casefold()
    said = f"its name is {stem}"
    if re.fullmatch(r"(run_|train_)?(rm|reward(_?model(l?ing)?)?)(_(config|train\w*))?\.\w+", stem):
        return Aim("reward", said)
    spoken = re.search(r"(?<![a-z])(dpo|kto|orpo|simpo|cpo)(?![a-z])", stem)
    return Aim("preference", said) if spoken and "sft" not in stem else Aim()


def named_reward(name: str) -> Aim:
    """A reward model, where a script's own name says so and nothing in it: its model is its own."""
    stem = name.replace("\\", "/").rpartition("/")[2].casefold().removesuffix(".py")
    said = re.fullmatch(r"(\w+_)?reward_model(l?ing)?(_\w+)?", stem)
    return Aim("reward", f"its name is {stem}") if said else Aim()


def _near(name: str) -> str:
    """The name of a file with its folder's, and those above that are called after a preference.

    A repository may be called after one of which its file trains another.
    """
    *above, folder, stem = ["", *name.replace("\\", "/").split("/")]
    exact = [part for part in above if any(re.fullmatch(p, part.casefold()) for _, p in _NAMES)]
    return "/".join([*exact, folder, stem])


def _named(text: str) -> Objective:
    """The kind of preference that exactly one name speaks of."""
    found: set[Objective] = {
        objective for objective, pattern in _NAMES
        if re.search(rf"(?<![a-z])({pattern})(?![a-z])", text.casefold())
    }  # fmt: skip
    return found.pop() if len(found) == 1 else "preference"


def take_aim(parsed: Parsed, aim: Aim) -> None:
    """Keep what the file trains; where that is priced as another, the answer says so first."""
    parsed.objective = aim.objective
    if not aim.as_sft:
        return
    why = f"priced as supervised fine-tuning, as --as sft asks; the file {_WORDS[aim.objective]}"
    parsed.uncounted.append(Uncounted("objective", aim.said, why, *_AS_OTHER_SD))
