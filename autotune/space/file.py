"""Reading a search-space file: strict, and safe to point at a file from anywhere."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.catalog.files import read_regular
from autotune.domain.candidates import AUTO, SearchSpace
from autotune.domain.config import KNOBS, KnobValue, knob
from autotune.domain.errors import InputError, unknown
from autotune.domain.paths import near, whole
from autotune.space.extra import extra_of

if TYPE_CHECKING:
    from collections.abc import Iterable

DEFAULT = "default"
MAX_FILE_BYTES = 16 * 1024  # the shipped files have under 4 KiB
MAX_READ_BYTES = 10_000_000
MAX_DEPTH = 8  # the format itself needs three levels
AUTO_WORD = "auto"
AUTO_KNOBS = ("micro_batch_size", "pin_memory", "checkpoint_every_steps", "save_total_limit")
DERIVED = "gradient_accumulation_steps"
SECTIONS = ("knobs", "extra")


def load_space(name_or_path: str | Path | None = None) -> SearchSpace:
    """The search space of a shipped name (`default`, `extended`) or of a YAML file.

    A file lists only what differs from `default`. Raises InputError for an unknown name, knob or
    value, and for a file that cannot be read safely.
    """
    path = _find(name_or_path or DEFAULT)
    return _of_shipped(path) if path in _shipped().values() else _read(path, _load_yaml(path))


@cache
def _of_shipped(path: Path) -> SearchSpace:
    """A space that comes with autotune: read once, and searched for no tricks."""
    from ruamel.yaml import YAML

    return _read(path, YAML(typ="safe", pure=True).load(_read_text(path)))


def _read(path: Path, loaded: object) -> SearchSpace:
    data = _sections(loaded, str(path))
    listed = _knobs_of(data.get("knobs", {}), str(path))
    extra = extra_of(data.get("extra", {}), str(path))
    if path == _shipped().get(DEFAULT):
        inherited: dict[str, tuple[KnobValue, ...]] = {}
    else:
        inherited = dict(load_space(DEFAULT).values)
    values = {**inherited, **listed}
    missing = [name for name in KNOBS if name not in values and name != DERIVED]
    if missing:
        msg = f"search space {path} leaves out {', '.join(missing)}: every knob needs values"
        raise InputError(msg)
    kept = {name: values[name] for name in KNOBS if name in values}
    return SearchSpace(path.stem, kept, extra)


def _shipped() -> dict[str, Path]:
    """Shipped files by name: inside an installed package, or beside it in a checkout."""
    package = Path(__file__).parent.parent
    for folder in (package / "search_spaces", package.parent / "search_spaces"):
        if folder.is_dir():
            return {path.stem: path for path in sorted(folder.glob("*.yaml"))}
    msg = "the search_spaces folder is missing from this installation; install autotune again"
    raise InputError(msg)


def _find(name_or_path: str | Path) -> Path:
    shipped = _shipped()
    text = str(name_or_path)
    if text in shipped:
        return shipped[text]
    path = Path(near(text))
    if path.suffix in {".yaml", ".yml"} or path.is_file() or len(path.parts) > 1:
        return path
    hint = "take a shipped name, or the path of a YAML file such as my_space.yaml"
    what = "search space"
    raise unknown(what, text, shipped, hint)


def whole_name(name_or_path: str) -> str:
    """A shipped name as it is; the path of a file from the root."""
    return name_or_path if name_or_path in _shipped() else str(whole(_find(name_or_path)))


def _read_text(path: Path) -> str:
    try:
        raw = read_regular(path, MAX_READ_BYTES)
    except (OSError, ValueError) as error:
        msg = f"search space {path} cannot be read: {getattr(error, 'strerror', None) or error}"
        raise InputError(msg, "give a readable YAML file, or default or extended") from None
    if len(raw) > MAX_FILE_BYTES:
        msg = f"search space {path} has more than {MAX_FILE_BYTES // 1024} KiB: no space needs that"
        raise InputError(msg)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        msg = f"search space {path} is not UTF-8 text"
        raise InputError(msg) from None


def _load_yaml(path: Path) -> object:
    """Plain YAML data. Aliases and tags are refused: they are how small files do harm."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    text = _read_text(path)
    try:
        _refuse_tricks(YAML(typ="safe", pure=True).parse(text), path)
        loaded: object = YAML(typ="safe", pure=True).load(text)
    except (YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        msg = f"search space {path} is not valid YAML: {reason}"
        raise InputError(msg) from None
    return loaded


def _refuse_tricks(events: Iterable[Any], path: Path) -> None:
    """Anchors, aliases, tags and deep nesting, found in the events before anything is built."""
    depth = 0
    for event in events:
        kind = type(event).__name__
        depth += kind.endswith("StartEvent") - kind.endswith("EndEvent")
        if getattr(event, "anchor", None) is not None:
            msg = f"search space {path} uses a YAML anchor or alias, which are not read"
            raise InputError(msg, "write the values out")
        if getattr(event, "tag", None) is not None:
            msg = f"search space {path} uses a YAML tag ({event.tag}), which is not read"
            raise InputError(msg, "write plain values")
        if depth > MAX_DEPTH:
            msg = f"search space {path} is nested more than {MAX_DEPTH} levels deep"
            raise InputError(msg)


def _sections(data: object, where: str) -> dict[str, object]:
    """The file's sections. `knobs` may be left out beside `extra`."""
    if not isinstance(data, dict) or not set(SECTIONS) & set(data):
        msg = f"search space {where} must be a mapping with the key knobs, a mapping itself"
        raise InputError(msg, "knobs: {num_dataloader_workers: [0, 2, 4]}")
    for key in data:
        if key not in SECTIONS:
            what = "key"
            raise unknown(what, str(key), SECTIONS, "the keys are knobs and extra", where)
    return {str(key): value for key, value in data.items()}


def _knobs_of(data: object, where: str) -> dict[str, tuple[KnobValue, ...]]:
    if not isinstance(data, dict):
        msg = f"knobs in search space {where} must map knobs to their values"
        raise InputError(msg, "knobs: {num_dataloader_workers: [0, 2, 4]}")
    return {str(name): _values_of(str(name), raw, where) for name, raw in data.items()}


def _values_of(name: str, raw: Any, where: str) -> tuple[KnobValue, ...]:  # noqa: ANN401 - YAML
    found = knob(name, where)
    if name == DERIVED:
        msg = f"{name} in {where} follows from micro_batch_size and the global batch"
        raise InputError(msg, "list micro_batch_size instead, or pin it with lock in the job")
    if raw == AUTO_WORD:
        if name not in AUTO_KNOBS:
            msg = f"{name} in {where} cannot be auto: list its values"
            raise InputError(msg, f"auto works for {', '.join(AUTO_KNOBS)}")
        return AUTO
    values = raw if isinstance(raw, list) else [raw]
    if not values:
        msg = f"{name} in {where} lists no values; it needs at least one"
        raise InputError(msg, "leave the knob out to take the values of default")
    for value in values:
        if not isinstance(value, str | int | bool):
            kind = type(value).__name__
            msg = f"{name} in {where} holds a {kind}; values are numbers, words or true and false"
            raise InputError(msg)
    return tuple(dict.fromkeys(found.parse(value, where) for value in values))
