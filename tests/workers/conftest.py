"""Where a server of another user may write, with room for the path of its socket."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(
    0, str(Path(__file__).parents[1] / "app" / "probing")
)  # simulatedmachine lives there

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of this folder is services and faults."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.services)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="at-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made, ignore_errors=True)
