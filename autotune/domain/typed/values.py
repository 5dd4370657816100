"""The kinds of value that a job file holds: counts, amounts with units, names, knobs.

Each is a pydantic type whose check says the value received and what must hold. Text keeps its unit,
so that what was read can be written back unchanged.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator
from pydantic_core import PydanticCustomError

from autotune.domain.config import knob, own_name
from autotune.domain.errors import InputError
from autotune.domain.job import CONFIDENCE, LEAST_CONFIDENCE, MOST_CONFIDENCE
from autotune.domain.typed.machine import machine_entry
from autotune.domain.units import (
    YEAR_S,
    parse_bytes,
    parse_bytes_per_s,
    parse_seconds,
    parse_usd,
    parse_usd_per_hour,
)

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_ROWS = 10**12
MAX_EPOCHS = 10_000
MAX_LENGTH = 10**7
MAX_STEPS = 10**12
MAX_BATCH = 10**7
MAX_DEVICES = 4096
MAX_RANK = 65_536
MAX_CHARACTERS = 1000  # of one value; the longest real ones are paths
HUNDRED_YEARS_S = 100 * YEAR_S
MAX_USD = 1e12
MAX_BYTES = 1e18
_SCALED = re.compile(r"\s*([0-9][0-9_,.]*)\s*([kKmMbB])\s*")
_SCALES, _POWERS = {"k": 1e3, "m": 1e6, "b": 1e9}, {"k": 2**10, "m": 2**20}
_POINTED = re.compile(r"[1-9][0-9]{0,2}(?:\.[0-9]{3})+")
_GROUPED = re.compile(r"[+-]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?")
TEXT, MAPPING = "<text>", "<mapping>"  # tags of alternatives; error paths leave them out
QUALITY_WORDS = {
    "base": "method.base", "rank": "method.rank", "alpha": "method.alpha",
    "dropout": "method.dropout", "targets": "method.targets", "variant": "method.variant",
    "modules_to_save": "method.modules_to_save",
    "max_length": "data.max_length",
    "epochs": "train.epochs", "global_batch_size": "train.global_batch_size",
    "steps": "train.steps", "learning_rate": "",
}  # fmt: skip


class Section(BaseModel):
    """A mapping of a file: nothing but the keys it names, and unchangeable once read."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


def refuse(reason: str) -> NoReturn:
    """Raise a check's refusal, whose reason is shown as it stands."""
    kind = "value"
    raise PydanticCustomError(kind, "{reason}", {"reason": reason}) from None


def shown(value: object) -> str:
    """A scalar as the user typed it, cut short; the kind of thing it is when it is no scalar."""
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else value[:57] + "...")  # noqa: PLR2004 - display
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "nothing"}[value]
    if isinstance(value, int):
        return str(value) if abs(value) < 10**30 else "a number of more than 30 digits"
    if isinstance(value, float):
        return str(value)
    return {"dict": "a mapping", "list": "a list"}.get(type(value).__name__, "a value")


def whole(low: int, high: int, *, scaled: bool = False) -> BeforeValidator:
    """A whole number: 600000, 600_000, "600,000" or 6e5; never a boolean.

    scaled: also "50k" and "1.5M". Where k may be 1000 or 1024, both readings are named instead.
    """
    return BeforeValidator(lambda value: _whole(value, low, high, scaled=scaled))


def _whole(value: object, low: int, high: int, *, scaled: bool) -> int:
    if isinstance(value, str):
        _refuse_points(value)
    number = _number_of(value)
    if number is None and isinstance(value, str):
        number = _scaled(value, exact=not scaled)
    if number is None or not float(low) <= number <= float(high) or number != int(number):
        also = ", such as 50000, 50k or 1.5M" if scaled else ""
        refuse(f"{shown(value)} must be a whole number from {low} to {high:,}{also}")
    return int(number)


def whole_of_flag(flag: str, text: str, high: int, *, scaled: bool = False) -> int:
    """The whole number from 1 on that an option states. Raises InputError that names the option."""
    try:
        return _whole(text, 1, high, scaled=scaled)
    except PydanticCustomError as error:
        msg = f"{flag}: {error.message()}"
        raise InputError(msg) from None


def whole_or_zero(value: object, *, scaled: bool = False) -> int:
    """The whole number that a value of an unchecked job file says; 0 where it says none."""
    try:
        return _whole(value, 1, MAX_ROWS, scaled=scaled)
    except PydanticCustomError:
        return 0


def _scaled(text: str, *, exact: bool) -> float | None:
    """The number that "50k", "1.5M" or "2B" says: thousands, millions, billions.

    exact: raises for "4k" instead, of what comes in powers of two: is it 4000 or 4096?
    """
    match = _SCALED.fullmatch(text)
    number = _number_of(match[1]) if match else None
    if match is None or number is None:
        return None
    unit = match[2].casefold()
    if exact and unit in _POWERS:
        decimal, binary = number * _SCALES[unit], number * _POWERS[unit]
        refuse(f"{shown(text)} can be read as {decimal:,.0f} or as {binary:,.0f}; write it out")
    return None if exact else round(number * _SCALES[unit], 6)  # so 1.1M is whole


