"""Files of a repository on the Hugging Face hub: its cache on this disk first, then one request.

Environment, as huggingface_hub has it: HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME; HF_ENDPOINT for a
mirror; HF_TOKEN, HF_TOKEN_PATH or the file that `hf auth login` wrote; HF_HUB_OFFLINE, and
AUTOTUNE_OFFLINE, keep every request from being made. A token is sent to the endpoint alone, never
to where it redirects, and is neither printed nor kept.
"""

from __future__ import annotations

import os
import re
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from autotune.catalog.files import home_dir, read_regular, write_whole
from autotune.domain.config import YES
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable
    from urllib.request import Request

ENDPOINT = "https://huggingface.co"
OFFLINE = "AUTOTUNE_OFFLINE"  # no request of any kind
HUB_OFFLINE = "HF_HUB_OFFLINE"
NOT_FOUND = 404
ANSWER_S = 3.0  # for the first byte
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_TOKEN = re.compile(r"[\x21-\x7e]{8,400}")
_CHUNK = 1 << 16
_LOCAL = {"localhost", "127.0.0.1", "::1"}


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file, or why there is none. `path` is None for a file that could not be kept."""

    content: bytes | None
    where: str  # the cache's file or the address it came from; why there is none
    path: Path | None = None


def is_hub_id(text: str) -> bool:
    """Whether a text has the form of a name on the hub: owner/name."""
    return _HUB_ID.fullmatch(text) is not None and ".." not in text


def offline() -> str | None:
    """The variable that forbids requests, if one does."""
    for name in (OFFLINE, HUB_OFFLINE):
        value = os.environ.get(name, "").strip().casefold()
        if value and (name == OFFLINE or value in YES):
            return name
    return None


# A folder of the hub's cache, or of ModelScope's, whose name is the repository's.
# Source: huggingface_hub 1.2 file_download.py, repo_folder_name; ModelScope writes "." as "___".
_CACHED = re.compile(
    r".*/models--(?P<id>[\w.-]+?)(?:/snapshots/\w+)?/?"
    r"|.*/modelscope/hub/(?:models/)?(?P<owner>[\w.-]+)/(?P<name>[\w.-]+)/?"
)


def of_cache(text: str) -> str:
    """The repository whose folder in a cache a path is; any other text as it stands."""
    found = _CACHED.fullmatch(text)
    if found is None:
        return text
    name = found["id"].replace("--", "/", 1) if found["id"] else f"{found['owner']}/{found['name']}"
    return name.replace("___", ".")


def cached_file(name: str, filename: str) -> Path | None:
    """A file of a repository in the hub's cache: of its main branch, else of the newest."""
    folder = cached_repository(name)
    if folder is None:
        return None
    return next((p for p in (s / filename for s in _snapshots(folder)) if p.is_file()), None)


def cached_repository(name: str, *, kind: str = "models") -> Path | None:
    """The cache's folder of a repository, if it has one. kind: models or datasets."""
    if not is_hub_id(name):
        return None
    folder = cache_dir() / f"{kind}--{name.replace('/', '--')}"
    try:
        return folder if (folder / "snapshots").is_dir() else None
    except OSError:
        return None


def cached_dataset(name: str) -> Path | None:
    """The folder of files of a cached data set."""
    folder = cached_repository(name, kind="datasets")
    return next(iter(_snapshots(folder)), None) if folder else None


def _snapshots(folder: Path) -> list[Path]:
    try:
        found = [path for path in (folder / "snapshots").iterdir() if path.is_dir()]
        found.sort(key=lambda path: (path.stat().st_mtime_ns, path.name), reverse=True)
    except OSError:
        return []
    try:
        main = read_regular(folder / "refs" / "main").decode().strip()
    except (OSError, ValueError):
        return found
    return sorted(found, key=lambda path: path.name != main)


def cache_dir() -> Path:
    """Where huggingface_hub keeps what it downloads."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(name):
            return Path(os.environ[name]).expanduser()
    return _hf_home() / "hub"


def _hf_home() -> Path:
    if os.environ.get("HF_HOME"):
        return Path(os.environ["HF_HOME"]).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "huggingface"


def find_file(name: str, filename: str, *, most_bytes: int, total_s: float = ANSWER_S) -> HubFile:
    """A file of a model's repository: from the hub's cache, from an earlier request, or asked for.

    Args:
        name: owner/name.
        filename: Such as "tokenizer.json".
        most_bytes: A larger file is refused.
        total_s: [s] for the whole request; its first byte must come within three seconds.
    """
    if not is_hub_id(name):
        return HubFile(None, f"{name} is no name on the hub")
    kept = home_dir() / "hub" / name.replace("/", "--") / filename
    for path in (cached_file(name, filename), kept):
        found = _read(path, most_bytes) if path else None
        page = path == kept and _is_no_file(filename, found.content or b"") if found else ""
        if found is not None and not page:
            return found
    variable = offline()
    if variable:
        return HubFile(None, f"it is not in the hub's cache, and {variable} is set")
    url = _url(name, filename)
    answer = _within(lambda asked: _download(url, most_bytes, total_s, asked), total_s)
    if isinstance(answer, str):
        return HubFile(None, answer)
    if wrong := _is_no_file(filename, answer):  # not kept: the next request may be answered
        return HubFile(None, f"{wrong} from {_shown(url)}")
    return HubFile(answer, _shown(url), _keep(kept, answer))


def _is_no_file(filename: str, content: bytes) -> str:
    """What a hub sent in the place of a JSON file; empty where it may be one.

    A sign-in page and a proxy's notice come with status 200; a broken connection ends early.
    """
    text = content.strip()
    if not filename.endswith(".json") or (text[:1] + text[-1:]) in {b"{}", b"[]"}:
        return ""
    if text[:1] == b"<":
        return "a web page came in its place (a sign-in or a proxy answers for the hub)"
    return "nothing came" if not text else "no whole JSON file came"


def address(name: str, filename: str) -> str:
    """Where a file of a repository is on the hub, or on the mirror that HF_ENDPOINT names."""
    return _shown(_url(name, filename))


def _url(name: str, filename: str) -> str:
    endpoint = os.environ.get("HF_ENDPOINT", "").strip().rstrip("/") or ENDPOINT
    return f"{endpoint}/{name}/resolve/main/{filename}"


def _shown(url: str) -> str:
    """An address without a user and password in it."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _read(path: Path, most_bytes: int) -> HubFile | None:
    try:
        return HubFile(read_regular(path, most_bytes), str(path), path)
    except (OSError, ValueError):
        return None


