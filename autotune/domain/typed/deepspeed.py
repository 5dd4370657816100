"""What a job file says of a DeepSpeed config of the user's own, in DeepSpeed's words."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import model_validator

from autotune.domain.typed.values import Section, whole, wrong

MOST_ELEMENTS = 10**12
Elements = Annotated[int, whole(1, MOST_ELEMENTS, scaled=True)]


class DeepSpeedSection(Section):
    """The keys that move memory and time; the others stay in the user's file.

    reduce_bucket_size auto: as transformers fills it in, the square of the hidden size.
    """

    bf16_master_weights_and_grads: bool = False
    bf16_optimizer_states: bool = False
    reduce_bucket_size: Elements | Literal["auto"] | None = None
    overlap_comm: bool | None = None

    @model_validator(mode="after")
    def _agrees(self) -> DeepSpeedSection:
        if self.bf16_optimizer_states and not self.bf16_master_weights_and_grads:
            msg = "bf16_optimizer_states holds only where bf16_master_weights_and_grads is true too"
            raise wrong(msg)
        return self