def real(low: float, high: float, *, open_low: bool = False) -> BeforeValidator:
    """A finite number within bounds."""

    def check(value: object) -> float:
        number = _number_of(value)
        inside = number is not None and low <= number <= high
        if number is None or not inside or (open_low and number == low):
            above = f"above {low:g}" if open_low else f"from {low:g}"
            refuse(f"{shown(value)} must be a number {above} to {high:g}")
        return number

    return BeforeValidator(check)


def _confidence(value: object) -> float:
    """How sure a limit must be kept: better than a coin's toss, never certain."""
    number = _number_of(value)
    if number is None or not LEAST_CONFIDENCE < number < MOST_CONFIDENCE:
        msg = (
            f"{shown(value)} must be a probability above {LEAST_CONFIDENCE:g} and below "
            f"{MOST_CONFIDENCE:g}: {CONFIDENCE:g} asks for 8 chances in 10"
        )
        percent = number is not None and 50.0 < number < 100.0  # noqa: PLR2004 - per cent
        if number is not None and percent:
            msg += f"; {number:g} % is written {number / 100:g}"
        refuse(msg)
    return number


Confidence = Annotated[float, BeforeValidator(_confidence)]


def _number_of(value: object) -> float | None:
    """The finite number that a scalar or its text says, or None.

    Raises for a comma that does not part thousands.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str):
        value = value.strip()
        if len(value) > 40:  # noqa: PLR2004 - no count has forty digits
            return None
        _refuse_commas(value)
        value = value.replace(",", "").replace("_", "")
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _refuse_points(text: str) -> None:
    """Raise for "304.000" where a whole number is meant: half of the world parts thousands so."""
    if _POINTED.fullmatch(text.strip()):
        thousands = text.strip().replace(".", "")
        refuse(
            f"{shown(text)} can be read as a decimal or as {int(thousands):,}; "
            f"write {thousands} if that is meant"
        )


def _refuse_commas(text: str) -> None:
    """Raise for "1,5" and "60,00": a comma parts groups of three digits and nothing else."""
    if "," in text and not _GROUPED.fullmatch(text):
        refuse(
            f"{shown(text)}: a comma parts thousands (304,000) and a point starts decimals (1.5)"
        )


def _text(value: str) -> str:
    if not value.strip() or len(value) > MAX_CHARACTERS or not value.isprintable():
        refuse(f"{shown(value)} must be printable text of 1 to {MAX_CHARACTERS} characters")
    return value.strip()


def _unit(parse: Callable[[str], float], high: float, *, open_low: bool) -> BeforeValidator:
    """Text that carries a unit, checked and kept as typed."""

    def check(value: object) -> str:
        if not isinstance(value, str):
            refuse(f"{shown(value)} must carry its unit: {_example_of(parse)}")
        try:
            number = parse(value[:MAX_CHARACTERS])
        except InputError as error:
            refuse(_with_hint(error))
        if number > high or (open_low and number <= 0):
            refuse(f"{shown(value)} must be above zero and sensible")
        return value

    return BeforeValidator(check)


def _with_hint(error: InputError) -> str:
    joint = " " if error.message.endswith("?") else "; "
    return f"{error.message}{joint}{error.hint}" if error.hint else error.message


def parse_usd_per_kwh(text: str) -> float:
    """[USD/kWh] A price of electricity such as "0.15 USD/kWh"."""
    head, slash, per = text.rpartition("/")
    if not slash or per.strip().casefold() != "kwh":
        msg = f"{text!r} is not a price of electricity"
        raise InputError(msg, 'write "0.15 USD/kWh"')
    return parse_usd(head)


def parse_step_time(text: str) -> float:
    """[s] A step time such as "1.0 s" or "1.0 s/step"."""
    return parse_seconds(text.removesuffix("/step"))


def parse_offer_price(text: str) -> tuple[float, bool]:
    """[USD/h] and whether it is per GPU; `free` is zero for the whole offer."""
    if text.strip().casefold() == "free":
        return 0.0, False
    return parse_usd_per_hour(text)


def _example_of(parse: Callable[[str], float]) -> str:
    return {
        "parse_seconds": '"24h" or "30 min"',
        "parse_bytes": '"128 GiB" or "100 GB"',
        "parse_bytes_per_s": '"25 MB/s"',
        "parse_usd": '"60 USD"',
        "parse_usd_per_kwh": '"0.15 USD/kWh"',
        "parse_step_time": '"1.0 s/step"',
    }.get(parse.__name__, '"2.50 USD/h" for the whole offer, "1.99 USD/gpu-h" per GPU, or free')


def _price_number(text: str) -> float:
    return parse_offer_price(text)[0]


def _names(value: object) -> object:
    """A list of names may be typed as one text with commas, in brackets, in quotes or without."""
    if isinstance(value, str):
        value = re.sub(r"^\s*\[(.*)\]\s*$", r"\1", value)
        return [part.strip(" \t\"'") for part in value.split(",") if part.strip()]
    return value


def _names_or_none(value: object) -> object:
    """The same, and `none` for an empty list."""
    nothing = isinstance(value, str) and value.strip().casefold() == "none"
    return [] if nothing else _names(value)


def _empty(value: object) -> object:
    """A key with nothing behind it is an empty mapping."""
    return {} if value is None else value


def empty_list(value: object) -> object:
    """A key with nothing behind it is an empty list."""
    return [] if value is None else value


def _knobs(values: dict[str, Any]) -> dict[str, Any]:
    parsed, problems = {}, []
    for stated, value in values.items():
        name = own_name(stated)
        if name != stated and name in values:
            problems.append(f"{name} is stated twice, as {stated} too")
            continue
        try:
            parsed[name] = _parsed_knob(name, value)
        except PydanticCustomError as error:
            problems.append(error.message())
    if problems:
        refuse("; ".join(problems))
    return parsed


def _parsed_knob(name: str, value: object) -> object:
    refuse_quality(name)
    if not isinstance(value, str | int | bool) or len(shown(value)) > 60:  # noqa: PLR2004
        refuse(f"{name[:60]} must be one value, not {shown(value)}")
    try:
        return knob(name[:MAX_CHARACTERS]).parse(value)
    except InputError as error:
        refuse(_with_hint(error))


def version_text(value: object) -> object:
    """A version must be text: YAML reads 2.10 as the number 2.1."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        refuse(f"{shown(value)} is a number, which cannot tell 2.1 from 2.10; put it in quotes")
    return value


