"""How trainers spell the variant of LoRA, read and written."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.domain.job import Method
    from autotune.trainers.parsed import Imported, Keys


def read_variant(keys: Keys, made: Imported, prefix: str = "") -> str | None:
    """The variant of LoRA that `use_dora` and `use_rslora` state; None for LoRA as it is.

    PEFT takes both at once: the scale costs nothing, so that both are priced as DoRA.
    """
    dora, scaled = (keys.switch(prefix + key) for key in ("use_dora", "use_rslora"))
    if dora and scaled:
        why = "beside DoRA: it changes the scale alone, and a new export states DoRA alone"
        made.note(f"{prefix}use_rslora", "true", why)
    return "dora" if dora else "rslora" if scaled else None


def variant_keys(method: Method, prefix: str = "") -> dict[str, bool]:
    """What states the variant of LoRA in PEFT's words; nothing for LoRA as it is.

    Source: peft 0.21 LoraConfig; llamafactory 0.9.5 and trl 1.16 have the same names, axolotl 0.21
    writes `peft_` before them.
    """
    return {} if method.variant == "none" else {f"{prefix}use_{method.variant}": True}
