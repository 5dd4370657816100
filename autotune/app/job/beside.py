"""Configs of accelerate and DeepSpeed that belong to a trainer's file: where they lie, and read.

They are named by flag or by the file, lie beside it, or where repositories keep such files.
"""

from __future__ import annotations

import re
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.app.job.file import document_of, read_document, read_text
from autotune.domain.errors import InputError
from autotune.domain.job import Beside, Uncounted
from autotune.domain.typed.values import shown
from autotune.trainers.launch.config import (
    STAGES,
    add_beside,
    add_deepspeed,
    is_deepspeed,
    is_settings,
)
from autotune.trainers.registry import TRAINERS
from autotune.trainers.syntax.python_settings import Several
from autotune.trainers.unread import decides

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from autotune.domain.typed.overrides import Overrides
    from autotune.trainers.parsed import Parsed
    from autotune.trainers.syntax.command_line import Command

_BESIDE = ("accelerate.yaml", "accelerate_config.yaml", "default_config.yaml")
_LONGEST_PATH = 1000
_ABOVE = 8  # folders above a file in which its root may lie
_MODULES = 40  # of what a script imports, as many are looked for
_NEAR = 3  # of them, those in whose folders for configs a name alone is looked for
# Where the repositories of trainers and their users keep such files.
_PLACES = (
    "", "config", "configs", "deepspeed", "ds_configs", "deepspeed_configs", "configs/deepspeed",
    "configs/ds", "config/deepspeed", "examples/deepspeed", "scripts", "recipes/accelerate_configs",
    "accelerate_configs",
)  # fmt: skip
_STAGE = re.compile(r"(?:zero|stage|(?<![a-z])z)[-_.]?([0-3])(?!\d)")
# What a flag that is no key of the trainer may say, or a key that a script computes: an assumption.
FLAGS_SD = (0.15, 0.10)
_BY_NAME_SD = (0.10, 0.15)  # buckets, and states that the file may have otherwise: an assumption


def read_beside(
    parsed: Parsed, values: dict[str, Any], path: Path, overrides: Overrides,
    launched: Mapping[str, Any] | None = None, written: Mapping[str, str] | None = None,
) -> None:  # fmt: skip
    """Read configs of accelerate and DeepSpeed: named by flag or file, or lying beside it.

    Args:
        parsed: completed by them.
        values: of the trainer's file.
        path: of it.
        overrides: whose `beside` names files.
        launched: what the flags of `accelerate launch` say in the words of its config; they win.
        written: files that the shell script writes itself, by name.
    """
    own = written or {}
    trainer = TRAINERS[parsed.trainer]
    names = [Path(name) for name in overrides.beside]
    deepspeed = values.get("deepspeed")
    if isinstance(deepspeed, dict):
        add_deepspeed(parsed, deepspeed, f"{path.name}: deepspeed")
    elif isinstance(deepspeed, str) and Path(deepspeed).name in own:
        _read_written(parsed, Path(deepspeed).name, own, {})
    elif isinstance(deepspeed, str) and deepspeed:
        near = near_file(deepspeed, path) or _elsewhere(deepspeed, path)
        if near is not None:
            names.append(near)
        elif not (trainer.deepspeed_by_name and _is_divided(parsed)) and not names:
            _take_by_name(parsed, deepspeed, path)
    if not overrides.beside and trainer.config_nearby:
        names += [path.parent / name for name in _BESIDE if (path.parent / name).is_file()][:1]
    for name in dict.fromkeys(names):
        found = _read_one(parsed, name, launched or {})
        _read_inner(parsed, found, name, path, own)


def _is_divided(parsed: Parsed) -> bool:
    """Whether the trainer knows the config by its name."""
    return bool({"sharding"} & {*parsed.knobs, *parsed.defaults})


