"""Which calls of a script its training is read from: its arguments, its model, its adapters.

Also which classes arguments may be made of, and what a script without any is. None of it reads a
value.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from autotune.domain.errors import InputError, NoTraining
from autotune.trainers.syntax.python_beside import BY_FLAGS, keywords, several_bits
from autotune.trainers.syntax.python_loop import (
    bound_last,
    own_loop,
    without_arguments,
)
from autotune.trainers.syntax.python_settings import THEIRS, assigned, last_name, tree_of
from autotune.trainers.syntax.python_values import Values

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_OTHERS = (  # of TRL, read where such a job is priced as another
    "DPOConfig", "KTOConfig", "ORPOConfig", "CPOConfig", "BCOConfig", "TPOConfig", "GRPOConfig",
    "RLOOConfig", "OnlineDPOConfig", "RewardConfig", "PRMConfig", "GKDConfig",
)  # fmt: skip
ARGUMENTS = {
    "TrainingArguments": "hf", "Seq2SeqTrainingArguments": "hf", "SFTConfig": "trl",
    "UnslothTrainingArguments": "trl", **dict.fromkeys(_OTHERS, "trl"),
}  # fmt: skip
_BY_CLOUD = {"HuggingFace", "ModelTrainer", "PyTorch"}  # SageMaker's, which start another script
_MODEL_NAME = re.compile(r"(base_)?model(_?(id|name|path)\w*)?", re.IGNORECASE)
NO_MAKER = "name the file that makes the trainer's arguments"
_STATED = "--model NAME --method lora --rows N --max-length N --global-batch N --gpu NAME"


def foreign_classes(tree: ast.Module) -> set[str]:
    """Names of the classes that are read which the file imports from elsewhere, or makes itself."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            theirs = not node.level and str(node.module).partition(".")[0] in THEIRS
            found |= set() if theirs else {each.asname or each.name for each in node.names}
        elif isinstance(node, ast.ClassDef):
            found.add(node.name)
    return found & set(ARGUMENTS)


# Packages that load the models that are read by kernels or stores of theirs, or start trainers.
_AS_READ = {
    "accelerate", "auto_gptq", "awq", "deepspeed", "gptqmodel", "intel_extension_for_transformers",
    "ipex_llm", "liger_kernel", "modelscope", "openmind", "optimum", "peft", "ray", "torch",
}  # fmt: skip
_HANDED = {"args", "training_args", "model"}  # what a trainer of this kind is made with


def others_classes(
    tree: ast.Module, nodes: Iterable[ast.AST], modules: Iterable[ast.Module]
) -> list[tuple[str, str]]:
    """Trainers and models that it imports from elsewhere and uses, and why that is said.

    modules: of the script's own: a class that stands there is looked at itself.
    """
    here = {n.name for each in modules for n in ast.walk(each) if isinstance(n, ast.ClassDef)}
    others = {
        each.asname or each.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
        if node.level or str(node.module).partition(".")[0] not in THEIRS | _AS_READ
        for each in node.names
    }  # fmt: skip
    found: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Call):
            owner = getattr(node.func, "value", None)
            name = str(getattr(node.func, "id", getattr(owner, "id", "")))
            handed = _HANDED & {key.arg for key in node.keywords}
            if name.endswith("Trainer") and handed and name in others - here:
                found[name] = "a trainer of another program's: what it does in a step is not priced"
            loads = getattr(node.func, "attr", "") == "from_pretrained"
            if loads and name in others and re.fullmatch(r"\w+(ForCausalLM|LMHeadModel)", name):
                found[name] = "a model of another program's: what it adds to a layer is not priced"
    return sorted(found.items())


def named_model(tree: ast.Module) -> str:
    """The model that a name of the file's stands for: `model_id = "..."`; empty: none."""
    for node in ast.walk(tree):
        target, value = assigned(node)
        named = isinstance(target, ast.Name) and _MODEL_NAME.fullmatch(target.id)
        if named and isinstance(value, ast.Constant) and isinstance(value.value, str):
            return value.value
    return ""


def own_classes(tree: ast.Module) -> set[str]:
    """Of these names, classes that the file makes of nothing that is known: its own program's."""
    theirs = {
        each.asname or each.name for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] in THEIRS
        for each in node.names
    } | set(ARGUMENTS)  # fmt: skip
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name in ARGUMENTS:
            bases = {last_name(base) for base in node.bases}
            if not bases & theirs and not any("Argument" in base for base in bases):
                found.add(node.name)
    return found


