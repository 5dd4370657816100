"""What holds for every test: Ctrl-C works, and nobody asks the hub or reads a user's cache."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

from hypothesis import settings

# The same examples each time, so that a change is judged and not the draw; new ones are drawn with
# `pytest --hypothesis-profile=default`. How long one takes is the machine's affair.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


def pytest_configure() -> None:
    """Take SIGINT back where it is ignored, as in `make test &` of a script and under some CI.

    Children inherit an ignored signal, and a Python that starts so never raises KeyboardInterrupt.
    """
    os.environ["AUTOTUNE_OFFLINE"] = "1"
    os.environ["HF_HUB_CACHE"] = str(Path(tempfile.gettempdir()) / f"no-hub-cache-{os.getpid()}")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
