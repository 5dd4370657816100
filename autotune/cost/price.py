"""What an hour of the offer costs, and how often it is interrupted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autotune.cost.columns import Columns, Component, Outputs

if TYPE_CHECKING:
    from autotune.domain.job import Job


def price_offer(job: Job, columns: Columns) -> Outputs:  # noqa: ARG001 - one signature for all
    """[USD/h] of the whole offer and [1/s] interruptions (0 on demand)."""
    return {
        "usd_per_hour": columns.number("offer.price"),
        "interruptions_per_s": columns.number("offer.spot") / 3600.0,
        "log_sd": np.zeros(columns.rows),
    }


price_component = Component("price", ("offer.price", "offer.spot"), price_offer)