def refuse_quality(name: str) -> None:
    """Names that change the result of training are the job's own keys, never knobs."""
    if name in QUALITY_WORDS:
        key = QUALITY_WORDS[name]
        what = f"set {key} in the job instead" if key else "autotune neither reads nor changes it"
        refuse(f'"{name}" changes what is trained, so it is no knob: {what}')


def numeric_knobs(names: tuple[str, ...]) -> tuple[str, ...]:
    """Names of knobs that a job may open, without repeats."""
    own = dict.fromkeys(map(own_name, names))
    for name in own:
        refuse_quality(name)
        try:
            found = knob(name)
        except InputError as error:
            refuse(_with_hint(error))
        if found.knob_class != "numeric" and not found.opt_in:
            refuse(f"{name} is neutral and always searched; allow opens what is not")
    return tuple(own)


def method_word(value: object) -> object:
    """`qlora` stands for `{kind: qlora}`."""
    return {"kind": value} if isinstance(value, str) else value


def machine_word(value: object) -> object:
    """`h100-sxm`, `2x h100-sxm` or `h100-sxm:2` stands for a whole hardware entry."""
    if isinstance(value, bool) or not isinstance(value, str | int | Mapping):
        return value
    try:
        return machine_entry(value)
    except InputError as error:
        refuse(_with_hint(error))


def machine_list(value: object) -> object:
    """One machine need not be in a list."""
    alone = isinstance(value, str | int | dict) and not isinstance(value, bool)
    return [value] if alone else value


def _kind_of(value: object) -> str | None:
    if isinstance(value, str):
        return TEXT
    return MAPPING if isinstance(value, Mapping | BaseModel) else None


def text_or_mapping(message: str) -> Discriminator:
    """Chooses between the TEXT and MAPPING forms of a value; `message` when it is neither."""
    return Discriminator(_kind_of, custom_error_type="value", custom_error_message=message)


Text = Annotated[str, AfterValidator(_text)]
Duration = Annotated[str, _unit(parse_seconds, HUNDRED_YEARS_S, open_low=True)]
StepTime = Annotated[str, _unit(parse_step_time, HUNDRED_YEARS_S, open_low=True)]
Size = Annotated[str, _unit(parse_bytes, MAX_BYTES, open_low=True)]
Rate = Annotated[str, _unit(parse_bytes_per_s, MAX_BYTES, open_low=True)]
Money = Annotated[str, _unit(parse_usd, MAX_USD, open_low=False)]
Electricity = Annotated[str, _unit(parse_usd_per_kwh, MAX_USD, open_low=False)]
OfferPrice = Annotated[str, _unit(_price_number, MAX_USD, open_low=False)]
Rows = Annotated[int, whole(1, MAX_ROWS, scaled=True)]
Steps = Annotated[int, whole(1, MAX_STEPS, scaled=True)]
Tokens = Annotated[int, whole(1, MAX_LENGTH)]
Batch = Annotated[int, whole(1, MAX_BATCH)]
Length = Annotated[float, real(1.0, MAX_LENGTH)]
Names = Annotated[tuple[Text, ...], BeforeValidator(_names)]
NamesOrNone = Annotated[tuple[Text, ...], BeforeValidator(_names_or_none)]
Knobs = Annotated[dict[str, Any], BeforeValidator(_empty), AfterValidator(_knobs)]
