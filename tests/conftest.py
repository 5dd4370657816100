"""What holds for every test: Ctrl-C works, wherever the tests were started."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Take SIGINT back where it is ignored, as in `make test &` of a script and under some CI.

    Children inherit an ignored signal, and a Python that starts so never raises KeyboardInterrupt.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
