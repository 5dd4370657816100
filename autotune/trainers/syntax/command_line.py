"""A launch command as it is typed: its flags as a mapping, and some of them changed.

Nothing is executed or expanded: `$NAME` stays text, but for a variable of the script that is bound
once, at the start of a line, to plain text. Underscores and dashes in a flag are one.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from autotune.domain.errors import InputError
from autotune.domain.typed.values import shown
from autotune.frozen import dataclass
from autotune.trainers.contract import GONE
from autotune.trainers.parsed import at_key
from autotune.trainers.syntax.shell_words import USED, computed_text, cuts_off, without_comments

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.trainers.contract import Changes
    from autotune.trainers.syntax.shell_words import Array

_TOKEN = re.compile(
    r"""(?P<comment>(?<!\S)\#[^\n]*)
      | (?P<placeholder><[A-Za-z](?:[^<>\n|;&]*[^<>\s|;&])?>)
      | (?P<process>[<>]\((?:[^()\n]|\([^()\n]*\))*\))
      | (?P<operator>&&|\|\||[;|&]|(?:(?<!\S)\d)?>{1,2}(?:&\d)?|<)
      | (?P<sum>\$\((?:expr\s[^()\n]*|\((?:[^()\n]|\([^()\n]*\))*\))\))
      | (?P<word>(?:\$\((?:[^()\n]|\([^()\n]*\))*\)|[^\s"'\\;&|<>]|\\[^\n]
                 |"(?:[^"\\]|\\.)*"|'[^']*')+)""",
    re.DOTALL | re.VERBOSE,
)
WORD = re.compile(r"""(?:[^\s"'\\;&|<>]|\\.|"(?:[^"\\]|\\.)*"|'[^']*')+""", re.DOTALL)
_SCRIPT = re.compile(r".*\.py$|^(sft|train|dpo|full|lora|\w*finetune\w*)$")
_VERB_SECOND = {"trl", "swift"}
_MODULE = {"-m", "--module"}
LAUNCHERS = re.compile(r"(torch\.distributed|accelerate|deepspeed)\b.*")  # they start modules
ASSIGNED = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(.*)", re.DOTALL)
NAME = re.compile(r"\$(?:\{(\w+)(?::-([^}]*))?\}|(\w+))")
_JOINED = re.compile(r"\\[ \t]*\r?\n")  # with a blank behind the backslash it is a slip
_SLIP = re.compile(r"\\[ \t]+\r?\n")
_UNJOINED = re.compile(r"(?<![\\\s])[ \t]*\r?\n(?=[ \t]*--\w)")  # no backslash before a flag
# A variable by itself, or what the user adds.
_ANY = re.compile(rf"{NAME.pattern}|\$[@*]|\$\{{\w+\[[@*]\]\}}")
SIZED = r"--[\w.-]*(batch|epochs|steps)"
PLACEHOLDER = re.compile(r"<[A-Za-z][^<>]*>")
# Flags that name the file of settings; the last is Firefly's.
_CONFIGS = ("config", "config_path", "config_file", "yaml_config", "cfg", "train_args_file")
CONFIG = re.compile(r"\S+\.(ya?ml|json)")
_TOO_LONG = 100_000
_LITGPT_RANK = 8  # lora_r of litgpt 0.5.13 finetune/lora.py, where no flag states it


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    begin: int
    end: int
    operator: bool = False
    held: bool = False  # out of a variable: it stands nowhere itself


@dataclass(slots=True)
class Command:
    """Flags after the script (`values`) and before it (`launcher`), and where each stands."""

    values: dict[str, Any] = field(default_factory=dict)
    launcher: dict[str, Any] = field(default_factory=dict)
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)  # of flag and values
    launched_at: dict[str, tuple[int, int]] = field(default_factory=dict)  # the launcher's
    program: tuple[str, ...] = ()  # words before the first flag of the script
    environment: dict[str, str] = field(default_factory=dict)  # NAME=VALUE in front of it
    words: tuple[str, ...] = ()  # after the script, and of no flag
    unknown: list[str] = field(default_factory=list)  # variables that may hold any flags
    others: tuple[int, ...] = ()  # lines on which the script launches again
    beside: tuple[str, ...] = ()  # other trainings that the script starts, without a size there
    swept: tuple[str, ...] = ()  # variables of a loop, and the values after the first
    repeated: tuple[str, ...] = ()  # flags that the same flag takes back further on
    array: str = ""  # tasks that Slurm is to start it as
    written: dict[str, str] = field(default_factory=dict)  # files that its script writes, by name
    slips: int = 0  # lines that go on, and end in a blank behind the backslash
    cut: int = 0  # comments between its lines, which end it for the shell
    unjoined: int = 0  # lines of flags behind one without a backslash
    begin: int = 0  # where its program stands
    end: int = 0  # where another flag would stand

    @property
    def config(self) -> str | None:
        """The trainer's file that the command names, if it does."""
        named = next((self.values[key] for key in _CONFIGS if key in self.values), None)
        found = [named] if isinstance(named, str) else list(self.words)
        return next((word for word in found if CONFIG.fullmatch(word)), None)


