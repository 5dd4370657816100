"""Why workers have left a search: kept in its study, and on their own disk for where that is lost.

A run folder's journal is written anew by each leader, who may be killed while it does so. A worker
is believed as long as the question is the one that it left: of a search that was asked for more
since, nobody has left.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from typing import TYPE_CHECKING, Any

from autotune.catalog.files import read_regular, write_whole
from autotune.search.study.record import WORKERS_FOLDER

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.search.study.turns import SharedStudy

LEFT = "autotune:left"  # of a study: why each worker has gone
LEFT_FILE = "left.json"
DECIDING = ("probing", "objective")  # the terms that say when a search is over
MOST_BYTES = 100_000


def leave(shared: SharedStudy, folder: Path, terms: dict[str, Any], why: str) -> None:
    """A worker whose folder that is goes, because the search is over."""
    said = {"why": why, "question": _question(terms)}
    with contextlib.suppress(OSError):  # the study has it too
        write_whole(folder / LEFT_FILE, json.dumps(said))
    shared.study.set_user_attr(f"{LEFT}:{folder.name}", said)


def reasons(shared: SharedStudy, run_dir: Path, terms: dict[str, Any]) -> list[str]:
    """Why each worker that found this search to be over has gone."""
    said: dict[str, Any] = {}
    for path in sorted(run_dir.glob(f"{WORKERS_FOLDER}/*/{LEFT_FILE}")):
        with contextlib.suppress(OSError, ValueError):
            said[path.parent.name] = json.loads(read_regular(path, MOST_BYTES))
    for name, found in shared.study.user_attrs.items():
        if name.startswith(LEFT):
            said[name.removeprefix(f"{LEFT}:")] = found
    asked = _question(terms)
    return [
        str(found["why"])
        for found in said.values()
        if isinstance(found, dict) and found.get("question") == asked and found.get("why")
    ]


def _question(terms: dict[str, Any]) -> str:
    """A digest of when the search is over, the same before and after it was kept as JSON."""
    asked = json.dumps([terms[name] for name in DECIDING], sort_keys=True)
    return hashlib.sha256(asked.encode()).hexdigest()[:16]
