"""Every registered trainer holds the contract; that its export is the same job, from any file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from contract import TrainerContract

from autotune.catalog.software import LEVERS_OF
from autotune.trainers.registry import TRAINERS

if TYPE_CHECKING:
    from autotune.trainers.contract import Trainer


@pytest.fixture(params=TRAINERS.values(), ids=TRAINERS)
def trainer(request: pytest.FixtureRequest) -> Trainer:
    found: Trainer = request.param
    return found


def test_levers_are_of_registered_trainers() -> None:
    assert set(LEVERS_OF) - {""} <= set(TRAINERS)


class TestEveryTrainer(TrainerContract):
    """Those of the registry."""
