"""What a trainer's file trains, and whether that is priced: looked at before anything else is.

The first sign that holds decides (`signs`); without any the file trains supervised.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from autotune.catalog.models.models import reads_text_alone
from autotune.domain.errors import InputError
from autotune.domain.job import Uncounted
from autotune.domain.objective import AS_SFT, PAIRED, WORK
from autotune.domain.typed.values import shown
from autotune.frozen import dataclass
from autotune.trainers.parsed import at_key
from autotune.trainers.signs import (
    BY_ARCHITECTURE,
    CALLS,
    FOLDERS,
    PLAIN_PROGRAM,
    PROGRAMS,
    SIGNS,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from autotune.domain.objective import Objective
    from autotune.trainers.parsed import Parsed
    from autotune.trainers.signs import Sign


@dataclass(frozen=True, slots=True)
class Aim:
    """What a file trains, and where it says so."""

    objective: Objective = "sft"
    said: str = ""
    other: str = ""  # where it says another beside it, of which a run has one
    as_sft: bool = False  # to be priced as supervised fine-tuning, though it is not


_OFF = {"", "false", "none", "null", "0", "0.0", "[]", "{}"}

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
    told |= {"AutoModelForImageTextToText"} if {*calls} >= BY_ARCHITECTURE else set()
    for objective, pattern in CALLS:
        found = sorted(name for name in {*calls} - told if re.fullmatch(pattern, name))
        if found:
            return Aim(objective, f"{found[0]}(...)")
    for word in program:
        stem = word.rpartition("/")[2].removesuffix(".py").rpartition(".")[2]
        for objective, pattern in PROGRAMS:
            if re.fullmatch(pattern, stem) and not word.startswith("-"):
                return Aim(objective, word)
        for objective, pattern in FOLDERS if stem == PLAIN_PROGRAM else ():
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
    if stated and not sign.of_text and reads_text_alone(_text(values, "model_name_or_path") or ""):
        return False
    return stated and bool(re.fullmatch(sign.pattern, str(text), re.IGNORECASE | re.DOTALL))


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
