"""The tokenizer that counts a data set: the stated one, the model's own, or none but an estimate.

A model's own is looked for in its folder, in the hub's cache on this disk, and on the hub. Where
there is none, tokens are estimated from characters, and everything that follows says so.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.app.dataset.chat_template import ChatTemplate, template_of
from autotune.catalog import hub
from autotune.catalog.models.models import local_folder
from autotune.catalog.software import install_command
from autotune.catalog.text_tokens import vocabulary_of
from autotune.domain.errors import InputError
from autotune.domain.job import BYTES
from autotune.domain.paths import stated_in

if TYPE_CHECKING:
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
            raise InputError(msg, f"name the tokenizer: a folder with {_FILE}, or `{BYTES}`")
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
