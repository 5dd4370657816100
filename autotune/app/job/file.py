"""A job file's bytes -> a checked `JobFile`. The file is not trusted.

Refused, each with its own message: files that are missing, no file, unreadable, empty, above 5 MB
or not UTF-8; aliases and anchors (a few bytes can stand for gigabytes), tags (which can stand for
code), keys stated twice, nesting and lists that no job needs.
"""

from __future__ import annotations

import json
import os
import re
import select
from dataclasses import field
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from autotune.catalog.models.models import is_known
from autotune.domain.errors import InputError, close_matches
from autotune.domain.typed.values import MAPPING, TEXT, shown
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pydantic import BaseModel, ValidationError

    from autotune.domain.typed.job import JobFile

File = TypeVar("File", bound="BaseModel")
_OPEN = re.compile(r"\$\{?\w+\}?|<[^<>\n]+>|[A-Z]+_\w+")  # a name where a value belongs
MAX_FILE_BYTES = 5_000_000
MAX_NODES = 20_000  # values in one file; the longest real job files hold a few hundred
MAX_DEPTH = 20
SILENT_PIPE_S = 3.0
SAMPLE = "`autotune init` writes a commented job file; --model NAME --rows N --gpu NAME needs none"

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

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """A file's mapping as typed, where it came from, and the line of each key path."""

    values: dict[str, Any]
    name: str
    lines: Mapping[KeyPath, int] = field(default_factory=dict)


def read_text(path: Path, sample: str = SAMPLE) -> str:
    """The text of a file of bounded size. Raises InputError for everything else.

    sample: the hint where there is no such file, or nothing in it.
    """
    try:
        if path.is_dir():
            msg = f"{path} is a folder, and a file is needed"
            raise InputError(msg, "name the job file inside it")
        content = _first_bytes(path)
    except FileNotFoundError:
        msg = f"{path} does not exist{_files_like(path)}"
        model = f"it is a model of the catalogue: --model {path} --rows N --gpu NAME needs no file"
        raise InputError(msg, model if is_known(str(path)) else _looked_for(path, sample)) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        msg = f"{path} cannot be read: {reason}"
        raise InputError(msg) from None
    if len(content) > MAX_FILE_BYTES:
        msg = f"{path} is larger than {MAX_FILE_BYTES // 10**6} MB, which no job file is"
        raise InputError(msg, "data belong in data.dataset, not in the job file")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        msg = f"{path} is not UTF-8 text: byte {error.start} cannot be decoded"
        raise InputError(msg, "save it as UTF-8") from None
    if not text.strip():
        msg = f"{path} is empty"
        raise InputError(msg, sample)
    return text


def _first_bytes(path: Path) -> bytes:
    """At most one byte more than allowed. A pipe that stays silent is not waited for."""
    if not path.is_fifo():
        with path.open("rb") as stream:
            return stream.read(MAX_FILE_BYTES + 1)
    content = b""
    pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        while len(content) <= MAX_FILE_BYTES:
            if not select.select([pipe], [], [], SILENT_PIPE_S)[0]:
                msg = f"{path} is a pipe, and nothing came from it in {SILENT_PIPE_S:.0f} s"
                raise InputError(msg, SAMPLE)
            chunk = os.read(pipe, 65_536)
            if not chunk:
                break
            content += chunk
    finally:
        os.close(pipe)
    return content


def _files_like(path: Path) -> str:
    try:
        names = [item.name for item in path.parent.iterdir()]
    except OSError:
        return ""
    near = close_matches(path.name, names)
    return f"; close to it: {', '.join(near)}" if near else ""


def _looked_for(path: Path, sample: str) -> str:
    """The hint for a file that is not there: of another folder, where its name was looked up."""
    where = f"relative names are looked up in {os.path.realpath(os.curdir)}"
    more = "for a file of another repository, give its path in your clone, or start there"
    return sample if path.is_absolute() or path.parent.is_dir() else f"{where}; {more}"


def read_document(path: Path, sample: str = SAMPLE) -> Document:
    """A YAML or JSON file whose top level is a mapping with text keys. sample: see read_text."""
    return document_of(read_text(path, sample), str(path), json=path.suffix.casefold() == ".json")


def document_of(text: str, name: str, *, json: bool) -> Document:
    """YAML or JSON text whose top level is a mapping with text keys."""
    if json:
        values, lines = _from_json(text, name), dict[KeyPath, int]()
    else:
        values, lines = _from_yaml(text, name)
    if not isinstance(values, dict):
        msg = f"{name} holds {shown(values)} where a mapping of keys is needed"
        raise InputError(msg, SAMPLE)
    odd = next((key for key in values if not isinstance(key, str)), "")
    if not isinstance(odd, str):
        msg = f"{name}: the key {shown(odd)} is not text"
        raise InputError(msg, "put it in quotes, or take it out")
    return Document(values, name, lines)