_CLASS = "data"  # litgpt's: a class, or a mapping with its class_path


def parse_command(
    text: str, names: Mapping[str, str] | None = None,
    arrays: Mapping[str, Array] | None = None,
) -> Command:  # fmt: skip
    """The command as typed; `names` and `arrays` are the shell's, put in where they stand.

    Raises InputError for one that starts nothing, or a flag twice.
    """
    put, lists = names or {}, arrays or {}
    command = _the_command(_tokens(text), lists)
    tokens = [each for token in command for each in _named(token, text, put, lists)]
    assigned = 0
    while assigned < len(tokens) and ASSIGNED.fullmatch(tokens[assigned].text):
        assigned += 1
    made = Command(environment=dict(names or {}), end=tokens[-1].end if tokens else 0)
    made.slips, made.cut = len(_SLIP.findall(without_comments(text))), cuts_off(text)
    made.unjoined = len(_UNJOINED.findall(without_comments(text)))
    used = [match for match in map(USED.fullmatch, (token.text for token in command)) if match]
    made.unknown = [m[0] for m in used if m["name"] in lists and lists[m["name"]].is_open]
    for token in tokens[:assigned]:
        name, _, value = token.text.partition("=")
        made.environment[name] = value
    tokens = tokens[assigned:]
    script = _script_at(tokens)
    made.program = tuple(token.text for token in tokens[: script + 1])
    before = [token for token in tokens[:script] if token.text not in _MODULE]
    made.begin = tokens[0].begin if tokens else 0
    _read(before, Command(values=made.launcher, spans=made.launched_at), several=True)
    made.words = _read(tokens[script + 1 :], made, several=False)
    if "litgpt" not in made.program:  # its word is the checkpoint's folder
        made.unknown += [word for word in made.words if _ANY.fullmatch(word)]
    _take_overrides(made)
    if PLACEHOLDER.search(made.config or ""):
        msg = f"the command names {shown(made.config)}, a placeholder, and no file"
        raise InputError(msg, "put the name of the trainer's file there")
    if not made.values and made.config is None and not made.program:
        msg = f"the command {shown(text)} has no --flags of a trainer"
        hint = 'such as --from-args "python train.py --per_device_train_batch_size 4"'
        raise InputError(msg, hint)
    return made


def _take_overrides(made: Command) -> None:
    """`tune run RECIPE --config FILE batch_size=4`: words behind the file are flags as well."""
    named = made.values.get("config")
    if isinstance(named, list):
        made.values["config"], *more = named
        made.words += tuple(more)
    for word in made.words:
        name, equals, value = word.partition("=")
        if equals and re.fullmatch(r"[\w.]+", name):
            made.values.setdefault(name, value)
    if "litgpt" in made.program and made.words:
        made.values.setdefault("checkpoint_dir", made.words[0])
        if not any(word.endswith("full") for word in made.program):
            made.values.setdefault("lora_r", _LITGPT_RANK)


def _script_at(tokens: list[_Token]) -> int:
    """Where the script, or what stands for it, is: the second word of `trl` and `swift`."""
    if len(tokens) > 1 and tokens[0].text in _VERB_SECOND and not _is_flag(tokens[1]):
        return 1
    for index, token in enumerate(tokens):
        module = index > 0 and tokens[index - 1].text in _MODULE
        if _SCRIPT.match(token.text) or (module and not LAUNCHERS.fullmatch(token.text)):
            return index
    first = next((i for i, t in enumerate(tokens) if t.text.startswith("--")), len(tokens))
    return first - 1


