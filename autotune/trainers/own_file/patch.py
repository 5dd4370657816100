"""The user's own file back, with only the changed keys changed.

A knob is written when the pick's value differs from what the file means (what it states, or its
trainer's default). Everything else in the text stays byte for byte. Before anything is returned the
new text is read again: it must parse to the old mapping with exactly those changes, and state the
same global batch, length, method and epochs.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.domain.answer.recommendation import Decisive
from autotune.domain.config import KNOBS, SPLIT
from autotune.domain.errors import InputError
from autotune.domain.typed.values import shown
from autotune.frozen import dataclass
from autotune.trainers.contract import GONE, Target
from autotune.trainers.launch.config import is_settings
from autotune.trainers.launch.processes import another_number, with_processes
from autotune.trainers.own_file.facts import FOLLOWS, facts_of, facts_written
from autotune.trainers.parsed import at_key
from autotune.trainers.registry import TRAINERS
from autotune.trainers.schema import schema_of
from autotune.trainers.syntax.command_line import parse_command, rewrite_command
from autotune.trainers.syntax.python_rewrite import rewrite_script
from autotune.trainers.syntax.python_source import parse_script
from autotune.trainers.syntax.rewrite import (
    changed_values,
    renamed_yaml,
    rewrite_json,
    rewrite_yaml,
    safe_yaml,
)
from autotune.trainers.syntax.shell_script import (
    launches,
    parse_shell,
    rewrite_shell,
    shell_names,
)
from autotune.trainers.syntax.shell_words import shell_arrays
from autotune.trainers.versions import parse_version, show

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.domain.config import Config
    from autotune.domain.job import Origin
    from autotune.trainers.contract import Changes
    from autotune.trainers.parsed import Parsed
    from autotune.trainers.versions import Version

COMMAND_FILE = "command.sh"
_SAME_AS_DEFAULT = {  # where none is stated
    "attention": ("sdpa",), "sharding": ("none", "ddp"), "compile_scope": ("model",),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Patched:
    """The new text under the file's own name, the difference, and what it cannot say."""

    name: str
    text: str
    diff: str
    changes: Changes
    notes: tuple[str, ...]
    written: frozenset[str] = frozenset()  # keys of the job that now stand in the file


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the job asks of the file beside the knobs.

    evaluation_rows: of an evaluation batch; 0 where there is none, or it stays as it is.
    base: how the weights are to be loaded; empty where the file's way stays.
    facts: keys of the job whose values are not the file's: `method.rank` is 8.
    global_batch_size: rows an optimizer step; 0: the file's.
    trl: its release, where somebody states one; what it does not take yet is not written.
    """

    evaluation_rows: int = 0
    base: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)
    global_batch_size: int = 0
    trl: Version | None = None


def patch(
    origin: Origin,
    values: Mapping[str, Any],
    parsed: Parsed,
    config: Config,
    transformers: Version,
    devices: int,
    wanted: Wanted | None = None,
) -> Patched:
    """The file of `origin` with `config` in it.

    Args:
        origin: the user's file as it was read.
        values: its mapping, read safely.
        parsed: what it means.
        config: one value for every knob.
        transformers: the version whose spelling is written.
        devices: how many will run it.
        wanted: what else is asked for; nothing by default.

    Raises:
        InputError: the text cannot be changed without changing something else as well.
    """
    name = Path(origin.path).name or COMMAND_FILE
    # Positions in a text are of one kind of line end.
    windows = 0 < origin.text.count("\n") == origin.text.count("\r\n")
    origin = replace(origin, text=origin.text.replace("\r\n", "\n")) if windows else origin
    wanted = wanted or Wanted()
    target = Target(
        values, config, transformers, origin.syntax, devices, wanted.base, origin.by_name,
        wanted.trl,
    )  # fmt: skip
    changes, instead, notes = _changes(origin, parsed, target)
    sized = _evaluation(origin, parsed, wanted.evaluation_rows)
    if sized and _computes(origin, sized):
        notes.append(f"{_named(sized)}: the file computes it; set it there yourself")
    else:
        changes |= sized
    facts = facts_written(origin, values, parsed, wanted.facts, name)
    facts = {fact: own for fact, own in facts.items() if not _computes(origin, own)}
    changes |= {key: value for own in facts.values() for key, value in own.items()}
    try:
        text = _rewritten(origin, changes, instead, name)
    except InputError:
        raise
    except Exception as error:  # a layout that the parser's positions do not describe
        msg = f"{name} cannot be changed where it stands: {type(error).__name__}"
        raise InputError(msg, _OTHERWISE) from error
    free = {*facts, *FOLLOWS} if facts else set[str]()
    free |= {"method.base"} if wanted.base else set()
    before = wanted.global_batch_size or parsed.batch_on(parsed.devices or devices)
    _check(origin, text, target, changes, parsed, free, before)
    text, started, unchanged = _started(origin, text, devices, name)
    notes += unchanged
    diff = "".join(
        difflib.unified_diff(
            _lines(origin.text), _lines(text), f"a/{name}", f"b/{name}", lineterm="\n"
        )
    )
    text = text.replace("\n", "\r\n") if windows else text
    return Patched(name, text, diff, changes | started, tuple(notes), frozenset(facts))


def _lines(text: str) -> list[str]:
    """Lines as a difference holds them, so that `patch` can apply it."""
    *lines, last = text.split("\n")
    rest = [f"{last}\n\\ No newline at end of file\n"] if last else []
    return [line + "\n" for line in lines] + rest


def _changes(
    origin: Origin, parsed: Parsed, target: Target
) -> tuple[Changes, dict[str, str], list[str]]:
    """The keys to change, which of them takes the place of another, and what cannot be said."""
    dialect, meaning = TRAINERS[origin.trainer], parsed.meaning
    changes: Changes = {}
    instead: dict[str, str] = {}
    notes: list[str] = []
    for knob in KNOBS:
        value = getattr(target.config, knob)
        if meaning.get(knob) == value:
            continue
        if knob not in meaning and value in _SAME_AS_DEFAULT.get(knob, ()):
            continue
        if knob in parsed.kept:
            notes.append(f"{knob} {_text(value)}: the file's own setting was left as it is")
            continue
        spelled = dialect.spell(knob, value, target)
        if isinstance(spelled, str):
            notes.append(f"{dialect.title} cannot say {knob} {_text(value)}: {spelled}")
        elif _computes(origin, spelled):
            notes.append(f"{knob} {_text(value)}: the file computes it; set it there yourself")
        elif lacks := _lacks(origin, spelled, target):
            notes.append(Decisive(f"{dialect.title} cannot say {knob} {_text(value)}: {lacks}"))
        else:
            changes |= spelled
            instead |= _in_place_of(spelled, target)
    if target.base:
        spelled = dialect.spell_base(target)
        if isinstance(spelled, str) or _computes(origin, spelled):
            how = spelled if isinstance(spelled, str) else f"set {_named(spelled)} there yourself"
            file = Path(origin.path).name or COMMAND_FILE
            told = f"have {file} load {target.base} weights yourself; it loads {origin.base}"
            notes.append(Decisive(f"{told}: {how}"))
        else:
            changes |= spelled
    notes += [
        f"{name} {_text(value)}: not in the file; state it where the run is started"
        for name, value in target.config.extra
    ]
    changes = {key: v for key, v in changes.items() if not _is_so(target.values, key, v)}
    return changes, {old: new for old, new in instead.items() if new in changes}, notes


def _lacks(origin: Origin, changes: Changes, target: Target) -> str:
    """That the release which runs the file does not take one of the keys yet; empty: it does."""
    schema = schema_of(origin.trainer)
    for key, value in changes.items():
        known = schema.find(key)
        package, _, last = (known.lacks if known is not None else "").partition(" ")
        own = {"transformers": target.transformers, "trl": target.trl}.get(package)
        if value is not GONE and own is not None and own <= parse_version(last, key):
            return f"{package} {show(own)} does not take {key} yet"
    return ""


def _evaluation(origin: Origin, parsed: Parsed, rows: int) -> Changes:
    """The key that sizes an evaluation batch, where the file and its trainer have another."""
    key, plan = TRAINERS[origin.trainer].evaluation_batch, parsed.values.get("evaluation")
    own = plan.get("batch_size", parsed.evaluation_rows) if plan is not None else 0
    return {key: rows} if key and own and rows and rows != own else {}


def _named(changes: Changes) -> str:
    return ", ".join(f"{key} {_text(value)}" for key, value in changes.items())


def _computes(origin: Origin, changes: Changes) -> bool:
    """Whether the file computes one of the keys, so that nothing can be written there."""
    return bool({"**", *(key.split(".")[0] for key in changes)} & set(_computed(origin)))


def _in_place_of(spelled: Changes, target: Target) -> dict[str, str]:
    """The key that goes and the one that is new, where one knob has both: one line of the file."""
    gone = [key for key, value in spelled.items() if value is GONE and "." not in key]
    new = [
        key
        for key, value in spelled.items()
        if value is not GONE and "." not in key and not target.has(key)
    ]
    old = [key for key in gone if not isinstance(target.values.get(key), dict | list)]
    return {old[0]: new[0]} if old and new else {}


def settings_of(origin: Origin) -> dict[str, Any] | None:
    """What the file says that a script loads its settings from; None where none was read."""
    for each in origin.beside if origin.syntax == "python" else ():
        values = _values_of(each.syntax, each.text, each.path, 0)
        if is_settings(values):
            return values
    return None


def _computed(origin: Origin) -> list[str]:
    if origin.syntax != "python":
        return []
    return parse_script(origin.text, Path(origin.path).name, settings_of(origin)).computed


def _text(value: object) -> str:
    return json.dumps(value).strip('"')


def _is_so(values: Mapping[str, Any], dotted: str, value: object) -> bool:
    """Whether the file says that already."""
    found = at_key(values, dotted, GONE)
    return type(found) is type(value) and bool(found == value)


def _rewritten(origin: Origin, changes: Changes, instead: Mapping[str, str], name: str) -> str:
    if not changes:
        return origin.text
    if origin.syntax == "python":
        return rewrite_script(origin.text, changes, name, settings_of(origin))
    if origin.syntax == "shell":
        return rewrite_shell(origin.text, changes, name, origin.launch)
    if origin.syntax == "args":
        return rewrite_command(origin.text, changes)
    if origin.syntax == "json":
        return rewrite_json(origin.text, changes)
    left = {key: value for key, value in changes.items() if key not in instead}
    return rewrite_yaml(renamed_yaml(origin.text, instead), left)


def _started(
    origin: Origin, text: str, devices: int, name: str
) -> tuple[str, Changes, list[str]]:  # fmt: skip
    """The text whose command starts one process a device, what that changes, and what it cannot."""
    if origin.syntax not in {"args", "shell"}:
        return text, {}, []
    begin, end, names, arrays = 0, len(text), None, None
    if origin.syntax == "shell":
        begin, end = launches(text, name)[origin.launch][:2]
        names, arrays = shell_names(text), shell_arrays(text)
    launched = TRAINERS[origin.trainer].launched
    found, changes = with_processes(text[begin:end], devices, names, arrays, launched=launched)
    other = another_number(found, devices, names, arrays)
    told = f"{name} starts {other} processes and the pick has {devices}: change it yourself"
    return text[:begin] + found + text[end:], changes, [Decisive(told)] if other else []


def _values_of(syntax: str, text: str, name: str, launch: int) -> dict[str, Any]:
    if syntax == "shell":
        return parse_shell(text, name, launch).values
    if syntax == "args":
        return parse_command(text).values
    if syntax == "json":
        found: dict[str, Any] = json.loads(text)
        return found
    loaded: dict[str, Any] = safe_yaml().load(text)
    return loaded


def _check(
    origin: Origin,
    text: str,
    target: Target,
    changes: Changes,
    parsed: Parsed,
    free: set[str],
    before: int,
) -> None:
    """Raise InputError unless the new text says the old one plus the changes, and no other job.

    free: keys of the job that may be others.
    before: the global batch that it must have.
    """
    name = Path(origin.path).name or COMMAND_FILE
    try:
        if origin.syntax == "python":
            again = parse_script(text, name, settings_of(origin)).values
        else:
            again = _values_of(origin.syntax, text, name, origin.launch)
    except Exception as error:  # whatever a parser raises: the text must not be handed out
        msg = f"{name} cannot be changed where it stands: the result would not parse"
        raise InputError(msg, _OTHERWISE) from error
    wanted = changed_values(target.values, changes)
    if origin.syntax in {"args", "shell"}:
        wanted, again = _as_text(wanted), _as_text(again)
    if json.dumps(again, default=str) != json.dumps(wanted, default=str) and again != wanted:
        lost = next((k for k in {**wanted, **again} if wanted.get(k) != again.get(k)), "")
        msg = f"{name} cannot be changed without changing {shown(lost)} as well"
        raise InputError(msg, _OTHERWISE)
    remade = TRAINERS[origin.trainer].read(again, name)
    for knob in SPLIT:  # where the script that a command starts says it
        if knob in origin.knobs:
            remade.knobs.setdefault(knob, origin.knobs[knob])
    after = remade.batch_on(target.devices)
    old, new = facts_of(parsed), facts_of(remade)
    kept = all(old.get(key) == new.get(key) for key in {**old, **new}.keys() - free)
    if before != after or not kept:
        msg = f"{name} would train another job: global batch {before} before, {after} after"
        raise InputError(msg, _OTHERWISE)


def _as_text(values: Mapping[str, Any]) -> dict[str, Any]:
    """Flags are text, or several: 4 and "4" are one, also inside `--train.micro_batch_size`."""
    return {
        key: _as_text(v) if isinstance(v, dict) else v if isinstance(v, str | list)
        else json.dumps(v)
        for key, v in values.items()
    }  # fmt: skip


_OTHERWISE = "write it in a file of its own: --export hf or --export trl"