def holds_either(calls: Iterable[ast.Call]) -> bool:
    """Whether the base is loaded in few bits in one branch and not in another.

    calls: those that run where a condition holds that is not known.
    """
    loads = [c for c in calls if getattr(c.func, "attr", "") == "from_pretrained"]
    told = {any(key.arg == "quantization_config" for key in call.keywords) for call in loads}
    return len(told) > 1


def no_arguments(tree: ast.Module, name: str, *, made: bool) -> InputError:
    """Why a script states no training, and what to give in its place."""
    used = {last_name(node) for node in ast.walk(tree)}
    if used & BY_FLAGS:
        msg = f"{name} takes its arguments as flags ({min(used & BY_FLAGS)})"
        command = f"python {name} --model_name_or_path NAME --per_device_train_batch_size 4 ..."
        command = f"python {name} --config FILE.yaml" if "TrlParser" in used else command
        return InputError(msg, f'give the script that starts it, or: --from-args "{command}"')
    if used & _BY_CLOUD and {"hyperparameters", "entry_point", "SourceCode"} & keywords(tree):
        msg = f"{name} starts another script on SageMaker"
        return InputError(msg, "name that script (its entry_point), or the file it reads")
    if made:
        msg = f"{name} states neither a batch size nor epochs or steps, and calls no train()"
        return InputError(msg, "name the file that starts the training")
    if how := own_loop(used):
        msg = f"{name} trains in a loop of its own ({how}), whose settings are not read"
        flags = "or, where it takes options, the command with them: --from-args"
        return InputError(msg, f"leave the file out, and state the run: {_STATED}; {flags}")
    if own := own_classes(tree):
        msg = f"{name} makes {min(own)} a class of its own, and states no trainer's arguments"
        return InputError(msg, f"leave the file out, and state the run: {_STATED}")
    msg = f"{name} holds no TrainingArguments(...) or SFTConfig(...)"
    error: InputError = NoTraining(msg, NO_MAKER)
    if bare := without_arguments(tree):
        msg = f"{name} makes its {bare} without arguments, so TRL's defaults train"
        add = f'args={bare.replace("Trainer", "Config")}(output_dir="out")'
        hint = f"add {add} to it, which trains the same, or state the run: {_STATED}"
        error = InputError(msg, hint)
    return error


def called(
    text: str, name: str, flags: Mapping[str, Any] | None = None, beside: Iterable[str] = ()
) -> set[str]:
    """Every name that a script uses, imports left out, and every keyword that it switches on.

    Args:
        text: the script.
        name: what errors call it.
        flags: of the command that starts it; a branch that it cannot take with them is left out, as
            one that its own defaults do not take. Without any (None), all of it is looked at.
        beside: the texts of its own modules, which may describe its options.
    """
    found: set[str] = set()
    tree = tree_of(text, name)
    if flags is None:
        nodes = list(ast.walk(tree))
    else:
        others = [node for each in beside for node in ast.walk(tree_of(each, name))]
        nodes = list(Values(tree, flags={**flags}, beside=others).reached(tree))
    for node in nodes:
        found.add(last_name(node))
        if isinstance(node, ast.keyword) and isinstance(node.value, ast.Constant):
            found |= {str(node.arg)} if node.value.value not in (None, False, 0) else set()
    return found if flags is None else found - _of_later(nodes)


_STAGE = re.compile(r"(SFT|DPO|KTO|ORPO|CPO|GRPO|PPO|RLOO|Reward|GKD|Unsloth)Trainer|Trainer")


def _of_later(nodes: list[ast.AST]) -> set[str]:
    """The trainers of what a script trains after its first training, and their arguments."""
    calls = [node for node in nodes if isinstance(node, ast.Call) and _stage(node.func)]
    if not calls:
        return set()
    first = _stage(min(calls, key=lambda node: (node.lineno, node.col_offset)).func)
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    bases = {_stage(base) for node in classes for base in node.bases}
    later = {_stage(node) for node in nodes} - {first, ""} - bases
    return later | {name.replace("Trainer", "Config") for name in later}