def _the_command(tokens: list[_Token], arrays: Mapping[str, Array]) -> list[_Token]:
    """Of several commands in a row the one that trains, without what it redirects."""
    parts: list[list[_Token]] = [[]]
    redirected = False
    for token in tokens:
        if token.operator and token.text.strip("0123456789")[:1] in {">", "<"}:
            redirected = "&" not in token.text
        elif token.operator:
            parts.append([])
        elif redirected:
            redirected = False
        else:
            parts[-1].append(token)
    sized = [part for part in parts if any(_is_sized(token, arrays) for token in part)]
    flagged = [part for part in parts if any(token.text.startswith("--") for token in part)]
    filed = [part for part in parts if any(CONFIG.fullmatch(token.text) for token in part)]
    return next(iter([*sized, *filed, *flagged, *parts]), [])


def _is_sized(token: _Token, arrays: Mapping[str, Array]) -> bool:
    used = USED.fullmatch(token.text)
    held = arrays[used["name"]].text if used and used["name"] in arrays else ""
    return bool(re.match(SIZED, token.text) or re.search(SIZED, held))


def _named(
    token: _Token, text: str, names: Mapping[str, str], arrays: Mapping[str, Array]
) -> list[_Token]:
    """The token with the shell's variables put in; single quotes keep them out.

    A variable by itself, without quotes, is as many words as its text has; so is an array.
    """
    used = USED.fullmatch(token.text)
    if used and used["name"] in arrays:
        typed = _tokens(arrays[used["name"]].text)
        inner = [each for word in typed for each in _named(word, "", names, {})]
        return [replace(token, text=each.text, held=True) for each in inner]
    quote = text[token.begin : token.begin + 1]
    if "$" not in token.text or quote == "'":
        return [token]

    def value(match: re.Match[str]) -> str:
        name, default, bare = match.groups()
        return names.get(name or bare, match.group() if default is None else default)

    found = computed_text(NAME.sub(value, token.text), names)
    if quote == '"' or not NAME.fullmatch(token.text) or found == token.text:
        return [replace(token, text=found)]
    try:
        words = shlex.split(found)
    except ValueError:
        words = [found]
    if len(words) == 1:
        return [replace(token, text=words[0])]
    return [replace(token, text=word, held=True) for word in words]


def rewrite_command(
    text: str, changes: Changes, names: Mapping[str, str] | None = None,
    arrays: Mapping[str, Array] | None = None,
) -> str:  # fmt: skip
    """The command with those flags changed, added at the end, or taken out."""
    for dotted, value in changes.items():
        name, _, inner = dotted.partition(".")
        command = parse_command(text, names, arrays)
        flat = any(flag.startswith(f"{name}.") for flag in command.spans)
        if inner and flat:
            text = _replace(text, command, dotted, value)
            continue
        if inner:
            outer = command.values.get(name)
            whole = {**(outer if isinstance(outer, dict) else {}), inner: value}
            text = _replace(text, command, name, whole)
            continue
        text = _replace(text, command, name, value)
    return text


def with_launcher_flag(
    text: str, name: str, value: object, names: Mapping[str, str] | None,
    arrays: Mapping[str, Array] | None,
) -> str:  # fmt: skip
    """The command with another value of a flag of its launcher, which it has."""
    command = parse_command(text, names, arrays)
    return _replace(text, Command(spans=command.launched_at), name, value)


def _replace(text: str, command: Command, name: str, value: object) -> str:
    span = command.spans.get(name)
    if value is GONE:
        if span is None:
            return text
        return text[: span[0]].rstrip(" ") + text[span[1] :]
    flag = f"--{name} {_shell(value)}"
    if span is None:
        return f"{text[: command.end]} {flag}{text[command.end :]}"
    stated = text[span[0] : span[1]]
    typed = re.match(r"--(?:no[_-])?([\w.-]+)", stated)
    if typed and typed.group(1).replace("-", "_") == name and not stated.startswith("--no"):
        joint = "=" if stated.startswith(f"{typed.group()}=") else " "
        flag = f"{typed.group()}{joint}{_shell(value)}"
    return text[: span[0]] + flag + text[span[1] :]


