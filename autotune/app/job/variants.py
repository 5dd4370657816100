"""A document -> the job files in it: `variants:` and lists of sizes taken apart, each one checked.

    variants:
      - {name: r8, rank: 8}                      # short names of the job's keys
      - {method: {kind: qlora}, data: {max_length: 512}}
    data: {rows: [10000, 50000, 100000]}         # also max_length, epochs, steps and rank

Each variant goes through the same changes as `--set`, so it is exactly the job that `--set` makes.
"""

from __future__ import annotations

import copy
import itertools
import re
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from autotune.app.job.file import Document
from autotune.app.job.overrides import SETTABLE, set_key
from autotune.domain.config import KNOBS, as_typed, own_name
from autotune.domain.errors import InputError, close_matches, did_you_mean, unknown
from autotune.domain.typed.other_words import LEFT_OUT, UNPRICED, key_meant
from autotune.domain.typed.values import MAPPING, QUALITY_WORDS, TEXT, shown
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pydantic import BaseModel, ValidationError

    from autotune.app.job.file import KeyPath
    from autotune.domain.typed.job import JobFile

File = TypeVar("File", bound="BaseModel")
MOST = 64  # jobs of one file; a campaign is `autotune plan`'s
LISTED = ("data.rows", "data.max_length", "train.epochs", "train.steps", "method.rank")
_SHORT = {
    **{word: key for word, key in QUALITY_WORDS.items() if key},
    "kind": "method.kind",
    "rows": "data.rows",
    "padding": "data.padding",
}
OTHER_TRAINING = {  # measured apart
    "model", "method.kind", "method.base", "method.variant", "method.modules_to_save",
}  # fmt: skip
HINT = "variants: [{name: r8, rank: 8}, {method: {kind: qlora}}, {data: {max_length: 512}}]"


@dataclass(frozen=True, slots=True)
class Variant:
    """One of the jobs of a file; `name` is empty where the file holds just one."""

    name: str
    document: Document
    dropped_evidence: bool = False


def variants_of(document: Document) -> list[Variant]:
    """The jobs of a document, in its order. Raises InputError for what is no variant."""
    values = document.values
    entries = _entries(values.get("variants"), document.name)
    lists = _lists(values, document.name)
    if not entries and not lists:
        return [Variant("", document)]
    combined = [
        {**changes, **dict(zip(lists, choice, strict=True))}
        for changes in entries or [{}]
        for choice in itertools.product(*lists.values())
    ]
    if len(combined) > MOST:
        msg = f"{document.name} makes {len(combined)} variants, and at most {MOST} are compared"
        raise InputError(msg, "leave some out, or compare them in parts with --variant")
    made = [_variant(document, changes, set(lists)) for changes in combined]
    names = [variant.name for variant in made]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        msg = f"{document.name}: two variants are called {twice!r}"
        raise InputError(msg, "give each a name: of its own")
    return made


def chosen(variants: Sequence[Variant], name: str) -> Variant:
    """The variant of a name or number (from 1 on). Raises InputError with close matches."""
    names = [variant.name for variant in variants]
    if not any(names):
        msg = f"--variant {shown(name)}: the job file has no variants"
        raise InputError(msg, HINT)
    for number, variant in enumerate(variants, start=1):
        if name.strip() in {variant.name, str(number)}:
            return variant
    what = "variant"
    raise unknown(what, name[:80], names, f"variants: {', '.join(names)}", "--variant")


def _entries(stated: object, where: str) -> list[dict[str, str]]:
    """Every entry of `variants:` as dotted keys of the job with text values."""
    if stated is None:
        return []
    if not isinstance(stated, list) or not stated:
        msg = f"{where}: variants is {shown(stated)} and must be a list of mappings"
        raise InputError(msg, HINT)
    found = []
    for number, entry in enumerate(stated):
        if not isinstance(entry, dict):
            msg = f"{where}: variants[{number}] is {shown(entry)} and must be a mapping"
            raise InputError(msg, HINT)
        found.append(dict(_flat(entry, f"{where}: variants[{number}]")))
    return found


def _flat(entry: Mapping[str, Any], where: str) -> Iterator[tuple[str, str]]:
    for key, value in entry.items():
        if key == "name":
            yield "name", str(value)[:100]
        elif isinstance(value, dict) and key in SETTABLE:
            for inner, item in value.items():
                yield from _leaf(f"{key}.{inner}", item, where)
        else:
            yield from _leaf(_SHORT.get(key, key), value, where)