def _stage(node: ast.AST) -> str:
    """The trainer that a name stands for; empty: none."""
    name = last_name(node)
    return name if _STAGE.fullmatch(name) else ""


PAIRED = {"DPOTrainer", "KTOTrainer", "ORPOTrainer", "CPOTrainer", "BCOTrainer"}
TRAINERS = {
    "SFTTrainer", "Trainer", "UnslothTrainer", *PAIRED,
    *(name.replace("Config", "Trainer") for name in ARGUMENTS if name.endswith("Config")),
}  # fmt: skip
_CALLS = {
    *ARGUMENTS, *TRAINERS, "LoraConfig", "BitsAndBytesConfig", "from_pretrained", "get_peft_model",
    "train_test_split",
}  # fmt: skip
_MODELS = re.compile(r"(AutoModel|Fast(Language|Vision)?Model).*|\w+(ForCausalLM|LMHeadModel)")
# What a call says where it is the arguments of a training, whoever wrote its class.
_SIZED = {"per_device_train_batch_size", "num_train_epochs", "max_steps", None}
_OTHERS_MODEL = re.compile(r"(ref(erence)?|teacher|reward|judge)(_|$)", re.IGNORECASE)
_OF_MODEL: Final = {"from_pretrained", "LoraConfig", "BitsAndBytesConfig", "get_peft_model"}


@dataclass(slots=True)
class Call:
    """A call by its name; whether one of Unsloth's classes makes it."""

    name: str
    node: ast.Call
    unsloth: bool


def calls_of(tree: ast.Module, nodes: list[ast.AST]) -> tuple[list[Call], bool]:
    """The calls that are read, and whether the base is held in bits that are computed."""
    foreign, own = foreign_classes(tree), own_classes(tree)
    calls = [call for call in (_call(node) for node in nodes) if call is not None]
    calls = [call for call in calls if call.name not in foreign or is_sized(call)]
    calls = [call for call in calls if call.name not in own]
    inside = {  # of a trainer that the file itself is: its default where it is handed none
        each for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node.name.endswith("Trainer")
        for each in ast.walk(node)
    }  # fmt: skip
    calls = [c for c in calls if c.name not in ARGUMENTS or c.node not in inside or is_sized(c)]
    calls = _without_others(calls, nodes)
    here = set(ast.walk(tree))  # what its modules make comes first
    calls.sort(key=lambda c: (c.node in here, c.node.lineno, c.node.col_offset))
    begins = next((n for n, call in enumerate(calls) if call.name in ARGUMENTS), len(calls))
    before = [call.node for call in calls[:begins] if call.name == "BitsAndBytesConfig"]
    several = several_bits(before)  # what is loaded behind the training is tried out
    return [c for c in calls if not several or c.name != "BitsAndBytesConfig"], several


def _without_others(calls: list[Call], nodes: list[ast.AST]) -> list[Call]:
    """Without loads of a model that is called after another use than being trained.

    A script that loads no other trains that one.
    """
    others = {
        each for node in nodes if _OTHERS_MODEL.match(str(getattr(assigned(node)[0], "id", "")))
        for each in ast.walk(node)
    }  # fmt: skip
    kept = [call for call in calls if call.name != "from_pretrained" or call.node not in others]
    return kept if any(call.name == "from_pretrained" for call in kept) else calls


def made_beside(tree: ast.Module, modules: list[ast.Module], stated: Values) -> list[ast.AST]:
    """What runs in a script's own module, where that makes its model and the script makes none."""
    made = _names(tree)
    loads = [module for module in modules if "from_pretrained" in _names(module)]
    used = {last_name(node) for node in ast.walk(tree)}
    starts = made & set(ARGUMENTS) or (used & BY_FLAGS and made & TRAINERS)
    if "from_pretrained" in made or len(loads) != 1 or not starts:
        return []
    found = ((node, _call(node)) for node in stated.reached(loads[0]))
    return [node for node, call in found if call is None or call.name in _OF_MODEL - made]


def _names(tree: ast.Module) -> set[str]:
    return {call.name for call in map(_call, ast.walk(tree)) if call is not None}


def _quantises(call: Call) -> bool:
    """Whether a call that loads a model is told, or may be told, in how many bits it is held."""
    return any(
        keyword.arg in {None, "quantization_config", "config"} or "bit" in keyword.arg
        for keyword in call.node.keywords
    )