def _read_written(
    parsed: Parsed, name: str, written: Mapping[str, str], launched: Mapping[str, Any]
) -> None:
    """A config that the shell script writes: it does so when it is run, and what it says stays."""
    found = document_of(written[name], name, json=name.endswith(".json")).values
    if not is_deepspeed(found):
        found = {**found, **launched, **_sections(found, launched)}
    add_beside(parsed, found, name)
    parsed.kept |= {"sharding", "offload"}
    parsed.note("read in the script", name, "it writes this file itself: that stays as it is")
    _read_inner(parsed, found, Path(name), Path(name), written)


def _read_inner(
    parsed: Parsed, found: Mapping[str, Any], name: Path, path: Path, written: Mapping[str, str]
) -> None:
    """The DeepSpeed config that accelerate's names, which says how the states are divided.

    name: of accelerate's; path: of the trainer's file.
    """
    inner = found.get("deepspeed_config")
    named = inner.get("deepspeed_config_file") if isinstance(inner, dict) else None
    if not isinstance(named, str) or not named:
        return
    if Path(named).name in written:
        _read_written(parsed, Path(named).name, written, {})
        return
    near = near_file(named, name) or _elsewhere(named, name) or _elsewhere(named, path)
    if near is not None:
        _read_one(parsed, near, {})
    else:
        _take_by_name(parsed, named, name)


def started_with(
    parsed: Parsed, command: Command, path: Path, overrides: Overrides,
    launched: Mapping[str, Any],
) -> list[str]:  # fmt: skip
    """The configs that a launcher's flags name, where they lie; one that its script writes is read.

    One that is not here is taken by its name, unless `--beside` stands for it. Raises InputError
    where that does not say how the model is divided.
    """
    found = []
    for key in ("config_file", "deepspeed_config_file"):
        named = command.launcher.get(key)
        if not isinstance(named, str):
            continue
        if Path(named).name in command.written:
            _read_written(parsed, Path(named).name, command.written, launched)
            continue
        near = near_file(named, path) or _elsewhere(named, path)
        if near is not None:
            found.append(str(near))
        elif not overrides.beside:
            _take_by_name(parsed, named, path, f"--{key}")
    return found


def settings_beside(
    named: list[str], path: Path, overrides: Overrides
) -> tuple[Beside | None, dict[str, Any] | None, Overrides]:
    """The file of settings that a script loads, what it says, and what else lies beside.

    It is named by flag, or by the script. Of several only what they say is known, each by itself.

    Args:
        named: YAML, JSON and TOML files that stand in the script.
        path: of the script.
        overrides: whose `beside` may name it.
    """
    stated = {Path(each): read_document(Path(each)).values for each in overrides.beside}
    own = [each for each, values in stated.items() if is_settings(values)]
    if not own and not stated:
        near = dict.fromkeys(
            found for each in named if (found := near_file(each, path) or _elsewhere(each, path))
        )
        stated = {each: values for each in near if (values := _mapping(each)) is not None}
        own = [each for each, values in stated.items() if is_settings(values)]
    left = tuple(each for each in overrides.beside if Path(each) not in own)
    if len(own) != 1:
        several = Several({each.name: stated[each] for each in own}) if own else None
        return None, several, replace(overrides, beside=left)
    suffix = own[0].suffix.casefold().lstrip(".")
    syntax = suffix if suffix in {"json", "toml"} else "yaml"
    loaded = Beside(str(own[0]), syntax, read_text(own[0]))
    return loaded, stated[own[0]], replace(overrides, beside=left)


def _mapping(path: Path) -> dict[str, Any] | None:
    try:
        return read_document(path).values
    except InputError:
        return None


def near_file(named: str, path: Path) -> Path | None:
    """A file that another one names, relative to that one, to where we are, or to a folder above.

    Files of a repository name each other from its root, or from the folder that they are run in.
    One that stands in a home or at the root of another machine is looked for by the end of its
    name, of two words at least.
    """
    if len(named) > _LONGEST_PATH or "\0" in named or not named.strip():
        return None
    _, *parts = Path(named).parts if named.startswith(("/", "~")) else ("", named)
    ends = ["/".join(parts[at:]) for at in range(len(parts) - 1)]
    folders = [path.parent, Path(), *list(path.absolute().parents)[1:_ABOVE]]
    every = (folder / end for end in (named, *ends) for folder in folders)
    return next((file for file in every if file.is_file()), None)


