"""Settings that are no trainer's: a program of people's own reads them, and this package does not.

What such a setting does is not known, so each is said unless its name shows that it moves neither
time nor memory: data, prompts, logs, evaluation, rates. Names of what decides a run come first.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from autotune.domain.job import Uncounted
from autotune.domain.typed.values import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.trainers.parsed import Keys

_OFF: Final = {
    "",
    "false",
    "none",
    "null",
    "0",
    "0.0",
    "1.0",
    "-1",
    "[]",
    "{}",
    "auto",
    "default",
    "off",
}
_NOT_IN_PRICE = "of the program's own, and not read: what it says is not in the price"
_UNKNOWN = "what it says may be left out of the price"
_INHERITS = "the file builds on another one, which is not read: what that says is not in the price"
_ANOTHER = "another model beside the one that is trained: its weights and work are not in the price"
_SPOKEN_SD, _UNKNOWN_SD, _INHERITED_SD = (0.30, 0.30), (0.10, 0.10), (0.40, 0.40)
_LONGEST = 30  # letters of a value in a list of several

# A file that another one completes: Hydra's, MMEngine's and people's own words for it.
_BASES = re.compile(
    r"_base_|_?(extends|includes?|inherits?(_from)?)|base_(config|cfg|yaml)|defaults"
)


def words_of(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


# Words of a name, in the order in which they decide. Evaluation, logs and rates are of no price
# here whatever else the name says; then come words of what decides a run; then words of data.
_ASIDE = words_of("""
    eval evaluation test val valid validation dev predict generate generation gen infer inference
    log logging logs wandb mlflow swanlab tensorboard report warmup lr learning patience seed judge
    loss metric metrics score threshold beta betas eps decay dropout label labels hub push upload
    plot debug sanity preprocessing preprocess proc workers worker completion prompt compute early
    weight weights load save bias name names path dir file keep ref new beams reentrant
""")
_DECIDES = words_of("""
    accum accumulation epoch epochs batch bsz len length lengths seq lora qlora quant quantized
    quantization quantize 4bit 8bit bits kbits int8 attn attention flash offload zero checkpointing
    freeze frozen trainable layers layer parallel world gpus devices nodes context window steps
    episodes samples precision packed pack packing freezing streaming compile compiled deepspeed
    optimizer optim sharding sharded shard fsdp
""")
_OF_DATA = words_of("""
    paths files folder jsonl json parquet csv id ids url repo user token
    key keys column columns field fields split splits template chat conv conversation system role
    roles format schema style text texts input inputs output outputs response question questions
    tag tags project run group entity track tracking verbose print progress random shuffle rate
    scheduler schedule gamma tau alpha penalty coef lambda temperature top smoothing clip norm
    stopping cache overwrite resume version revision private merge host port trust remote lang
    language domain task dataset datasets data hardware vram exp experiment description comment
    metadata best check map dtype head scale method type model tokenizer checkpoint ckpt adapter
    source target trainer start end idx private instruction auth low fast slow with
    local rank master addr special responses
""")
# A second model by its name; one that scores, embeds data or is written is another matter.
_MODEL = re.compile(r"(?!base|pretrained|main|student)\w+_model(_name)?(_or)?(_path|_id|_name)?")
_APART = re.compile(
    r"(eval|judge|embed|rerank|out|save|merge|final|tokeni|hub|best|new|llm|large)\w*"
)
_EXACT = frozenset({"device_map", "low_cpu_mem_usage", "dtype", "torch_dtype", "use_auth_token"})
_SAVES = re.compile(r"(save|checkpoint\w*)_(every_?(n_)?)?(step|epoch|iter)\w*|load_in_\w*bit\w*")


def _words(name: str) -> set[str]:
    return {word.casefold() for word in re.split(r"[^a-zA-Z0-9]+", name) if word}


def decides(name: str) -> bool | None:
    """Whether a setting of this name decides a run: None where the name says neither."""
    words = _words(name)
    if _SAVES.fullmatch(name):
        return True
    if words & _ASIDE or name in _EXACT:
        return False
    if words & _DECIDES:
        return True
    return False if words & _OF_DATA else None


def says_off(value: object) -> bool:
    """Whether a setting of that value is as if it were not there."""
    return str(value).strip().casefold() in _OFF


def own_settings(keys: Keys, strange: list[str]) -> list[Uncounted]:
    """What is said of settings of a program's own: each that decides, then the others in one.

    Args:
        keys: the file, or the flags of a command.
        strange: keys that no version of the trainer has, and that nobody asked for.
    """
    found, unknown = [], []
    for key, value in _stated(keys, strange):
        name = key.rpartition(".")[2]
        if _BASES.fullmatch(name):
            found.append(Uncounted(key, shown(value), _INHERITS, *_INHERITED_SD))
        elif _is_model(name, value, keys):
            found.append(Uncounted(key, shown(value), _ANOTHER, *_SPOKEN_SD))
        elif says_off(value):
            continue
        elif (said := decides(name)) and not _names_a_file(value):
            found.append(Uncounted(key, shown(value), _NOT_IN_PRICE, *_SPOKEN_SD))
        elif said is None and not _is_text(value):
            unknown.append(Uncounted(key, shown(value), _UNKNOWN, *_UNKNOWN_SD))
    return [*found, *unknown]


def together(uncounted: list[Uncounted]) -> list[Uncounted]:
    """Settings of which nothing is known, in one sentence, behind what decides."""
    unknown = [each for each in uncounted if each.why == _UNKNOWN]
    if not unknown:
        return uncounted
    listed = ", ".join(f"{each.key} {each.value[:_LONGEST]}" for each in unknown)
    why = f"no arguments of the trainer's, but of a program's own: {_UNKNOWN}"
    rest = [each for each in uncounted if each.why != _UNKNOWN]
    return [*rest, Uncounted("not read", listed[:200], why, *_UNKNOWN_SD)]


def _stated(keys: Keys, strange: list[str]) -> Iterator[tuple[str, object]]:
    """Each setting, also those inside a section."""
    for key in strange:
        value = keys.at(key)
        if not isinstance(value, dict):
            yield key, value
        else:
            yield from ((f"{key}.{name}", each) for name, each in value.items())


def _is_model(name: str, value: object, keys: Keys) -> bool:
    """Whether it names another model than the one that is trained."""
    words = ("model_name_or_path", "model_name", "model_id", "model", "base_model")
    trained = {str(keys.at(word)) for word in words}
    named = isinstance(value, str) and not says_off(value) and value not in trained
    return named and bool(_MODEL.fullmatch(name)) and not any(map(_APART.fullmatch, _words(name)))


def _names_a_file(value: object) -> bool:
    return isinstance(value, str) and bool(re.search(r"[/\\]|\.\w{2,5}$", value))


def _is_text(value: object) -> bool:
    """Words that a program prints, loads or looks up; a number or a truth says how it runs."""
    several = value if isinstance(value, list) else [value]
    return isinstance(value, dict) or all(
        isinstance(each, str) and not re.fullmatch(r"-?[\d.]+(e-?\d+)?|true|yes", each.casefold())
        for each in several
    )