def _keep(path: Path, content: bytes) -> Path | None:
    """Keep a downloaded file for the next time; a home that cannot be written keeps nothing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)
    except OSError:
        return None
    return path


def token() -> str | None:
    """The user's access token, or None. A text that no token can be is not one."""
    stated = os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN")
    if not stated:
        named = os.environ.get("HF_TOKEN_PATH")
        file = Path(named).expanduser() if named else _hf_home() / "token"
        try:
            stated = file.read_text(encoding="utf-8")[:1000]
        except (OSError, ValueError):
            return None
    stated = stated.strip()
    return stated if _TOKEN.fullmatch(stated) else None


@dataclass(slots=True)
class _Asked:
    """A request under way: whether the hub has answered, and with what."""

    begun: threading.Event
    ended: threading.Event
    answer: bytes | str = ""


def _within(ask: Callable[[_Asked], bytes | str], total_s: float) -> bytes | str:
    """What `ask` answers in time. Name resolution ignores socket timeouts, hence the thread."""
    asked = _Asked(threading.Event(), threading.Event())

    def work() -> None:
        asked.answer = ask(asked)
        asked.ended.set()
        asked.begun.set()

    threading.Thread(target=work, daemon=True).start()
    first = min(ANSWER_S, total_s)
    if not asked.begun.wait(first):
        return f"the hub did not answer within {first:.0f} s"
    return (
        asked.answer if asked.ended.wait(total_s) else f"it did not arrive within {total_s:.0f} s"
    )


def _download(url: str, most_bytes: int, total_s: float, progress: _Asked) -> bytes | str:
    import urllib.error  # a quarter of the start-up time, and seldom needed
    import urllib.request

    if urlsplit(url).scheme not in {"https", "http"}:
        return f"HF_ENDPOINT {_shown(url)} is no web address"
    known = token()
    headers = {"User-Agent": "autotune"}
    if known and (urlsplit(url).scheme == "https" or urlsplit(url).hostname in _LOCAL):
        headers["Authorization"] = f"Bearer {known}"
    until = time.monotonic() + total_s
    try:
        asked = urllib.request.Request(url, headers=headers)  # noqa: S310 - http(s), checked above
        with _opener().open(asked, timeout=ANSWER_S) as reply:
            progress.begun.set()
            content = bytearray()
            while chunk := reply.read(_CHUNK):
                content += chunk
                if len(content) > most_bytes:
                    return f"it is larger than {most_bytes // 10**6} MB on the hub"
                if time.monotonic() > until:
                    return f"it did not arrive within {total_s:.0f} s"
    except urllib.error.HTTPError as error:
        return _refusal(error.code, asked_with_token=known is not None)
    except (OSError, ValueError) as error:
        reason = str(getattr(error, "reason", error))
        return f"the hub could not be asked ({reason.replace(known, '***') if known else reason})"
    return bytes(content)


def _refusal(code: int, *, asked_with_token: bool) -> str:
    """What a status of the hub means: 401 and 403 are gated, private or unknown repositories."""
    if code == NOT_FOUND:
        return f"the hub answered {code}: it has none of that name"
    if code not in {401, 403}:
        return f"the hub answered {code} for it: try again later"
    if asked_with_token:
        return f"the hub answered {code}: the token has no access to it (gated, or another account)"
    return f"the hub answered {code}: gated or private; set HF_TOKEN, or run `hf auth login`"


def _host(request: Request) -> str:
    return urlsplit(request.full_url).netloc


def _opener() -> Any:  # noqa: ANN401 - urllib's opener, imported late
    """Follows redirects without the token where they leave the endpoint's host."""
    import urllib.request

    class Redirects(urllib.request.HTTPRedirectHandler):
        """Drops the token on the way to another host."""

        def redirect_request(self, req: Request, *args: Any) -> Request | None:  # noqa: ANN401
            """The next request."""
            after = super().redirect_request(req, *args)
            if after is not None and _host(after) != _host(req):
                after.remove_header("Authorization")
            return after

    return urllib.request.build_opener(Redirects)
