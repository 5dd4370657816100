"""What a script does beside the arguments of its trainer: cuts rows, recomputes, sets them later.

One reader asks for it; it stands apart because none of it is a call that states arguments.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any, Final

from autotune.catalog.models.derived import stored_by_name
from autotune.domain.job import Uncounted
from autotune.trainers.syntax.python_options import Options, option_names
from autotune.trainers.syntax.python_settings import assigned, callee, last_name, tree_of
from autotune.trainers.syntax.python_values import Values

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

# Models whose weights PEFT prepares for training in few bits recompute unless told otherwise.
# Source: peft 0.21 utils/other.py; transformers 5.23 trainer.py switches recomputing on where the
# arguments ask for it, and never off.
_PREPARES = {"prepare_model_for_kbit_training", "prepare_model_for_int8_training"}
_RECOMPUTES = "gradient_checkpointing_enable"
_LENGTHS = {"max_length", "max_seq_length", "max_seq_len", "max_len", "block_size", "seq_length"}
_PREPARING = re.compile(r"token|encode|process|dataset|collat|template", re.IGNORECASE)
BY_FLAGS = {"HfArgumentParser", "TrlParser", "H4ArgumentParser", "parse_args_into_dataclasses"}
_TOKENS = re.compile(r"_ids\b")


def recomputes(nodes: Iterable[ast.AST], stated: Values, *, quantised: bool) -> bool:
    """Whether a call on the model itself switches activation checkpointing on."""
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        name = callee(node)
        if name == _RECOMPUTES:
            return True
        told = [key.value for key in node.keywords if key.arg == "use_gradient_checkpointing"]
        if name in _PREPARES and quantised and not (told and stated.literal(told[0])[1] is False):
            return True
    return False


def prepares(nodes: Iterable[ast.AST], trainer: str) -> bool:
    """Whether what it does not quantise becomes fp32; Unsloth's own classes do without."""
    called = any(callee(node) in _PREPARES for node in nodes)
    return called and trainer != "unsloth"


_WIDENED = "casts every 16-bit weight to fp32, as none is quantised: counted so"
WIDENED: Final = Uncounted("prepare_model_for_kbit_training", "called", _WIDENED, 0.0, 0.0)


def widens(nodes: Iterable[ast.AST], model: str) -> bool:
    """Whether it prepares weights for few bits that it loads in 16: PEFT leaves them in fp32.

    nodes: those that surely run, of a script that quantises nothing itself.
    Source: peft 0.21 utils/other.py prepare_model_for_kbit_training.
    """
    return prepares(nodes, "") and not stored_by_name(model)


def cut_at(tree: ast.Module, stated: Values) -> tuple[int | None, bool]:
    """Where a script's own collator, tokenizer or slice cuts rows; whether that stays unknown.

    The Trainer itself has no such argument. A call that returns tensors is of an answer being
    generated where another cuts rows.
    """
    every: dict[int, set[int | None]] = {_ROWS: set(), _TENSORS: set(), _PASSED: set()}
    for node in ast.walk(tree):
        for value, kind in _cuts(node):
            known, length = stated.literal(value)
            if not known:
                every[kind].add(None)
            elif isinstance(length, int) and length > 0:
                every[kind].add(length)
        if _fills(node, stated):
            every[_ROWS].add(None)
    found = next((lengths for lengths in every.values() if lengths), set[int | None]())
    sure = len(found) == 1 and None not in found
    return (found.pop() if sure else None), bool(found)


LONGEST, WHOLE = "longest", "max_length"  # of the rows that are mapped together; the length
_MAPPED = "filled up to the longest of the rows that are mapped together: counted as the length"
MAPPED: Final = Uncounted("padding", LONGEST, _MAPPED, 0.15, 0.0)  # an assumption