def _from_json(text: str, name: str) -> Any:  # noqa: ANN401 - whatever the file holds
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        twice = next((key for key in keys if keys.count(key) > 1), None) if len(keys) < 1000 else ""  # noqa: PLR2004
        if twice is not None:
            msg = f"{name}: the key {shown(twice)} is stated twice"
            raise InputError(msg)
        return dict(pairs)

    def refuse(constant: str) -> float:
        msg = f"{name}: {constant} is not a number that JSON or a job has"
        raise InputError(msg)

    try:
        return json.loads(text, object_pairs_hook=once, parse_constant=refuse)
    except json.JSONDecodeError as error:
        msg = f"{name} line {error.lineno}: not valid JSON: {error.msg}"
        name_there = _OPEN.match(text, error.pos)
        hint = name_there and f"the file is a template: put a value where it says {name_there[0]}"
        raise InputError(msg, hint or None) from None
    except (RecursionError, ValueError):
        msg = f"{name}: not valid JSON: nested too deeply or a number too long"
        raise InputError(msg) from None


def _from_yaml(text: str, name: str) -> tuple[Any, dict[KeyPath, int]]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError
    from ruamel.yaml.parser import Parser

    scan = _Scan(name)

    class Checked(Parser):
        """What is parsed is looked at before anything is built of it."""

        def get_event(self) -> Any:  # noqa: ANN401 - ruamel's event
            event = super().get_event()
            scan.see(event)
            return event

    yaml = YAML(typ="safe", pure=True)
    yaml.Parser = Checked
    try:
        return yaml.load(text), scan.lines
    except MarkedYAMLError as error:
        mark = error.problem_mark
        line = f" line {mark.line + 1}" if mark else ""
        problem = (error.problem or "not valid YAML").splitlines()[0][:200]
        msg = f"{name}{line}: {problem}"
        raise InputError(msg, "fix the YAML at that line") from None
    except (YAMLError, ValueError, OverflowError, RecursionError, TypeError, KeyError) as error:
        problem = (str(error).splitlines() or ["not valid YAML"])[0][:200]
        msg = f"{name}: {problem}"
        raise InputError(msg, "fix the YAML") from None


class _Scan:
    """Refuses what a job file must not hold, and keeps the line of every key path of what remains.

    It sees the parser's events, so nothing has been built yet when a bomb is refused.
    """

    def __init__(self, name: str) -> None:
        """name: what errors call the file."""
        self.name = name
        self.lines: dict[KeyPath, int] = {}
        self._stack: list[_Level] = []
        self._documents = self._events = 0

    def see(self, event: Any) -> None:  # noqa: ANN401 - ruamel's event
        """The next event. Raises InputError for what is refused."""
        kind, stack = type(event).__name__, self._stack
        line = event.start_mark.line + 1
        place = f"{self.name} line {line}"
        _refuse(event, kind, place)
        self._events += 1
        if self._events > MAX_NODES or len(stack) > MAX_DEPTH:
            msg = f"{place}: more values or deeper nesting than any job has"
            raise InputError(msg, "data belong in data.dataset, not in the job file")
        self._documents += kind == "DocumentStartEvent"
        if self._documents > 1:
            msg = f"{place}: a second document starts; a job file holds one"
            raise InputError(msg, "keep one job a file")
        if kind in {"MappingEndEvent", "SequenceEndEvent"}:
            stack.pop()
        elif kind in {"ScalarEvent", "MappingStartEvent", "SequenceStartEvent"}:
            if stack and stack[-1].awaits_key and kind != "ScalarEvent":
                msg = f"{place}: a key is a list or a mapping, and it must be text"
                raise InputError(msg, "write one word in front of the colon")
            path = stack[-1].next_path(event) if stack else ()
            self.lines.setdefault(path, line)
            if kind != "ScalarEvent":
                stack.append(_Level(path, mapping=kind == "MappingStartEvent"))


def _refuse(event: Any, kind: str, place: str) -> None:  # noqa: ANN401 - ruamel's event
    if kind == "AliasEvent" or getattr(event, "anchor", None) is not None:
        msg = f"{place}: aliases and anchors (& and *) are not allowed in a job file"
        raise InputError(msg, "write the value out where it is used")
    if getattr(event, "version", None) not in {None, (1, 2)}:
        msg = f"{place}: a %YAML line asks for another version of YAML, and 1.2 is read"
        raise InputError(msg, "take the %YAML line out")
    tag = getattr(event, "tag", None)
    if tag is not None:
        msg = f"{place}: the tag {shown(str(tag))} is not allowed in a job file"
        raise InputError(msg, "write plain values; tags can stand for code")


@dataclass(slots=True)
class _Level:
    """A mapping or a list that is being read: what the next event's key path is."""

    path: KeyPath
    mapping: bool
    key: str | None = None
    index: int = -1

    @property
    def awaits_key(self) -> bool:
        """Whether what comes next is a mapping's key."""
        return self.mapping and self.key is None

    def next_path(self, event: Any) -> KeyPath:  # noqa: ANN401 - ruamel's event
        if not self.mapping:
            self.index += 1
            return (*self.path, self.index)
        if self.key is None:
            self.key = str(getattr(event, "value", "?"))
            return (*self.path, self.key)
        key, self.key = self.key, None
        return (*self.path, key)


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
            near = close_matches(str(path[-1]), known)
            text += f"; close to it: {', '.join(near)}" if near else ""
            hints.append(f"keys {_place(path[:-1])}: {', '.join(known)}")
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
        try:
            values = values[part]  # type: ignore[index]  # whatever the file holds; guarded
        except (TypeError, KeyError, IndexError):
            return message
    must = _WORDS.get(item["type"]) or _plain(message)
    return f"is empty, and {must}" if values is None else f"{shown(values)}: {must}"


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