def is_sized(call: Call) -> bool:
    """Whether a call says how long a training is, or in what batches."""
    return bool(_SIZED & {keyword.arg for keyword in call.node.keywords})


def _call(node: ast.AST) -> Call | None:
    if not isinstance(node, ast.Call):
        return None
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if name not in _CALLS:
        return None
    owner = function.value if isinstance(function, ast.Attribute) else None
    owner_name = last_name(owner)
    if name == "from_pretrained" and not _MODELS.fullmatch(owner_name):
        return None
    return Call(name, node, unsloth=owner_name.startswith("Fast"))


def named_by(call: Call, stated: Values) -> str:
    """The model that a trainer loads itself, `SFTTrainer(model="name")`; empty: it does not."""
    named = [key.value for key in call.node.keywords if key.arg == "model"]
    worths = (stated.literal(value) for value in [*named, *call.node.args[:1]])
    return next((each for known, each in worths if known and isinstance(each, str)), "")


def first_training(
    calls: list[Call], stated: Values, tree: ast.Module
) -> tuple[list[Call], tuple[int, ...]]:
    """The calls of the first training, and the lines on which another one begins.

    The model is the one that adapters are put on, else the last that the trainer's name is bound
    to, else the first: scripts load what they have trained again. One that it names goes before.
    """
    trainer = next((call for call in calls if call.name in TRAINERS), None)
    if trainer is not None and named_by(trainer, stated):
        calls = [call for call in calls if call.name != "from_pretrained"]
    adapted = next((i for i, call in enumerate(calls) if call.name == "get_peft_model"), len(calls))
    every = [i for i, call in enumerate(calls) if call.name == "from_pretrained"]
    loads = [i for i in every if not _loads_adapters(calls[i])] or every
    last = bound_last(tree, trainer.node, [calls[i].node for i in loads]) if trainer else None
    first = [i for i in loads if calls[i].node is last] or loads[:1]
    before = [i for i in loads if i < adapted] if adapted < len(calls) else first
    wanted = {before[-1] if before else loads[0]} if loads else set()
    plain = any(not _quantises(calls[index]) for index in wanted)
    kept, again, stages = list[Call](), list[int](), list[int]()
    seen = {"BitsAndBytesConfig"} if plain else set[str]()
    for index, call in enumerate(calls):
        kind = "arguments" if call.name in ARGUMENTS else call.name
        kind = "trainer" if call.name in TRAINERS else kind
        later = [each for each in calls[index + 1 :] if each.name in ARGUMENTS and is_sized(each)]
        if call.name in ARGUMENTS and not is_sized(call) and later:
            continue  # made for its side effects: `_ = TrainingArguments(".")`
        if kind in seen:
            others = kind == "trainer" and trainer is not None and call.name != trainer.name
            again += [call.node.lineno] if kind == "arguments" else []
            stages += [call.node.lineno] if others else []
            continue
        if kind == "from_pretrained" and index not in wanted:
            continue
        seen.add(kind)
        kept.append(call)
    return kept, tuple(again or stages)


def _loads_adapters(call: Call) -> bool:
    """`AutoPeftModelForCausalLM.from_pretrained(...)`: what was trained, loaded again."""
    function = call.node.func
    return isinstance(function, ast.Attribute) and "Peft" in ast.unparse(function.value)


# What is set on the arguments after flags were read, and decides a run.
_SET = re.compile(
    r"per_device_train_batch_size|gradient_accumulation_steps|num_train_epochs|max_steps|max_length"
    r"|max_seq_length|model_max_length|max_seq_len|gradient_checkpointing|optim|bf16|fp16|packing|save_steps|group_by_length"
)


def set_anew(tree: ast.Module, stated: Values) -> dict[str, Any]:
    """What is set on arguments that were made of flags; None: something computed."""
    found: dict[str, Any] = {}
    for node in ast.walk(tree):
        target, value = assigned(node)
        if not isinstance(target, ast.Attribute) or value is None:
            continue
        owner = str(getattr(target.value, "id", ""))
        if re.search("args|config", owner) and _SET.fullmatch(target.attr):
            known, said = stated.literal(value)
            found[target.attr] = said if known else None
    return found
