"""Frozen records behave as the language's own decorator makes them."""

from __future__ import annotations

import dataclasses
import inspect
import math
import pickle
from dataclasses import FrozenInstanceError, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, get_type_hints

import pytest

from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable


def point(decorator: Callable[[type], type]) -> Any:
    class Point:
        """Every kind of field."""

        unit: ClassVar[str] = "m"
        x: float
        y: float = 1.0
        last: str = field(default="end", kw_only=True)
        tags: list[str] = field(default_factory=list, repr=False, compare=False)
        fixed: int = field(default=3, init=False)
        made: dict[str, int] = field(default_factory=dict, init=False, hash=False)
        seen: int = field(default=0, hash=False)

        def __post_init__(self) -> None:
            if self.x < 0:
                raise ValueError(self.x)

    return decorator(Point)


OPTIONS = ({"slots": True}, {"slots": False}, {"slots": True, "kw_only": True}, {"eq": False})


@pytest.fixture(params=OPTIONS, ids=str)
def both(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    options = {"frozen": True, **request.param}
    return point(dataclass(**options)), point(dataclasses.dataclass(**options))


def test_a_record_is_made_shown_compared_and_changed_as_the_languages_own(
    both: tuple[Any, Any],
) -> None:
    told = []
    for kind in both:
        one, same = kind(x=1.0), kind(x=1.0, tags=["other"])
        told.append(
            (repr(one), one == same, one != kind(x=2.0), one == "text", one.tags is not same.tags,
             (hash(one) == hash(kind(x=1.0, seen=5))), repr(replace(one, y=9.0, last="z")),
             kind.__match_args__, [each.name for each in fields(kind)], one.fixed, one.made,
             dataclasses.asdict(one), getattr(kind, "__slots__", None), hasattr(one, "__dict__"),
             kind(x=math.nan) == kind(x=math.nan), kind.__init__.__qualname__)
        )  # fmt: skip
    assert told[0] == told[1]


def test_a_record_refuses_what_the_languages_own_refuses(both: tuple[Any, Any]) -> None:
    told = []
    for kind in both:
        one = kind(x=1.0)
        tries: list[Callable[[], object]] = [
            partial(setattr, one, "x", 2.0), partial(delattr, one, "x"),
            partial(kind, x=-1.0), partial(kind),
            partial(kind, x=1.0, none=2), partial(kind, x=1.0, fixed=2),
        ]  # fmt: skip
        refused = []
        for each in tries:
            with pytest.raises((FrozenInstanceError, ValueError, TypeError)) as error:
                each()
            refused.append((type(error.value), str(error.value)))
        told.append(refused)
    assert told[0] == told[1]


@dataclass(frozen=True, slots=True)
class Base:
    """At the top of the module, so that it can be pickled."""

    a: int = 1


@dataclass(frozen=True, slots=True)
class Longer(Base):  # noqa: PLW1641 - its hash is made
    b: str = "b"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Longer) and self.b == other.b

    def __repr__(self) -> str:
        return "own"


def test_a_record_with_slots_travels_between_processes() -> None:
    assert pickle.loads(pickle.dumps(Longer(2, "c"))).a == 2  # noqa: S301 - its own


def test_a_record_takes_no_attribute_that_is_no_field() -> None:
    with pytest.raises(FrozenInstanceError, match="'new'"):
        setattr(Longer(), "new", 1)  # noqa: B010 - a type checker would refuse it


def test_what_a_class_says_itself_stays() -> None:
    assert Longer(1, "c") == Longer(2, "c")
    assert repr(Longer()) == "own"
    assert hash(Longer(1)) != hash(Longer(2))
    assert [each.name for each in fields(Longer)] == ["a", "b"]


def test_a_records_constructor_tells_its_own_names_defaults_and_types() -> None:
    @dataclass(frozen=True, slots=True)
    class Run:
        steps: int
        name: str = "run"
        micro: int = field(kw_only=True)
        seed: int = field(default=0, kw_only=True)

    @dataclass(frozen=True, slots=True)
    class Pair:
        left: int
        right: int
        third: int = 3
        last: str = "end"

    shown = "(steps: 'int', name: 'str' = 'run', *, micro: 'int', seed: 'int' = 0) -> None"
    assert str(inspect.signature(Run)) == shown
    assert get_type_hints(Run.__init__)["micro"] is int
    assert Run(4, micro=1) == Run(steps=4, name="run", micro=1, seed=0)
    assert repr(Pair(1, 2)) == repr(Pair(left=1, right=2, third=3, last="end"))
    with pytest.raises(TypeError, match=r"Run\.__init__\(\) missing 1 required keyword-only .*'mi"):
        Run(4)  # type: ignore[call-arg]
