"""The fitted constants of the memory verdict, read once from `calibration.toml`.

`autotune calibrate` writes its `memory` tables: `evidence.memory_fit` fits what is here on measured
peaks and on runs that did or did not run out of memory. The bytes of a step have no fitted constant
where a run uses the model classes of transformers.
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from autotune.cost.constants import PATH, Offset
from autotune.cost.spread.fit_claims import CLAIM_KINDS, Claims

if TYPE_CHECKING:
    from autotune.domain.software import Software

# Kinds of configuration whose predicted allocated peak has a spread of its own, most uncertain
# first: a configuration belongs to the first that applies.
KINDS = ("own_model", "experts", "fused", "sharded", "quantised", "plain")
RESERVED_KINDS = ("emptied", "ragged", "even")
CACHED_KINDS = ("sharded_full", "ragged", "even")
# Priors of the logarithm of what another trainer's model code keeps for the backward, against the
# class of transformers: hand estimates, since two such trainers have measurements.
STACK_SD, FAMILY_SD = 0.30, 0.15
UNKNOWN_CODE = Offset(0.0, math.hypot(STACK_SD, FAMILY_SD))
NO_OFFSET = Offset(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Slack:
    """Share of what comes and goes in a step that a run needs on top, and its spread.

    A request that finds no room makes torch's allocator give every wholly free segment back to the
    driver and ask again, so what is merely cached costs nothing; pieces of segments that are partly
    in use stay. Tensors that live as long as the run are laid out once and leave no pieces.

    Source: PyTorch, c10/cuda/CUDACachingAllocator.cpp, `malloc` (release_cached_blocks, then a
    second attempt); sizes: runs that did and did not run out of memory.
    """

    one_device: float
    several: float  # a stream that gathers layers cannot reuse what another has freed
    sd: float  # of the share


@dataclass(frozen=True, slots=True)
class MemoryConstants:
    """Everything that was learned about memory.

    offsets: "stack" or "stack family" -> log factor on activations and logits, for trainers with
    model code of their own. spreads: standard deviation of log(predicted / measured) allocated
    bytes by kind; of `own_model` relative to activations and logits. cached: what the allocator
    holds beside the allocated peak when there is room, as a share of what comes and goes.
    reserved: spread that this adds to the reserved peak. claims: tested claims of a fit by kind,
    which bound how sure another may be; none: not bounded.
    """

    slack: Slack
    offsets: dict[str, Offset]
    spreads: dict[str, float]
    cached: dict[str, float]
    reserved: dict[str, float]
    claims: dict[str, Claims] = field(default_factory=dict)

    def offset(self, software: Software, family: str) -> Offset:
        """Of a trainer's model code; none where it trains the classes of transformers."""
        if not software.own_model:
            return NO_OFFSET
        known = self.offsets.get(f"{software.stack} {family}") or self.offsets.get(software.stack)
        return known or UNKNOWN_CODE


def parse(table: dict[str, Any]) -> MemoryConstants:
    """The constants from the `memory` table of a calibration file."""
    return MemoryConstants(
        Slack(**{item.name: float(table["slack"][item.name]) for item in fields(Slack)}),
        {name: Offset(float(pair[0]), float(pair[1])) for name, pair in table["offset"].items()},
        {kind: float(table["log_sd"][kind]) for kind in KINDS},
        {kind: float(table["cached"][kind]) for kind in CACHED_KINDS},
        {kind: float(table["reserved_log_sd"][kind]) for kind in RESERVED_KINDS},
        {kind: Claims(*map(int, table["claims"][kind])) for kind in CLAIM_KINDS},
    )


@lru_cache(maxsize=1)
def memory_constants() -> MemoryConstants:
    """The shipped constants."""
    with PATH.open("rb") as stream:
        return parse(tomllib.load(stream)["memory"])
