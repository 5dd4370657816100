"""A run that outlasts a session saves before it ends, starts again, and pays for both."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.cost.time.checkpoint import resumed_s

SECONDS = st.floats(min_value=1.0, max_value=1e6)


def extra(running: float, session: float | None, save: float, restart: float) -> float:
    found = resumed_s(
        running_s=np.array([running]),
        session_s=session,
        save_s=np.array([save]),
        restart_s=np.array([restart]),
    )
    return float(found[0])


def test_a_run_within_one_session_or_without_a_limit_pays_nothing() -> None:
    assert extra(100.0, None, 10.0, 10.0) == 0
    assert extra(100.0, 100.0, 10.0, 10.0) == 0


def test_each_session_but_the_first_costs_a_save_and_a_start() -> None:
    assert extra(101.0, 100.0, 4.0, 6.0) == pytest.approx(10.0)
    assert extra(250.0, 100.0, 4.0, 6.0) == pytest.approx(20.0)


@given(SECONDS, SECONDS, st.floats(0.0, 0.2), st.floats(0.0, 0.2))
def test_the_sessions_hold_the_run_and_what_it_costs_to_go_on(
    running: float, session: float, save: float, restart: float
) -> None:
    save_s, restart_s = save * session, restart * session
    more = extra(running, session, save_s, restart_s)
    again = round(more / (save_s + restart_s)) if save_s + restart_s > 0 else 0
    if save_s + restart_s > 0:
        assert running + more <= (again + 1) * session * (1 + 1e-9)
        # one session fewer would not hold it
        assert again == 0 or running + (again - 1) * (save_s + restart_s) > again * session * (
            1 - 1e-9
        )


def test_a_session_that_its_own_start_fills_still_has_a_finite_bill() -> None:
    assert np.isfinite(extra(1e6, 10.0, 20.0, 20.0))