def modules_of(text: str, path: Path) -> dict[str, str]:
    """The texts of a script's own modules, which lie beside it or below the folders above it.

    One that cannot be read is left out.
    """
    from autotune.trainers.syntax.python_settings import imported, tree_of

    roots = [path.absolute().parent, *list(path.absolute().parents)[1:_NEAR]]
    roots += [root / "src" for root in roots]  # where packages of a repository stand
    found: dict[Path, str] = {}
    for name in imported(tree_of(text, str(path)))[:_MODULES]:
        inside = name.replace(".", "/")
        files = [root / f"{inside}{end}" for root in roots for end in (".py", "/__init__.py")]
        near = next((file for file in files if file.is_file()), None)
        if near is None or near == path.absolute() or near in found:
            continue
        try:
            own = read_text(near)
            tree_of(own, str(near))
        except InputError:
            continue
        found[near] = own
    return {near.name: own for near, own in found.items()}


_SIBLINGS = 40  # scripts of a folder that are looked at


@contextmanager
def naming_maker(path: Path) -> Iterator[None]:
    """A script that makes no arguments is refused with the one in its folder that does."""
    from autotune.trainers.syntax.python_arguments import ARGUMENTS, NO_MAKER

    try:
        yield
    except InputError as error:
        makes = re.compile(rf"\b({'|'.join(sorted(ARGUMENTS))})\(")
        near = sorted(each for each in path.parent.glob("*.py") if each.name != path.name)
        found = list[str]()
        for each in near[:_SIBLINGS] if error.hint == NO_MAKER else ():
            with suppress(InputError):
                found += [str(each)] if makes.search(read_text(each)) else []
        if len(found) != 1:
            raise
        raise InputError(
            error.message, f"{found[0]} makes the trainer's arguments: give that"
        ) from None


_SOURCED = re.compile(r"^[ \t]*(?:source|\.)[ \t]+([^\n#]*?[\w-]+\.(?:sh|bash|env))", re.MULTILINE)
_PLACE = re.compile(r"[\w./-]+$")


def sourced(text: str, path: Path, values: Mapping[str, Any]) -> dict[str, str]:
    """Flags of a command whose variables a file binds that its script sources, and what they are.

    Args:
        text: the shell script.
        path: of it.
        values: the command's flags, by their dotted names.
    """
    from autotune.trainers.syntax.shell_script import shell_names, with_names

    names: dict[str, str] = {}
    for match in _SOURCED.finditer(text):
        place = _PLACE.search(match[1])
        near = near_file(place.group().lstrip("/"), path) if place else None
        names |= shell_names(read_text(near)) if near is not None else {}
    own = shell_names(text)
    names = {name: value for name, value in names.items() if name not in own}
    open_ = {key: value for key, value in values.items() if isinstance(value, str) and "$" in value}
    found = {key: with_names(value, names) for key, value in open_.items()}
    return {key: value for key, value in found.items() if "$" not in value}


def _elsewhere(named: str, path: Path) -> Path | None:
    """A file of that name where repositories keep such files; None where several differ."""
    name = Path(named[:_LONGEST_PATH]).name
    roots = dict.fromkeys([Path.cwd(), *list(path.absolute().parents)[:_NEAR]])
    every = [root / place / name for root in roots for place in _PLACES]
    found = [each for each in every if name and "\0" not in name and each.is_file()]
    return found[0] if len({each.read_bytes() for each in found}) == 1 else None