def pads(tree: ast.Module, stated: Values) -> str:
    """How a script's own tokenizer call or collator fills rows up; empty: it does not.

    A call that returns tensors is of an answer being generated, but where the data is prepared.
    What is mapped in batches is filled up to the longest of a thousand rows, and stays so.
    """
    mapped = _mapped_in_batches(tree, stated)
    prepares = mapped | {
        inner for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and _PREPARING.search(node.name)
        for inner in ast.walk(node)
    }  # fmt: skip
    found = ""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        typed = {key.arg: key.value for key in node.keywords}
        padding, returned = typed.get("padding"), typed.get("return_tensors")
        tensors = returned is not None and ast.unparse(returned) != "None" and node not in prepares
        cuts = bool({"max_length", "truncation"} & set(typed)) or "DataCollator" in callee(node)
        if padding is not None and cuts and not tensors:
            known, value = stated.literal(padding)
            if known and value == WHOLE:
                return WHOLE
            found = LONGEST if known and value in (True, LONGEST) and node in mapped else found
    return found


def _mapped_in_batches(tree: ast.Module, stated: Values) -> set[ast.AST]:
    """What runs in `rows.map(function, batched=True)`."""
    inside: set[ast.AST] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or getattr(node.func, "attr", "") != "map":
            continue
        typed = {key.arg: key.value for key in node.keywords}
        batched = "batched" in typed and stated.literal(typed["batched"]) == (True, True)
        function = typed.get("function", node.args[0] if node.args else None)
        if batched and function is not None:
            inside |= set(ast.walk(function))
    names = {last_name(node) for node in inside}
    return inside | {
        inner for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name in names for inner in ast.walk(node)
    }  # fmt: skip


def _fills(node: ast.AST, stated: Values) -> bool:
    """Whether a tokenizer's call fills rows up to a length that it does not say."""
    typed = {key.arg: key.value for key in node.keywords} if isinstance(node, ast.Call) else {}
    filled = "padding" in typed and stated.literal(typed["padding"]) == (True, "max_length")
    return filled and "max_length" not in typed and None not in typed


_ROWS, _TENSORS, _PASSED = range(3)  # in this order one decides where there are several


def _cuts(node: ast.AST) -> Iterator[tuple[ast.expr, int]]:
    """The lengths that a node cuts rows at, or hands to what may."""
    if isinstance(node, ast.Call):
        typed = {key.arg: key.value for key in node.keywords}
        if "max_length" in typed and ("DataCollator" in callee(node) or "truncation" in typed):
            returned = typed.get("return_tensors")
            tensors = returned is not None and ast.unparse(returned) != "None"
            yield typed["max_length"], _TENSORS if tensors else _ROWS
        elif _PREPARING.search(callee(node)):
            yield from ((value, _PASSED) for key, value in typed.items() if key in _LENGTHS)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        upper = node.slice.upper  # a number that stands there is of a few tokens that are shown
        named = isinstance(upper, ast.Name | ast.Attribute) and node.slice.lower is None
        if upper is not None and named and _TOKENS.search(ast.unparse(node.value)):
            yield upper, _ROWS


_ADAPTED = re.compile(r"lora|adapter|peft", re.IGNORECASE)
_LAYER = re.compile(r"embed|lm_head|norm|\.head\b")


def trains_more(nodes: Iterable[ast.AST]) -> str:
    """By which line it switches gradients of the base's own weights on again; empty: by none.

    Of a loop over the model's weights, or of a layer that is named. Adapters are switched on as
    well, and inputs, which are no weights.
    """
    for node in nodes:
        if isinstance(node, ast.For | ast.ListComp | ast.GeneratorExp):
            over = node.iter if isinstance(node, ast.For) else node.generators[0].iter
            typed = ast.unparse(node)
            if "parameters()" in ast.unparse(over) and not _ADAPTED.search(typed):
                for inner in ast.walk(node):
                    if _switches_on(inner):
                        return ast.unparse(inner)[:60]
        elif _switches_on(node) and _LAYER.search(ast.unparse(node)):
            return ast.unparse(node)[:60]
    return ""


_BLOCK = re.compile(r"\w*(attn|attention|mlp|embed_tokens|lm_head)")


