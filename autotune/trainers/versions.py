"""Which spelling a trainer's version takes. Each boundary was read from released packages.

A boundary is the first release that has (or takes) the new spelling; the release before it was
read as well, so the switch lies exactly there.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from autotune.domain.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

Version = tuple[int, ...]

# The releases whose spelling was read, oldest and newest:
# - transformers wheels 4.57.6, 5.0.0 to 5.10.0, 5.15.0, 5.20.0 to 5.23.0 on PyPI, training_args.py
# - trl wheels 1.0.0, 1.5.0 to 1.9.0, 1.12.0, 1.14.0 to 1.16.0 on PyPI, sft_config.py
# Another trainer's own range stands in its folder.
KNOWN: dict[str, tuple[Version, Version]] = {
    "transformers": ((4, 57), (5, 23)),
    "trl": ((1, 0), (1, 16)),
}
# A user's own file has words that its release takes; of these releases all keys were read, so that
# none is added which comes later. Source: data/hf.json and data/trl.json.
OWN_FILES: tuple[Version, Version] = ((4, 40), KNOWN["transformers"][1])
SAMPLING_STRATEGY: Version = (5, 2)  # group_by_length became train_sampling_strategy
FSDP_BOOL: Version = (5, 10)  # fsdp is a bool, fsdp_config.version defaults to 2
ACTIVATION_CHECKPOINTING: Version = (5, 23)  # was gradient_checkpointing
BEFORE_RENAMED: Version = (5, 22)  # gradient_checkpointing, which later releases take as well
JIT_CHECKPOINT: Version = (5, 0)  # enable_jit_checkpoint: save on SIGTERM
TRL_CHUNKED_LOSS: Version = (1, 6)  # the loss never holds all logits unless asked to

# torch 2.9 names PYTORCH_ALLOC_CONF and deprecates PYTORCH_CUDA_ALLOC_CONF, but reads expandable
# segments from the old name only; 2.11 was seen to read the new one (pytorch issue 183387).
ALLOC_CONF: Version = (2, 11)
OLD_ALLOC_CONF = "PYTORCH_CUDA_ALLOC_CONF"
EXPANDABLE_SEGMENTS: Version = (2, 1)  # the first release whose documentation has them


def parse_version(text: str, where: str) -> Version:
    """A version such as "5.10.0" as a tuple. Raises InputError naming what must hold."""
    if not re.fullmatch(r"\d{1,4}(\.\d{1,4}){0,3}", text):
        msg = f'version "{text}" in {where} must be numbers joined by dots'
        raise InputError(msg, 'write for example "hf@5.10.0"')
    return tuple(int(part) for part in text.split("."))


def check_known(package: str, version: Version, known: tuple[Version, Version]) -> None:
    """Raise InputError for a version that somebody asked for and whose spelling was not read."""
    oldest, newest = known
    if _is_older(version, oldest) or _is_newer(version, newest):
        msg = f"how {package} {show(version)} spells its arguments is not known"
        hint = f"known: {show(oldest)}" + (f" to {show(newest)}" if newest != oldest else "")
        raise InputError(msg, hint)


def check_installed(
    package: str, version: Version, known: tuple[Version, Version] | None = None
) -> None:
    """Raise InputError for a version of the job's software that is older than the oldest known.

    A newer one is written as the newest known, and `newer_note` says so. known: other than what
    files are written from nothing for.
    """
    oldest, newest = known or KNOWN[package]
    if _is_older(version, oldest):
        msg = f"{package} {show(version)} is older than {show(oldest)}, the oldest that is written"
        raise InputError(msg, f"known: {show(oldest)} to {show(newest)}; name the one that runs")


def newer_note(package: str, version: Version) -> tuple[str, ...]:
    """A note when a version is newer than every one that was read."""
    if not _is_newer(version, KNOWN[package][1]):
        return ()
    return (
        (
            f"{package} {show(version)} is newer than {show(KNOWN[package][1])}, the newest that"
            " was checked: compare its arguments before you pay"
        ),
    )


def _is_older(version: Version, oldest: Version) -> bool:
    return _filled(version) < _filled(oldest)


def _is_newer(version: Version, newest: Version) -> bool:
    return _filled(version)[: len(newest)] > newest


def _filled(version: Version) -> Version:
    """5 is 5.0.0."""
    return (*version, *(0,) * (4 - len(version)))


def show(version: Sequence[int]) -> str:
    """A version for people: 5.10.0."""
    return ".".join(str(part) for part in version)