def hosts_beside(made: Parsed, parsed: Command, path: Path) -> int | None:
    """How many processes `deepspeed --hostfile FILE` starts; None where that is not at hand."""
    named = parsed.launcher.get("hostfile")
    if not isinstance(named, str):
        return None
    near = near_file(named, path)
    found = _slots(parsed, read_text(near)) if near else None
    if found is not None:
        made.note("devices", found, f"the slots of {named}")
    elif near is None:
        why = "no such file is found: the machines that it names are not counted, nor their batch"
        made.uncounted.append(Uncounted("hostfile", named, why, 0.0, 0.0))
    return found


def _slots(parsed: Command, text: str) -> int | None:
    """Processes on the machines of a hostfile, `NAME slots=8` each; None where flags choose others.

    --num_nodes takes the first of them, and --num_gpus as many of each machine.
    Source: deepspeed 0.19 launcher/runner.py.
    """
    slots = [
        int(n) for n in re.findall(r"^\s*[^\s#]\S*\s+slots\s*=\s*(\d{1,4})", text, re.MULTILINE)
    ]
    nodes, each = (str(parsed.launcher.get(name, "-1")) for name in ("num_nodes", "num_gpus"))
    plain = all(re.fullmatch(r"-1|[1-9]\d{0,3}", value) for value in (nodes, each))
    if not slots or not plain or {"include", "exclude"} & set(parsed.launcher):
        return None
    taken = slots if nodes == "-1" else slots[: int(nodes)]
    return sum(slot if each == "-1" else min(slot, int(each)) for slot in taken)


def _take_by_name(parsed: Parsed, named: str, path: Path, key: str = "deepspeed") -> None:
    """ZeRO's stage by the name of a file that is not here, and what it leaves unknown.

    Raises InputError where the name does not say the stage, or speaks of offloading.
    """
    name = Path(named[:_LONGEST_PATH]).name.casefold()
    stage = _STAGE.search(name)
    if stage is None or "offload" in name:
        msg = f"{path.name}: {key} is {shown(named)}, and no such file is found"
        where = "looked for beside it, here, in the folders above and those for configs in them"
        raise InputError(msg, f"{where}; --beside FILE names it")
    parsed.knobs["sharding"] = STAGES[int(stage[1])]
    why = (
        f"no such file is found: counted as {parsed.knobs['sharding']} by its name, with "
        "DeepSpeed's defaults and nothing offloaded; --beside FILE reads it"
    )
    parsed.uncounted.append(Uncounted(key, named, why, *_BY_NAME_SD))


def _read_one(parsed: Parsed, path: Path, launched: Mapping[str, Any]) -> dict[str, Any]:
    text, syntax = read_text(path), "json" if path.suffix.casefold() == ".json" else "yaml"
    found = document_of(text, str(path), json=syntax == "json").values
    if not is_deepspeed(found):
        found = {**found, **launched, **_sections(found, launched)}
    add_beside(parsed, found, str(path))
    parsed.beside.append(Beside(str(path), syntax, text))
    parsed.note("read beside the file", path, "what both state agrees")
    return found


def _sections(found: dict[str, Any], launched: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings that both state, with the flag's keys over the file's."""
    both = {name: (found.get(name), flags) for name, flags in launched.items()}
    return {
        name: {**stated, **flags}
        for name, (stated, flags) in both.items()
        if isinstance(stated, dict) and isinstance(flags, dict)
    }


def flags_beside(started: Command, settings: str, told: set[str]) -> list[Uncounted]:
    """Flags of the command beside the file of settings, which may say otherwise.

    told: words of it that are taken over those of the file.
    """
    flags = [
        f"{key} {shown(value)}" for key, value in started.values.items()
        if decides(key) is not False and Path(str(value)).name != Path(settings).name
        and not set(map(str, value if isinstance(value, list) else [value])) <= told
    ]  # fmt: skip
    why = "beside the file of settings, which is what is priced: they may say otherwise"
    return [Uncounted("flags", ", ".join(flags)[:120], why, *FLAGS_SD)] if flags else []
