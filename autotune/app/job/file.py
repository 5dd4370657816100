"""A job file's bytes -> a `Document`: its mapping as typed. The file is not trusted.

Refused, each with its own message: files that are missing, no file, unreadable, empty, above 5 MB
or not UTF-8; aliases and anchors (a few bytes can stand for gigabytes), tags (which can stand for
code), keys stated twice, nesting and lists that no job needs.
"""

from __future__ import annotations

import json
import os
import re
import select
import tomllib
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.catalog.models.models import is_named, models_like
from autotune.domain.errors import InputError, close_matches, did_you_mean
from autotune.domain.typed.values import shown
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

_OPEN = re.compile(r"\$\{?\w+\}?|<[^<>\n]+>|[A-Z]+_\w+")  # a name where a value belongs
MAX_FILE_BYTES = 5_000_000
# A shell script by its suffix, those that schedulers' users give theirs included.
SHELL = frozenset({".sh", ".bash", ".slurm", ".sbatch", ".sub", ".job", ".pbs", ".lsf"})
SCRIPTS = frozenset({".py", *SHELL})
PAGES = frozenset({".md", ".markdown"})
CODE = frozenset({*SCRIPTS, *PAGES, ".ipynb"})
COMMAND = "the command"  # what is said of settings that stand in no file
ROWS = frozenset({".jsonl", ".csv", ".tsv", ".parquet", ".arrow"})  # files of training data
MAX_NODES = 20_000  # values in one file; the longest real job files hold a few hundred
MAX_DEPTH = 20
SILENT_PIPE_S = 3.0
SAMPLE = "`autotune init` writes a commented job file; --model NAME --rows N --gpu NAME needs none"

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
            raise InputError(msg, f"name the job file inside it; `autotune init {path}` writes one")
        content = _first_bytes(path)
    except FileNotFoundError:
        if is_named(str(path)):
            msg = f"there is no file {path}"
            raise InputError(
                msg, f"it is a model's name: `autotune tune {path} --rows N --gpu NAME`"
            ) from None
        msg = f"{path} does not exist{_files_like(path) or _models_like(path)}"
        raise InputError(msg, _looked_for(path, sample)) from None
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
    return did_you_mean(close_matches(path.name, names))


def _models_like(path: Path) -> str:
    """The models that a name with a size in it, and no file's ending, may mean."""
    text = str(path)
    sized = any(sign.isdigit() for sign in text) and not path.suffix[1:].isalpha()
    return did_you_mean(models_like(text)) if sized and not path.is_absolute() else ""


def _looked_for(path: Path, sample: str) -> str:
    """The hint for a file that is not there: of another folder, where its name was looked up."""
    where = f"relative names are looked up in {os.path.realpath(os.curdir)}"
    more = "for a file of another repository, give its path in your clone, or start there"
    return sample if path.is_absolute() or path.parent.is_dir() else f"{where}; {more}"


def read_document(path: Path, sample: str = SAMPLE) -> Document:
    """A YAML, JSON or TOML file whose top level is a mapping with text keys."""
    text, suffix = read_text(path, sample), path.suffix.casefold()
    return document_of(text, str(path), json=suffix == ".json", toml=suffix == ".toml")


def document_of(text: str, name: str, *, json: bool, toml: bool = False) -> Document:
    """YAML, JSON or TOML text whose top level is a mapping with text keys."""
    if json or toml:
        values, lines = (_from_toml if toml else _from_json)(text, name), dict[KeyPath, int]()
    else:
        values, lines = _from_yaml(text, name)
    if not isinstance(values, dict):
        msg = f"{name} holds {shown(values)} where a mapping of keys is needed"
        raise InputError(msg, SAMPLE)
    odd = next((key for key in values if not isinstance(key, str)), "")
    if not isinstance(odd, str):
        msg = f"{name}: the key {shown(odd)} is not text"
        raise InputError(msg, "quote it, or remove it")
    return Document(values, name, lines)


def _from_toml(text: str, name: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        msg = f"{name}: not valid TOML: {error}"
        raise InputError(msg) from None


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
        msg = f"{name} line {error.lineno}: not valid JSON: {error.msg.removesuffix(' at')}"
        name_there = _OPEN.match(text, error.pos)
        hint = name_there and f"the file is a template: put a value where it says {name_there[0]}"
        raise InputError(msg, hint or None) from None
    except (RecursionError, ValueError):
        msg = f"{name}: not valid JSON: nested too deeply or a number too long"
        raise InputError(msg) from None


def _from_yaml(text: str, name: str) -> tuple[Any, dict[KeyPath, int]]:
    from ruamel.yaml import YAML
    from ruamel.yaml.constructor import DuplicateKeyError
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
        try:
            return yaml.load(text), scan.lines
        except DuplicateKeyError:  # all of it was looked at: composing comes before building
            from autotune.trainers.syntax.rewrite import safe_yaml

            return safe_yaml().load(text), scan.lines
    except MarkedYAMLError as error:
        mark = error.problem_mark
        line = f" line {mark.line + 1}" if mark else ""
        problem = (error.problem or "not valid YAML").splitlines()[0][:200]
        msg = f"{name}{line}: {problem}"
        if Path(name).suffix.lower() in ROWS:
            msg = f"{name} is no job file; it looks like training data"
            hint = f"autotune tune --model NAME --data {name} --gpu NAME"
            raise InputError(msg, hint) from None
        twice = "a trainer's own parser takes the last one: keep the one that is meant"
        hint = twice if isinstance(error, DuplicateKeyError) else "fix the YAML at that line"
        raise InputError(msg, hint) from None
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
                filled = kind == "MappingStartEvent" and event.flow_style
                hint = (
                    "of a template ({{...}}) give the file that is made of it; " if filled else ""
                )
                raise InputError(msg, f"{hint}write one word in front of the colon")
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
