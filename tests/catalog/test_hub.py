"""Files of the hub: the cache first, one request within seconds, a token that goes nowhere else."""

from __future__ import annotations

import http.server
import threading
from typing import TYPE_CHECKING

import pytest

from autotune.catalog import hub

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECRET = "hf_" + "s" * 30
NAME = "someone/their-model"


class Mirror:
    """A hub on this machine: what it was asked, and what it answers."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None]] = []  # path, Authorization
        self.files: dict[str, bytes] = {}
        self.redirects: dict[str, str] = {}
        self.status = 404
        self.holds, self.released = False, threading.Event()
        mirror = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                mirror.asked.append((self.path, self.headers.get("Authorization")))
                if mirror.holds:
                    mirror.released.wait(600)
                if self.path in mirror.redirects:
                    self.send_response(302)
                    self.send_header("Location", mirror.redirects[self.path])
                    self.end_headers()
                    return
                content = mirror.files.get(self.path)
                self.send_response(200 if content is not None else mirror.status)
                self.end_headers()
                self.wfile.write(content or b"")

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def close(self) -> None:
        self.released.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Mirror]:
    found = Mirror()
    for name in ("AUTOTUNE_OFFLINE", "HF_HUB_OFFLINE", "HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", found.url)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("no_proxy", "*")
    yield found
    found.close()


def ask(most_bytes: int = 1000, total_s: float = 300.0) -> hub.HubFile:
    return hub.find_file(NAME, "tokenizer.json", most_bytes=most_bytes, total_s=total_s)


def test_a_file_is_downloaded_once_and_then_read_from_the_home(mirror: Mirror) -> None:
    mirror.files[f"/{NAME}/resolve/main/tokenizer.json"] = b"{}"
    first, second = ask(), ask()
    assert (first.content, second.content) == (b"{}", b"{}")
    assert len(mirror.asked) == 1
    assert second.path.read_bytes() == b"{}"


def test_the_hubs_cache_on_this_disk_comes_first_and_its_main_branch_before_others(
    mirror: Mirror, tmp_path: Path
) -> None:
    repository = tmp_path / "hf" / "hub" / "models--someone--their-model"
    for commit, text in (("aaa", "main"), ("bbb", "newer, another branch")):
        (repository / "snapshots" / commit).mkdir(parents=True)
        (repository / "snapshots" / commit / "tokenizer.json").write_text(text)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("aaa")
    assert ask().content == b"main"
    assert not mirror.asked


@pytest.mark.parametrize("variable", ["AUTOTUNE_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline_asks_nobody_and_says_which_variable_forbids_it(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "1")
    found = ask()
    assert found.content is None
    assert variable in found.where
    assert not mirror.asked


@pytest.mark.parametrize("source", ["HF_TOKEN", "file", "HF_TOKEN_PATH"])
def test_the_token_of_the_environment_or_of_the_login_is_sent(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str
) -> None:
    if source == "HF_TOKEN":
        monkeypatch.setenv("HF_TOKEN", f" {SECRET}\n")
    else:
        file = tmp_path / ("hf/token" if source == "file" else "elsewhere")
        file.parent.mkdir(exist_ok=True)
        file.write_text(SECRET + "\n")
        if source == "HF_TOKEN_PATH":
            monkeypatch.setenv("HF_TOKEN_PATH", str(file))
    ask()
    assert [sent for _, sent in mirror.asked] == [f"Bearer {SECRET}"]


def test_a_redirect_to_another_host_does_not_get_the_token(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Mirror()
    monkeypatch.setenv("HF_TOKEN", SECRET)
    other.files["/blob"] = b"{}"
    mirror.redirects[f"/{NAME}/resolve/main/tokenizer.json"] = f"{other.url}/blob"
    assert ask().content == b"{}"
    assert other.asked == [("/blob", None)]
    other.close()


@pytest.mark.parametrize("bad", ["two words here", "line\nbreak-in-it", "x", "ключ-доступа"])
def test_a_text_that_no_token_can_be_is_not_sent_and_breaks_nothing(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch, bad: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", bad)
    assert "404" in ask().where
    assert [sent for _, sent in mirror.asked] == [None]


@pytest.mark.parametrize("status", [401, 403])
def test_a_gated_repository_says_what_to_do_and_never_shows_the_token(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    mirror.status = status
    assert "HF_TOKEN" in ask().where
    monkeypatch.setenv("HF_TOKEN", SECRET)
    assert "no access" in ask().where
    assert SECRET not in ask().where


def test_the_token_is_kept_nowhere(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    mirror.files[f"/{NAME}/resolve/main/tokenizer.json"] = b"{}"
    assert SECRET not in repr(ask())
    kept = [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
    assert kept
    assert all(SECRET.encode() not in path.read_bytes() for path in kept)


def test_credentials_in_the_mirrors_address_are_not_shown(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", mirror.url.replace("//", "//user:hidden@"))
    assert "hidden" not in hub.address(NAME, "config.json")
    assert "hidden" not in ask().where


def test_a_hub_that_is_slow_or_sends_too_much_is_given_up(mirror: Mirror) -> None:
    mirror.files[f"/{NAME}/resolve/main/tokenizer.json"] = b"x" * 2000
    assert "larger than" in ask(most_bytes=1000).where
    mirror.holds = True  # for as long as this test takes
    assert "did not answer" in ask(total_s=0.2).where


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (b"<!doctype html><html>Sign in to the network</html>", "a web page came in its place"),
        (b"", "nothing came"),
        (b'{"model_type": "llama", "hidden_si', "no whole JSON file came"),
    ],
)
def test_what_is_no_file_is_said_and_not_kept(mirror: Mirror, sent: bytes, told: str) -> None:
    path = f"/{NAME}/resolve/main/tokenizer.json"
    mirror.files[path] = sent
    assert told in ask().where
    mirror.files[path] = b"{}"  # the network is signed in to, the connection holds
    assert ask().content == b"{}"


def test_a_page_that_was_kept_for_a_file_is_asked_for_again(mirror: Mirror) -> None:
    mirror.files[f"/{NAME}/resolve/main/tokenizer.json"] = b"{}"
    kept = ask().path
    kept.write_text("<html>Sign in</html>")
    assert ask().content == b"{}"


def test_a_mirror_that_is_no_web_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AUTOTUNE_OFFLINE", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "file:///etc")
    assert "no web address" in ask().where


def test_a_home_that_cannot_be_written_still_answers(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path / "file" / "home"))
    mirror.files[f"/{NAME}/resolve/main/tokenizer.json"] = b"{}"
    found = ask()
    assert (found.content, found.path) == (b"{}", None)
