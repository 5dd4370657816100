"""What became of a file: right, wrong, refused clearly, refused without help, or a traceback."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.corpus.look import Look
    from bench.corpus.through import Read

RIGHT, WRONG, CLEAR, NO_HELP, CRASH = (
    "right", "wrong", "refused clearly", "refused, no help", "traceback",
)  # fmt: skip
VERDICTS = (RIGHT, CLEAR, NO_HELP, WRONG, CRASH)
_COPY = re.compile(r"(-unsloth)?(-bnb-4bit|-bnb-nf4-bf16)$")
# Refusals of a file in scope that are its own doing: what is not there, or contradicts itself.
_OWN_FAULT = re.compile(
    r"must be written out|is computed|does not say|is not UTF-8|contradict|both stated|"
    r"is found$|no such file is found|placeholder|needs? load_in_|not valid|is no multiple of|"
    r"stores its weights|refuses|not possible on|cannot be split|is given twice|cannot train|"
    r"no key of|unpriced|; it must |can be priced"
)
_NO_JOB = re.compile(
    r"holds no|no launch command|0 launch commands|is a config of|states? no|neither a job file|"
    r"is a notebook|not valid|must be written out|does not|is the file of no trainer|is no |names |"
    r"takes its arguments as flags"
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One file's end, and why where it is not right."""

    kind: str
    cause: str = ""
    in_scope: bool = False
    unknown_model: bool = False


# What may be priced, and as what: the words of the look, and those of the product.
_AS = {"sft": {"sft", "pretraining"}, "pretraining": {"sft", "pretraining"},
       "preference": {"dpo", "kto", "orpo"}, "reward": {"reward"}}  # fmt: skip


def judged(look: Look, read: Read) -> Verdict:
    """The verdict on one file by what was looked at and what the product made of it."""
    priced_so = read.facts.get("objective", "sft") in _AS.get(look.objective, ())
    scope = look.in_scope or (look.trains and read.priced and priced_so)
    unknown = bool(read.unknown_model)
    if read.crash:
        return Verdict(CRASH, read.crash, scope, unknown)
    if not look.trains or not scope:
        return _outside(look, read)
    if not read.priced:
        helped = read.hint or "; it must " in read.refusal
        clear = helped and _OWN_FAULT.search(read.refusal)
        return Verdict(CLEAR if clear else NO_HELP, plain(read.refusal), scope, unknown)
    wrong = differing(look, read)
    cause = ", ".join(
        f"{name}: {look.facts()[name]} read as {read.facts.get(name)}" for name in wrong
    )
    return Verdict(WRONG if wrong else RIGHT, cause, scope, unknown)


def _outside(look: Look, read: Read) -> Verdict:
    if read.priced:
        priced_so = read.facts.get("objective", "sft") in _AS.get(look.objective, ())
        if not look.trains and priced_so:
            return Verdict(RIGHT, "", in_scope=False)  # nothing to hold it against
        what = look.objective if look.objective != "sft" else "no training"
        return Verdict(WRONG, f"{what}, priced as a supervised run")
    named = look.objective in read.refusal.casefold() or "trains" in read.refusal
    clear = bool(read.hint) and (named or (not look.trains and _NO_JOB.search(read.refusal)))
    clear = clear or (bool(read.hint) and bool(_NO_JOB.search(read.refusal)))
    return Verdict(CLEAR if clear else NO_HELP, plain(read.refusal))


def differing(look: Look, read: Read) -> list[str]:
    """The keys that were read otherwise than they stand there, and that no warning names."""
    found = []
    for name, value in look.facts().items():
        other = read.facts.get(name)
        if name == "model" and (read.unknown_model or _is_model(str(value), read)):
            continue
        if other is None or other == value or _is_said(name, value, read):
            continue
        found.append(name)
    return found


def _is_said(name: str, value: object, read: Read) -> bool:
    """Whether the answer itself says that this key is counted as something else."""
    keys = {"optimizer": "optimizer|optim", "checkpointing": "checkpointing", "length": "length",
            "base": "load_in_|quantiz"}  # fmt: skip
    if name not in keys or name not in {"optimizer", "checkpointing"}:
        return False
    pattern = rf"^.*({keys[name]}).*(left as it is|counted|not priced).*$"
    lines = re.findall(pattern, read.said, re.MULTILINE)
    return bool(lines) and str(value) in read.said.casefold()


def _is_model(name: str, read: Read) -> bool:
    """Whether it is what was priced, or what was looked up in the catalogue."""
    return any(_same_model(name, str(read.facts.get(key))) for key in ("model", "named"))


def _same_model(one: str, other: str) -> bool:
    short = [_COPY.sub("", name.rpartition("/")[2]).replace("meta-", "") for name in (one, other)]
    return short[0].removesuffix("-instruct") == short[1].removesuffix("-instruct")


def plain(message: str) -> str:
    """A message without the file's own name and values: one line a cause."""
    text = message.splitlines()[0] if message else ""
    text = re.sub(r"\S*/\S+|\S+\.(ya?ml|json|py|sh|cmd|md)\b", "FILE", text)
    return re.sub(r'"[^"]*"', '"..."', re.sub(r"\d[\d,.]*", "N", text))[:150]