def _leaf(key: str, value: object, where: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and key in SETTABLE:
        for inner, item in value.items():
            yield from _leaf(f"{key}.{inner}", item, where)
        return
    if isinstance(value, list) and key in {"method.targets", "method.modules_to_save"}:
        value = ", ".join(str(item) for item in value)
    if isinstance(value, dict | list) or value is None:
        msg = f"{where}.{key} is {shown(value)} and must be one value"
        raise InputError(msg, HINT)
    yield key, as_typed(value)


def _lists(values: Mapping[str, Any], where: str) -> dict[str, list[str]]:
    """Keys of the job that hold a list of sizes, also as `--set` types it: "[1000, 2000]"."""
    found = {}
    for dotted in LISTED:
        section, _, key = dotted.partition(".")
        mapping = values.get(section)
        stated = mapping.get(key) if isinstance(mapping, dict) else None
        if isinstance(stated, str) and stated.strip().startswith("["):
            stated = [part.strip() for part in stated.strip().strip("[]").split(",")]
        if not isinstance(stated, list):
            continue
        sizes = [str(item) for item in stated if isinstance(item, int | float | str)]
        if not sizes or len(sizes) != len(stated) or not all(sizes):
            msg = f"{where}: {dotted} is {shown(stated)} and must be a number or a list of numbers"
            raise InputError(msg, f"{key}: [1000, 2000]")
        if len(set(sizes)) < len(sizes):
            msg = f"{where}: {dotted} lists a size twice"
            raise InputError(msg)
        found[dotted] = sizes
    return found


def _variant(document: Document, changes: Mapping[str, str], listed: set[str]) -> Variant:
    values = copy.deepcopy(document.values)
    values.pop("variants", None)
    _pin_evidence(values, changes)
    for key in listed:
        section, _, name = key.partition(".")
        values[section].pop(name, None)
    for key, value in changes.items():
        if key != "name":
            set_key(values, key, value)
    dropped = forget_measured(values, changes)
    name = changes.get("name") or ", ".join(_shown(key, v) for key, v in changes.items())
    if changes.get("name") and listed:
        name = ", ".join([name, *(_shown(key, changes[key]) for key in sorted(listed))])
    job_name = f"{values.get('name') or 'job'}: {name}"[:100]
    values["name"] = job_name if job_name.isprintable() else "variant"
    changed = {key.split(".")[0] for key in changes} | {"name"}
    lines = {path: n for path, n in document.lines.items() if not changed & set(path[:1])}
    return Variant(name, Document(values, document.name, lines), dropped)


def _shown(key: str, value: str) -> str:
    word = key.rpartition(".")[2]
    if word == "kind":
        return value
    plain = value.replace(",", "").replace("_", "")
    return f"{word} {int(plain):,}" if plain.isdecimal() else f"{word} {value}"


def _measured(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    evidence = values.get("evidence")
    entries = evidence if isinstance(evidence, list) else []
    return [item for item in entries if isinstance(item, dict) and "measured" in item]


def _plans(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Entries of what a plan states."""
    stated = values.get("stated")
    entries = [stated] if isinstance(stated, dict) else stated
    return [item for item in entries if isinstance(item, dict)] if isinstance(entries, list) else []


def _pin_evidence(values: dict[str, Any], changes: Mapping[str, str]) -> None:
    """What was measured, or is stated, keeps speaking of the sizes of the file."""
    for dotted, key in (("data.rows", "rows"), ("data.max_length", "max_length")):
        section = values.get("data")
        stated = section.get(key) if isinstance(section, dict) else None
        if dotted in changes and not isinstance(stated, list | str) and stated is not None:
            for item in [*_measured(values), *_plans(values)]:
                item.setdefault(key, stated)
    train = values.get("train")
    epochs = train.get("epochs") if isinstance(train, dict) else None
    if {"train.epochs", "train.steps"} & set(changes) and isinstance(epochs, int | float):
        for item in _measured(values):
            if "steps" not in item:
                item.setdefault("epochs", epochs)


def forget_measured(values: dict[str, Any], changes: Mapping[str, str]) -> bool:
    """Leave out what was measured of another model, method or base. True if anything was.

    It teaches nothing of the changed job; today's config stays.
    """
    found = _measured(values) if OTHER_TRAINING & changes.keys() else []
    for item in found:
        del item["measured"]
    if found:
        values["evidence"] = [e for e in values["evidence"] if "measured" in e or e.get("today")]
    return bool(found)


_WORDS = {  # what must hold, by pydantic's kind of error
    "model_type": "must be a mapping of keys",
    "model_attributes_type": "must be a mapping of keys",
    "dict_type": "must be a mapping of keys",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "string_type": "must be text",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
}


# How a key that must be there is written.
_WRITTEN = {
    ("model",): "`model: Qwen/Qwen2.5-7B`, a name of `autotune models`",
    ("hardware",): "`hardware: h100`, or --gpu NAME",
}


def checked(document: Document) -> JobFile:
    """The document as a job file. Raises one InputError that lists every problem."""
    from autotune.domain.typed.job import JobFile

    if "model" not in document.values and {"phases", "runs"} & set(document.values):
        msg = f"{document.name} is a campaign of many runs, and a job file is needed here"
        raise InputError(msg, f"autotune plan {document.name}")
    if "stated" not in document.values:
        return checked_as(document, JobFile)
    from autotune.claims.table import file_with_statements

    return checked_as(document, file_with_statements())


def checked_as(document: Document, schema: type[File]) -> File:
    """The document as a file of another schema. Raises one InputError that lists every problem."""
    from pydantic import ValidationError

    try:
        return schema.model_validate(document.values)
    except ValidationError as error:
        raise _input_error(error, document, schema) from None
    except RecursionError:
        msg = f"{document.name}: nested more deeply than any job is"
        raise InputError(msg) from None


def _input_error(error: ValidationError, document: Document, root: type[BaseModel]) -> InputError:
    problems, hints = [], []
    for item in error.errors(include_input=False, include_url=False):
        path = tuple(part for part in item["loc"] if part not in {TEXT, MAPPING})
        text = _problem(item, path, document.values)
        if item["type"] == "extra_forbidden":
            known = keys_at(path[:-1], root)
            meant = _meant(path, known, root)
            text += meant
            hints += [] if meant else [f"keys {_place(path[:-1])}: {', '.join(known)}"]
        if item["type"] == "missing" and path in _WRITTEN:
            hints.append(f"write {_WRITTEN[path]}")
        line = document.lines.get(path) if path else _line_of_missing(text, document)
        key = _dotted(path)
        head = f"line {line}, {key}" if line and key else f"line {line}" if line else key
        problems.append(f"{head}: {text}" if head else text)
    hint = "; ".join(dict.fromkeys(hints)) or None
    shown_problems = problems[:20]
    if len(problems) > len(shown_problems):
        shown_problems.append(f"and {len(problems) - len(shown_problems)} more")
    if len(problems) == 1:
        return InputError(f"{document.name}: {problems[0]}", hint)
    listed = "".join(f"\n  {problem}" for problem in shown_problems)
    return InputError(f"{document.name} has {len(problems)} problems:{listed}", hint)


def _line_of_missing(problem: str, document: Document) -> int | None:
    """The line where a key that is missing would stand: an empty one of its section, or that."""
    named = re.match(r"(\w+)\.\w+ is missing", problem)
    if named is None:
        return None
    section = document.values.get(named[1])
    empty = [k for k, v in section.items() if v is None] if isinstance(section, dict) else []
    paths = [*((named[1], key) for key in empty), (named[1],)]
    return next((document.lines[path] for path in paths if path in document.lines), None)


def _dotted(path: KeyPath) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")[:200]


def _meant(path: KeyPath, known: Sequence[str], root: type[BaseModel]) -> str:
    """What an unknown key may stand for: a key of its section, of another one, or a knob."""
    word = str(path[-1])
    sections = [part for part in path[:-1] if isinstance(part, str)]
    if here := key_meant(".".join(sections), word).rpartition(".")[2]:
        return did_you_mean([here])
    if word.casefold() in UNPRICED:
        return f"; {LEFT_OUT}"
    if own_name(word) in KNOBS and (not sections or sections[0] != "lock"):
        return did_you_mean([f"lock.{own_name(word)}"])
    if near := close_matches(word, known):
        return did_you_mean(near)
    from autotune.domain.typed.job import JobFile

    dotted = [
        f"{section}.{key}" for file in (root, JobFile) for section in keys_at((), file)
        for key in keys_at((section,), file)
    ]  # fmt: skip
    elsewhere = [key for key in dotted if key.rpartition(".")[2] == word]
    return did_you_mean(elsewhere[:1])


def _place(path: KeyPath) -> str:
    return f"of {_dotted(path)}" if path else "of a job file"


def _problem(item: Mapping[str, Any], path: KeyPath, values: object) -> str:
    """One problem in words: the value received and what must hold."""
    if item["type"] == "extra_forbidden":
        return f"unknown key {shown(str(path[-1]))}"
    if item["type"] == "missing":
        return "is missing"
    message = str(item["msg"])
    if item["type"] == "value":
        return message
    for part in path:
        if isinstance(part, int) and not isinstance(values, list):
            continue  # one thing, which stands for a list
        try:
            values = values[part]  # type: ignore[index]  # whatever the file holds; guarded
        except (TypeError, KeyError, IndexError):
            return message
    must = _WORDS.get(item["type"]) or _plain(message)
    return f"is empty: fill it in ({must})" if values is None else f"{shown(values)}: {must}"


def _plain(message: str) -> str:
    """A pydantic message without the names that only Python has."""
    plain = message.replace("Input should be", "must be")
    return plain.replace("Value should have", "must have").replace(" after validation", "")


def keys_at(path: KeyPath, root: type[BaseModel]) -> list[str]:
    """The keys that the schema knows at a key path; a list of sections counts as one."""
    model = root
    for part in path:
        if isinstance(part, int):
            continue
        info = model.model_fields.get(part)
        found = _section_in(info.annotation) if info else None
        if found is None:
            return []
        model = found
    return list(model.model_fields)


def _section_in(annotation: object) -> type[BaseModel] | None:
    from pydantic import BaseModel

    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = (_section_in(argument) for argument in get_args(annotation))
    return next((section for section in inner if section is not None), None)
