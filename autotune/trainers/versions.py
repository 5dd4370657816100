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

# transformers wheels 4.57.6, 5.0.0 to 5.10.0, 5.15.0, 5.20.0 to 5.23.0 on PyPI, training_args.py
OLDEST_TRANSFORMERS: Version = (4, 57)
NEWEST_TRANSFORMERS: Version = (5, 23)
SAMPLING_STRATEGY: Version = (5, 2)  # group_by_length became train_sampling_strategy
FSDP_BOOL: Version = (5, 10)  # fsdp is a bool, fsdp_config.version defaults to 2
ACTIVATION_CHECKPOINTING: Version = (5, 23)  # was gradient_checkpointing
JIT_CHECKPOINT: Version = (5, 0)  # enable_jit_checkpoint: save on SIGTERM

# trl wheels 1.0.0, 1.5.0 to 1.9.0, 1.12.0, 1.14.0 to 1.16.0 on PyPI, sft_config.py
OLDEST_TRL: Version = (1, 0)
NEWEST_TRL: Version = (1, 16)
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


def check_range(package: str, version: Version, oldest: Version) -> None:
    """Raise InputError for a version before the oldest one whose spelling is known."""
    if version < oldest:
        msg = f"{package} {show(version)} is older than {show(oldest)}, the oldest that is written"
        raise InputError(msg, f"update {package}, or name the version that will run")


def newer_note(package: str, version: Version, newest: Version) -> tuple[str, ...]:
    """A note when a version is newer than every one that was read."""
    if version[:2] <= newest:
        return ()
    return (
        (
            f"{package} {show(version)} is newer than {show(newest)}, the newest that was"
            " checked: compare its arguments before you pay"
        ),
    )


def show(version: Sequence[int]) -> str:
    """A version for people: 5.10.0."""
    return ".".join(str(part) for part in version)