def replaces(nodes: Iterable[ast.AST]) -> str:
    """By which line it puts a layer of its own in a model's place; empty: by none."""
    for node in nodes:
        target, value = assigned(node)
        owner = ast.unparse(target.value) if isinstance(target, ast.Attribute) else "self"
        named = isinstance(target, ast.Attribute) and bool(_BLOCK.fullmatch(target.attr))
        if named and value is not None and re.search(r"layer|model\b|block", owner):
            return ast.unparse(node)[:60]
        made = node.args[2] if isinstance(node, ast.Call) and len(node.args) > 2 else None  # noqa: PLR2004
        if (
            isinstance(node, ast.Call) and callee(node) == "setattr" and isinstance(made, ast.Call)
        ) and re.match("[A-Z]", callee(made)):
            return ast.unparse(node)[:60]
    return ""


def _switches_on(node: ast.AST) -> bool:
    target, value = assigned(node)
    if isinstance(target, ast.Attribute) and target.attr == "requires_grad":
        return getattr(value, "value", False) is True
    if not isinstance(node, ast.Call) or callee(node) != "requires_grad_":
        return False
    return not node.args or getattr(node.args[0], "value", False) is True


_SWITCHED = {
    "LoraConfig": "adapters", "get_peft_model": "adapters", "BitsAndBytesConfig": "few bits",
}  # fmt: skip
_ADAPTS = {"LoraConfig", "get_peft_model"}
# What puts adapters on without either, or may.
_OTHERWISE = {
    "get_peft_config", "PeftModel", "PeftModelForCausalLM", "AutoPeftModelForCausalLM",
    "PeftConfig",
}  # fmt: skip
_TWO = "the script loads one way or the other: priced as Unsloth's, which may not be the one"
_BRANCH_SD = (0.40, 0.40)  # adapters or all weights, few bits or sixteen: an assumption, and wide


