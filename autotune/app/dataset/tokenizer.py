"""The tokenizer that counts a data set: the stated one, the model's own, or none but an estimate.

A model's own is looked for in its folder, in the hub's cache on this disk, and on the hub. Where
there is none, tokens are estimated from characters, and everything that follows says so. Its chat
template is filled in as transformers does it. It comes with the model and is not trusted: it runs
in Jinja's sandbox, in which values cannot be changed and nothing of Python is in reach.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.catalog import hub
from autotune.catalog.models.models import local_folder
from autotune.catalog.software import install_command
from autotune.catalog.text_tokens import vocabulary_of
from autotune.domain.errors import InputError
from autotune.domain.job import BYTES
from autotune.domain.paths import stated_in
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.catalog.text_tokens import Vocabulary
    from autotune.domain.model import Model

MOST_BYTES, MOST_CONFIG_BYTES = 100_000_000, 5_000_000
DOWNLOAD_S = 30.0
_FILE, _CONFIG, _TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A tokenizer in memory; without an encoder, bytes or an estimate count."""

    encoder: Any = None  # tokenizers.Tokenizer
    template: ChatTemplate | None = None
    adds_end: bool = False  # whether trainers put an end mark behind a row of text


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """What counts tokens, and what to call it: a tokenizer's file, bytes, or an estimate."""

    label: str  # as reports name it
    content: bytes = b""  # of tokenizer.json
    settings: dict[str, Any] = field(default_factory=dict)  # of tokenizer_config.json
    template: bytes = b""  # of chat_template.jinja
    vocabulary: Vocabulary | None = None  # of an estimate
    reason: str = ""  # why it is an estimate
    identity: str = ""  # what a kept count depends on

    def loaded(self) -> Loaded:
        """The tokenizer, ready to count. Raises InputError for a file that is none."""
        if not self.content:
            return Loaded()
        import tokenizers

        try:
            encoder = tokenizers.Tokenizer.from_buffer(self.content)
        except Exception as error:  # noqa: BLE001 - the package raises plain Exception
            reason = str(error).splitlines()[0][:200] if str(error) else "not a tokenizer"
            msg = f"{self.label} is no tokenizer that can be read: {reason}"
            raise InputError(msg, "save it again, or name another with data.tokenizer") from None
        encoder.no_truncation()
        encoder.no_padding()
        template = template_of(self.settings, self.template)
        return Loaded(encoder, template, adds_end=bool(self.settings.get("eos_token")))

    @property
    def estimates(self) -> bool:
        """Whether tokens are estimated from characters."""
        return self.vocabulary is not None


def tokenizer_for(stated: str | None, base_dir: Path, model: Model | None = None) -> Tokenizer:
    """The stated tokenizer, or the model's own, or an estimate that says why.

    Args:
        stated: `bytes`, a tokenizer.json, a folder with one, or a name on the hub.
        base_dir: What relative paths start from.
        model: The model that trains, if one is known.

    Raises:
        InputError: The stated tokenizer cannot be found or read.
    """
    if stated == BYTES:
        return Tokenizer(BYTES, identity=BYTES)
    if stated is not None:
        return _stated(stated, base_dir)
    reasons: list[str] = []
    for place in _places(model, base_dir):
        found = _of_folder(place) if isinstance(place, Path) else _of_hub(place)
        if isinstance(found, Tokenizer):
            return found
        reasons.append(found)
    reason = reasons[0] if reasons else "no model and no tokenizer is named"
    return estimate_for(model, reason)


def estimate_for(model: Model | None, reason: str) -> Tokenizer:
    """Tokens from characters. Raises InputError for a vocabulary that is like none measured."""
    size = model.vocab_size if model else None
    vocabulary = vocabulary_of(size)
    if vocabulary is None or model is None:
        if model is not None:
            msg = (
                f"{reason}, and a vocabulary of {size:,} tokens, as {model.name} has, is like none "
                "that was measured, so the tokens cannot be estimated either"
            )
            hint = f"name the tokenizer: a folder with {_FILE}, or `{BYTES}`"
            raise InputError(msg, hint, lacking={"data.tokenizer": f"--set data.tokenizer={BYTES}"})
        return Tokenizer("estimate", vocabulary="any", reason=reason, identity="estimate any")
    label = f"estimate for a vocabulary of {size:,} tokens"
    return Tokenizer(label, vocabulary=vocabulary, reason=reason, identity=f"estimate {vocabulary}")


def _places(model: Model | None, base_dir: Path) -> list[Path | str]:
    """Where the model's own tokenizer may be: its folder, then its name on the hub."""
    if model is None:
        return []
    folder = local_folder(model, base_dir)
    found: list[Path | str] = [folder] if folder else []
    if hub.is_hub_id(model.name):
        found.append(model.name)
    return found


