"""Files that are given back, and what their trainers' own parsers say of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.app.job.load import load_jobs
from autotune.domain.typed.overrides import Overrides
from bench.corpus import real_parser, returned
from bench.corpus.returned import (
    BEFORE,
    NEWLY,
    NO_PARSER,
    TAKEN,
    WITHOUT,
    Parser,
    Returned,
    returned_table,
    unknown_keys,
)

if TYPE_CHECKING:
    import pytest

    from autotune.domain.job import Job

MESSAGE = "two\nlines"
OWN = Path(__file__).parent / "own" / "sft_config.yaml"


class _Word(Parser):
    """A parser whose word is a function of what it is shown, in place of a process."""

    words: tuple[str, ...] = ()

    def refusal(self, values: object) -> str:
        assert isinstance(values, dict)
        type(self).shown.append(values)
        return self.words[min(len(self.shown), len(self.words)) - 1]

    shown: list[dict[str, object]] = []  # noqa: RUF012 - emptied by each test


def _job() -> Job:
    return load_jobs(OWN, Overrides(("h100",), stated={"data.rows": 10_000}))[0].job


def _end(*words: str) -> Returned:
    _Word.words, _Word.shown = words, []
    return returned._held("file", _job(), _Word("trl", Path(sys.executable)))


def test_a_file_refused_only_after_the_change_is_newly_refused() -> None:
    assert _end("", "eval_steps must divide save_steps").end == NEWLY
    assert _end("no such key").end == BEFORE
    assert _end("").end == TAKEN
    assert len(_Word.shown) > 1
    assert any(each != _Word.shown[0] for each in _Word.shown[1:])


def test_keys_that_the_parser_does_not_know_are_left_out_on_both_sides_and_named() -> None:
    unknown = "ValueError: Some keys are not used by the HfArgumentParser: ['torch_dtype']"
    found = _end(unknown, "")
    assert (found.end, found.left_out) == (TAKEN, ("torch_dtype",))
    assert "torch_dtype" in _Word.shown[0]
    assert not any("torch_dtype" in each for each in _Word.shown[1:])
    assert f"1 trl, {WITHOUT}: torch_dtype" in returned_table([found])


def test_a_key_that_only_the_returned_file_has_is_not_left_out() -> None:
    unknown = "ValueError: Some keys are not used by the HfArgumentParser: ['save_total_limit']"
    found = _end("", unknown)
    assert (found.end, found.left_out) == (NEWLY, ())


def test_a_refusal_for_more_than_unknown_keys_leaves_nothing_out() -> None:
    assert unknown_keys("ValueError: Please provide `model_name_or_path`.", {"a": 1}) == ()
    part = "InstantiationError: Error loading 'torchtune.modules.loss.New': ModuleNotFoundError(1)"
    values = {"loss": {"_component_": "torchtune.modules.loss.New"}, "lr": 1}
    assert unknown_keys(part, values) == ("loss",)


def test_a_trainer_without_its_environment_is_counted_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(returned, "ROOT", tmp_path)
    found = returned.returned([("file", _job())])
    assert [each.end for each in found] == [NO_PARSER]
    assert "| trl | 0 | 0 | 0 | 0 | 1 |" in returned.returned_table(found)


def test_a_parsers_exit_is_its_refusal_in_one_line() -> None:
    def ends(_: object) -> object:
        raise SystemExit(MESSAGE)

    assert real_parser.refusal(ends, {}) == "SystemExit: two lines"
    assert real_parser.refusal(lambda _: None, {}) == ""