def _shell(value: object) -> str:
    if isinstance(value, bool):
        return "True" if value else "False"
    if isinstance(value, dict | list):
        return shlex.quote(json.dumps(value))
    return shlex.quote(str(value))


def _tokens(text: str) -> list[_Token]:
    if len(text) > _TOO_LONG:
        msg = "the command is longer than any launch command"
        raise InputError(msg)
    if (end := len(text.rstrip())) and text[end - 1] == "\\":  # nothing follows it
        text = f"{text[: end - 1]} {text[end:]}"
    joined = _JOINED.sub(lambda match: " " * len(match.group()), without_comments(text))
    found: list[_Token] = []
    at = 0
    for match in _TOKEN.finditer(joined):
        if joined[at : match.start()].strip():
            break
        at = match.end()
        if match["comment"]:
            continue
        operator, blank = match["operator"] is not None, match["placeholder"] is not None
        try:
            typed = operator or blank or match["sum"] or match["process"]
            whole = typed or re.match(r"[^\s\"']*\$\(", match.group())
            words = [match.group()] if whole else shlex.split(match.group())
        except ValueError:
            break
        word = words[0] if words else ""
        joint = found and not operator and found[-1].end == match.start()
        if joint and (blank or PLACEHOLDER.search(found[-1].text)):  # <name>.yaml
            last = found.pop()
            found.append(_Token(last.text + word, last.begin, match.end()))
            continue
        found.append(_Token(word, match.start(), match.end(), operator))
    if joined[at:].strip():
        msg = f"the command cannot be read from {shown(joined[at:].strip())} on"
        raise InputError(msg, "a quote or backslash is not closed")
    return found


def _read(tokens: list[_Token], made: Command, *, several: bool) -> tuple[str, ...]:
    """Flags into `made`; returns the words in front of the first flag.

    Of a flag that stands there twice the last is taken, as argparse and jsonargparse do.
    several: whether that says nothing, as with a launcher.
    """
    values, spans = made.values, made.spans
    first = next((i for i, token in enumerate(tokens) if _is_flag(token)), len(tokens))
    index = first
    while index < len(tokens):
        token = tokens[index]
        index += 1
        name, equals, inline = token.text[2:].partition("=")
        name = name.replace("-", "_")
        words, end = [inline] if equals else [], token.end
        while index < len(tokens) and not _is_flag(tokens[index]):
            word = tokens[index]
            if (words or equals) and _ANY.fullmatch(word.text):
                made.unknown.append(word.text)
            elif not equals:  # a word behind --flag=value is of no flag
                words.append(word.text)
                end = word.end
            index += 1
        value = _value(words)
        if not words and name.startswith("no_"):
            name, value = name[3:], False
        if not several and name in spans and value != at_key(values, name):
            made.repeated += (f"--{name} {shown(at_key(values, name))}",)
        _put(values, name, value)
        if not token.held:
            spans[name] = (token.begin, end)
    return tuple(token.text for token in tokens[:first])


def _put(values: dict[str, Any], dotted: str, value: object) -> None:
    """`--train.epochs 3` is a key inside the mapping `train`.

    `--data JSON --data.json_path rows.json` is a class and one of its arguments, as jsonargparse
    reads them, in either order.
    """
    *outer, last = dotted.split(".")
    for part in outer:
        inner = values.setdefault(part, {})
        if part == _CLASS and isinstance(inner, str):
            inner = values[part] = {"class_path": inner}
        if not isinstance(inner, dict):
            msg = f"--{dotted} and --{part} are both given"
            raise InputError(msg, "keep one of them")
        values = inner
    if last == _CLASS and isinstance(values.get(last), dict) and isinstance(value, str):
        values[last]["class_path"] = value
    else:
        values[last] = value


def _is_flag(token: _Token) -> bool:
    return token.text.startswith("--") and token.text != "--"


def _value(words: list[str]) -> Any:  # noqa: ANN401
    """No word: the flag alone means true; a JSON object is one; several words are a list."""
    if not words:
        return True
    if len(words) > 1:
        return words
    word = words[0]
    if word.lstrip().startswith("{"):
        try:
            return json.loads(word)
        except (ValueError, RecursionError):
            return word
    if word in {"True", "False", "true", "false"}:
        return word.casefold() == "true"
    return word