def _stated(text: str, base_dir: Path) -> Tokenizer:
    path = stated_in(base_dir, text)
    if path.is_dir() and (path / _FILE).is_file():
        found: Tokenizer | str = _of_folder(path)
    elif path.is_file():
        found = _of_files(path, str(path), path.parent / _CONFIG, path.parent / _TEMPLATE)
    elif hub.is_hub_id(text):
        found = _of_hub(text)
    else:
        found = (
            f"the tokenizer {path} is neither `bytes` nor a tokenizer.json nor a folder with one"
        )
    if isinstance(found, str):
        hint = f"`{BYTES}` counts one token a byte and needs no file; without a tokenizer, and "
        hint += "with a model, tokens are estimated"
        raise InputError(found, install_command("dataset") if "not installed" in found else hint)
    return found


def _of_folder(folder: Path) -> Tokenizer | str:
    if not (folder / _FILE).is_file():
        older = next((n for n in ("tokenizer.model", "vocab.json") if (folder / n).is_file()), None)
        if older:
            return (
                f"{folder} has {older} but no {_FILE} (transformers writes one: "
                "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER))"
            )
        return f"{folder} has no {_FILE}"
    return _of_files(folder / _FILE, str(folder / _FILE), folder / _CONFIG, folder / _TEMPLATE)


def _of_hub(name: str) -> Tokenizer | str:
    found = hub.find_file(name, _FILE, most_bytes=MOST_BYTES, total_s=DOWNLOAD_S)
    if found.content is None:
        return f"the tokenizer of {name} was not found: {found.where}"
    parts = [
        hub.find_file(name, part, most_bytes=MOST_CONFIG_BYTES).content
        for part in (_CONFIG, _TEMPLATE)
    ]
    return _made(found.content, f"{_FILE} of {name}", *parts)


def _of_files(file: Path, label: str, config: Path, template: Path) -> Tokenizer | str:
    try:
        content = file.read_bytes()
    except OSError as error:
        return f"{file} cannot be read: {error.strerror}"
    parts = []
    for path in (config, template):
        try:
            parts.append(path.read_bytes() if path.is_file() else None)
        except OSError:
            parts.append(None)
    return _made(content, label, *parts)


def _made(
    content: bytes, label: str, config: bytes | None, template: bytes | None
) -> Tokenizer | str:
    """The tokenizer of these files, unread as yet: a count that was kept needs no more."""
    try:
        import tokenizers
    except ImportError:
        return f"counting tokens with {label} needs the package tokenizers, which is not installed"
    digest = hashlib.blake2b(content, digest_size=16)
    digest.update(config or b"")
    digest.update(template or b"")
    identity = f"{tokenizers.__version__} {digest.hexdigest()}"
    return Tokenizer(label, content, _settings(config), template or b"", identity=identity)


def _settings(config: bytes | None) -> dict[str, Any]:
    """What tokenizer_config.json says; nothing for a file that is none."""
    try:
        found = json.loads(config) if config else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


LARGEST_TEMPLATE = 200_000  # characters; the longest known ones have about 20,000


class TemplateRefusesError(ValueError):
    """The template does not take these messages: a role it lacks, or turns out of order."""


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A template that is compiled, and the special tokens that it names."""

    compiled: Any  # jinja2.Template
    specials: dict[str, str]

    def text_of(self, messages: Sequence[dict[str, str]], tools: str = "") -> str:
        """The text that is trained on. Raises TemplateRefusesError."""
        declared = _declared(tools)
        try:
            return str(
                self.compiled.render(
                    messages=[dict(message) for message in messages], tools=declared,
                    add_generation_prompt=False, **self.specials,
                )
            )  # fmt: skip
        except Exception as error:  # noqa: BLE001 - a template may raise anything
            raise TemplateRefusesError(str(error)[:200]) from None


def _declared(tools: str) -> list[Any] | None:
    try:
        found = json.loads(tools) if tools else None
    except ValueError:
        return None
    return found if isinstance(found, list) else None


def template_of(settings: dict[str, Any], file: bytes) -> ChatTemplate | None:
    """The template of chat_template.jinja or of tokenizer_config.json; None where there is none.

    None also where jinja2 is not installed, or the template is not one that it can read.
    """
    source = file.decode("utf-8", "replace") if file else settings.get("chat_template")
    if isinstance(source, list):  # several, by name
        named = {i.get("name"): i.get("template") for i in source if isinstance(i, dict)}
        source = named.get("default")
    if not isinstance(source, str) or not source or len(source) > LARGEST_TEMPLATE:
        return None
    try:
        from jinja2.exceptions import TemplateError
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        return None
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(
        value, ensure_ascii=False, indent=indent
    )
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now(UTC).strftime(form)
    try:
        compiled = environment.from_string(source)
    except TemplateError:
        return None
    specials = {name: _token(settings.get(name)) for name in ("bos_token", "eos_token")}
    return ChatTemplate(compiled, specials)


def _refuse(message: str) -> None:
    raise TemplateRefusesError(message)


def _token(value: object) -> str:
    """A special token as text; some files hold it as an object with its content."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""
