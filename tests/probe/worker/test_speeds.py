"""On a GPU a speed is the device's own and issuing is the host's own, whatever both wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
from autotune.probe.worker.speeds import Speeds  # noqa: E402 - it needs torch

if TYPE_CHECKING:
    from collections.abc import Callable

ISSUE_S, KERNEL_S, WAIT_S = 1e-3, 4e-3, 2e-3


class Board:
    """Kernels run one after another behind the host, which pays to issue one and to wait."""

    def __init__(self) -> None:
        self.at_s = 0.0  # the host's clock
        self.free_s = 0.0  # when the device has done everything

    def kernel(self) -> None:
        self.at_s += ISSUE_S
        self.free_s = max(self.free_s, self.at_s) + KERNEL_S

    def synchronize(self) -> None:
        self.at_s = max(self.at_s, self.free_s) + WAIT_S

    def event(self, **_: object) -> Any:
        board = self

        class Event:
            def record(self) -> None:
                self.at_s = max(board.free_s, board.at_s)

            def synchronize(self) -> None:
                board.synchronize()

            def elapsed_time(self, other: Event) -> float:
                return float(1000.0 * (other.at_s - self.at_s))

        return Event()


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Board:
    found = Board()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", found.synchronize)
    monkeypatch.setattr(torch.cuda, "Event", found.event)
    return found


def clock_of(board: Board) -> Callable[[], float]:
    return lambda: board.at_s


def test_a_kernel_takes_what_the_device_takes_and_not_what_waiting_for_it_costs(
    board: Board,
) -> None:
    took = Speeds({"device": "cuda", "seconds": 1.0}).timed(board.kernel, 0.05)
    assert took["s"] == pytest.approx(KERNEL_S, rel=0.3)


def test_issuing_a_kernel_takes_the_host_alone_however_long_the_kernel_runs(board: Board) -> None:
    took = Speeds({"device": "cuda", "seconds": 1.0}).timed(board.kernel, 0.05, clock_of(board))
    assert took["s"] == pytest.approx(ISSUE_S)
