"""axolotl's plugins for fused kernels: Liger and cut cross entropy, read and written.

A plugin is a class named in the list `plugins`, with switches of its own beside it.
Source: axolotl 0.21.0 integrations/liger/args.py, integrations/cut_cross_entropy/args.py: the first
switches nothing on by itself, the second its loss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.trainers.dialect import GONE

if TYPE_CHECKING:
    from autotune.domain.config import KnobValue
    from autotune.trainers.dialect import Changes, Target
    from autotune.trainers.parsed import Imported, Keys

LIGER = "axolotl.integrations.liger.LigerPlugin"
CUT = "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"
_FUSED_LOSS = "liger_fused_linear_cross_entropy"
_LIGER_SWITCHES = ("liger_rope", "liger_rms_norm", "liger_glu_activation", _FUSED_LOSS)
_OTHER_SWITCHES = ("liger_swiglu", "liger_layer_norm", "liger_cross_entropy")
_CUT_SWITCH = "cut_cross_entropy"
_CHUNKED = "chunked_cross_entropy"


def read_plugins(keys: Keys, made: Imported) -> None:
    """The knob `kernels` of the file's plugins and their switches.

    Liger's norms without its loss, beside a loss that is cut, count as all of Liger and are left as
    they are; without such a loss they count as none, which needs more memory.
    """
    plugins = keys.words("plugins") or []
    switches = {
        name: keys.switch(name)
        for name in (*_LIGER_SWITCHES, *_OTHER_SWITCHES, _CUT_SWITCH, _CHUNKED)
    }
    cut = (any("CutCrossEntropy" in name for name in plugins) and switches[_CUT_SWITCH] is not False
           ) or bool(switches[_CHUNKED])  # fmt: skip
    liger = any("LigerPlugin" in name for name in plugins)
    layers = liger and any(switches[name] for name in (*_LIGER_SWITCHES[:3], *_OTHER_SWITCHES[:2]))
    if liger and switches[_FUSED_LOSS]:
        made.knobs["kernels"] = "liger"
    elif layers and cut:
        made.knobs["kernels"] = "liger"
        made.keep("kernels", "plugins", plugins, "counted as all of Liger's kernels")
    elif cut:
        made.knobs["kernels"] = "chunked_loss"
    elif layers:
        why = "Liger's layers without its loss: counted without, as the logits decide"
        made.keep("kernels", "plugins", plugins, why)


def spell_kernels(value: KnobValue, target: Target) -> Changes:
    """The plugins of a value in the place of the others; plugins of other kinds stay."""
    stated = target.values.get("plugins")
    listed = stated if isinstance(stated, list) else []
    others = [name for name in listed if not str(name).endswith(("LigerPlugin", "EntropyPlugin"))]
    wanted = {"liger": [LIGER], "chunked_loss": [CUT]}.get(str(value), [])
    changes = target.gone(*_LIGER_SWITCHES, *_OTHER_SWITCHES, _CUT_SWITCH, _CHUNKED)
    if others + wanted:
        changes["plugins"] = others + wanted
    elif target.has("plugins"):
        changes["plugins"] = GONE
    if value == "liger":
        changes |= dict.fromkeys(_LIGER_SWITCHES, True)
    elif value == "chunked_loss":
        changes[_CUT_SWITCH] = True
    return changes