def in_branches(
    tree: ast.Module, stated: Values, calls: Mapping[str, ast.Call]
) -> tuple[list[Uncounted], bool]:
    """Adapters and few bits that it makes under a condition that is not read.

    Also whether it makes adapters only where a condition holds that is known to fail.

    Args:
        tree: the script.
        stated: what its names are worth.
        calls: of those that may run the first of each name.
    """
    surely, found = set(stated.reached(tree, surely=True)), []
    for name, what in _SWITCHED.items():
        call = calls.get(name)
        if call is not None and call not in surely:
            why = "made where a condition holds that is not read: priced as if it does, with "
            found.append(Uncounted(name, "in a branch", f"{why}{what}", *_BRANCH_SD))
    put = {ast.unparse(node.func) for node in ast.walk(tree)
           if isinstance(node, ast.Call) and callee(node) == "get_peft_model"}  # fmt: skip
    if {owner.startswith("Fast") for owner in put} == {True, False}:
        found.append(Uncounted("get_peft_model", "Unsloth's and PEFT's", _TWO, *_BRANCH_SD))
    every = {callee(node) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    used = {last_name(node) for node in surely}
    plain = bool(every & _ADAPTS) and not _ADAPTS & set(calls) and not used & _OTHERWISE
    return found, plain


def set_later(tree: ast.Module, made: Collection[ast.Call]) -> list[tuple[str, ast.expr]]:
    """`args.max_steps = 5`: what is set on the arguments once they are made."""
    pairs = [assigned(node) for node in ast.walk(tree)]
    names = {target.id for target, value in pairs if isinstance(target, ast.Name) and value in made}
    return [
        (target.attr, value)
        for target, value in pairs
        if value is not None
        and isinstance(target, ast.Attribute)
        and isinstance(target.value, ast.Name)
        and target.value.id in names
    ]


def filled(nodes: Iterable[ast.AST], mapping: ast.expr) -> list[tuple[str, ast.expr]]:
    """What a mapping of a name is made of, and what is put into it further on."""
    if not isinstance(mapping, ast.Name):
        return []
    found: list[tuple[str, ast.expr]] = []
    for node in nodes:
        target, value = assigned(node)
        if isinstance(value, ast.Call) and getattr(target, "id", "") == mapping.id:
            of_dict = getattr(value.func, "id", "") == "dict"
            found += [(str(k.arg), k.value) for k in value.keywords if of_dict and k.arg]
        if isinstance(value, ast.Dict) and getattr(target, "id", "") == mapping.id:
            for key, each in zip(value.keys, value.values, strict=True):
                found += [(name, each)] if (name := _text(key)) else []
        if isinstance(target, ast.Subscript) and value is not None:
            inside = getattr(target.value, "id", "") == mapping.id
            found += [(name, value)] if inside and (name := _text(target.slice)) else []
    return found


def _text(node: ast.expr | None) -> str:
    value = node.value if isinstance(node, ast.Constant) else ""
    return value if isinstance(value, str) else ""


def keywords(tree: ast.Module) -> set[str]:
    """Every keyword that a call of the file states."""
    return {str(node.arg) for node in ast.walk(tree) if isinstance(node, ast.keyword)}


def told_elsewhere(model: ast.Call | None, nodes: Iterable[ast.AST], stated: Values) -> bool:
    """Whether a model is told how it is held by what this file does not show.

    nodes: those of the script that may run.
    """
    bound = [(getattr(target, "id", ""), value) for target, value in map(assigned, nodes)]
    held = {name for name, value in bound if getattr(value, "value", "") is not None}
    nothing = {name for name, _ in bound} - held  # bound to None in every branch that may run
    told = [key.value for key in (model.keywords if model else ())
            if key.arg == "quantization_config"]  # fmt: skip
    told = [value for value in told if getattr(value, "id", "") not in nothing]
    return any(stated.literal(value) != (True, None) for value in told)


def several_bits(configs: Iterable[ast.Call]) -> bool:
    """Whether storage in 4 bits and in 8 is described: which is taken is computed."""
    bits = {
        keyword.arg
        for call in configs
        for keyword in call.keywords
        if keyword.arg in {"load_in_4bit", "load_in_8bit"}
        and getattr(keyword.value, "value", True) is not False
    }
    return len(bits) > 1


# Options whose own defaults count where a script makes its arguments of flags.
_OPTIONS = {
    "per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs", "max_steps",
    "max_length", "max_seq_length", "model_max_length", "block_size", "max_seq_len",
    "gradient_checkpointing", "use_peft", "use_lora", "q_lora", "load_in_4bit", "load_in_8bit",
    "packing", "optim", "attn_implementation", "use_flash_attn", "deepspeed", "bf16", "fp16",
}  # fmt: skip


def takes_flags(text: str, name: str) -> tuple[bool, set[str]]:
    """Whether a script takes every argument of the Trainer as a flag; and its own options."""
    nodes = list(ast.walk(tree_of(text, name)))
    used = {last_name(node) for node in nodes}
    return bool(used & BY_FLAGS), option_names(nodes)


def option_defaults(text: str, name: str, more: Collection[str] = ()) -> dict[str, Any]:
    """Of the options that decide a run, those with a default that stands there.

    more: names of options that decide it as well.
    """
    tree = tree_of(text, name)
    stated, found = Values(tree), {}
    for key, node in Options(list(ast.walk(tree))).defaults().items():
        known, value = stated.literal(node) if key in {*_OPTIONS, *more} else (False, None)
        if known and value is not None and (key != "deepspeed" or isinstance(value, str)):
            found[key] = value
    return found


def computing_in(config: ast.Call | None, stated: Values) -> dict[str, Any]:
    """In which dtype 4-bit weights are multiplied where no mixed precision decides it.

    Source: transformers 5.23 BitsAndBytesConfig, whose default is float32.
    """
    typed = {key.arg: key.value for key in config.keywords} if config is not None else {}
    if config is None or None in typed:
        return {}
    told = typed.get(_COMPUTES)
    known, value = (True, "float32") if told is None else stated.literal(told)
    return {_COMPUTES: str(value)} if known else {}


_COMPUTES: Final = "bnb_4bit_compute_dtype"
