"""Where a search is shared: a URL with a password is typed once, and shown nowhere."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest
from commandline import ROOT, typed

from autotune.app.tune import tune as tuning
from autotune.domain.errors import InputError
from autotune.search.study import backends
from autotune.search.study.backends import connect, url_to_type
from autotune.search.study.refusals import without_password

if TYPE_CHECKING:
    from pathlib import Path

TINY = str(ROOT / "jobs" / "tiny_cpu.yaml")
URL = "postgresql+psycopg://me:hunter2@db/tuning"
SHARED = ("tune", TINY, "--score", "probe", "--workers", "0")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The options of every search that was to begin."""
    seen: list[Any] = []

    def refused(_: object, options: Any, *__: object) -> None:
        seen.append(options)
        msg = "not begun"
        raise InputError(msg, "")

    monkeypatch.setattr(tuning, "tune", refused)
    return seen


def test_a_search_of_workers_is_kept_where_the_variable_says(
    asked: list[Any], tmp_path: Path
) -> None:
    typed(*SHARED, home=tmp_path, AUTOTUNE_STORAGE=URL)
    typed(*SHARED, "--storage", "redis://other", home=tmp_path, AUTOTUNE_STORAGE=URL)
    typed("tune", TINY, "--score", "probe", home=tmp_path, AUTOTUNE_STORAGE=URL)
    assert [options.storage for options in asked] == [URL, "redis://other", None]


def test_the_same_question_again_names_where_its_workers_meet(
    asked: list[Any], tmp_path: Path
) -> None:
    """Without it the search is kept in a folder that no other machine sees."""
    typed(*SHARED, "--storage", "redis://other", home=tmp_path)
    typed(*SHARED, "--storage", URL, home=tmp_path)
    typed(*SHARED, home=tmp_path, AUTOTUNE_STORAGE=URL)
    typed(*SHARED[:-2], "--storage", "sqlite:///a.db", home=tmp_path)
    ends = [options.asked.words[5:] for options in asked]
    assert ends == [
        ("--workers", "0", "--storage", "redis://other"),
        ("--workers", "0", "--storage", "URL"),
        ("--workers", "0"),
        (),
    ]


def test_an_empty_address_is_named(asked: list[Any], tmp_path: Path) -> None:
    for words in (SHARED, ("tune", TINY), ("worker", "--study", "mine")):
        done = typed(*words, "--storage", "", home=tmp_path)
        assert done.returncode == 2
        assert "error: --storage is empty" in done.stderr
    assert not asked


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (URL, "postgresql+psycopg://db/tuning"),
        ("postgresql+psycopg:/me:hunter2@db/tuning", "postgresql+psycopg:/db/tuning"),
        ("postgresql:///me:hunter2@db/tuning", "postgresql:///db/tuning"),
        ("me:hunter2@db/tuning", "me:db/tuning"),
        ("redis://:hunter2@db", "redis://db"),
        (
            "postgresql://db/x?user=me&password=hunter2",
            "postgresql://db/x?user=me&password=LEFT-OUT",
        ),
        ("sqlite:///study.db", "sqlite:///study.db"),
        ("unix:///run/redis.sock", "unix:///run/redis.sock"),
        ("postgresql+psycopg://a@/p?host=/run/pg", "postgresql+psycopg:///p?host=/run/pg"),
    ],
)
def test_no_password_is_shown_however_the_address_is_typed(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_a_command_with_a_password_in_its_address_is_not_printed() -> None:
    assert url_to_type("postgresql://db/x?user=me&password=abc") == "URL"
    assert url_to_type("postgresql://me@db/x") == "postgresql://me@db/x"


def test_a_server_that_says_nothing_is_named_while_it_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("psycopg")
    monkeypatch.setattr(backends, "SLOW_S", 0.05)
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "2")  # the least that libpq takes
    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql+psycopg://me:hunter2@127.0.0.1:{silent.getsockname()[1]}/tuning"
        with pytest.raises(InputError, match="timeout expired"):
            connect(url, tell=said.append)
    assert len(said) == 1
    assert "has not answered yet; waiting for it" in said[0]
    assert "hunter2" not in said[0]


def test_a_file_is_no_search_to_join(tmp_path: Path) -> None:
    done = typed("worker", TINY, home=tmp_path)
    assert done.returncode == 2
    assert "tiny_cpu.yaml is a file" in done.stderr
