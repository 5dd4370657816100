"""Every orchestrator by the name that a user types."""

from __future__ import annotations

from autotune.orchestrators.dstack import Dstack
from autotune.orchestrators.kubernetes import Kubernetes
from autotune.orchestrators.skypilot import SkyPilot
from autotune.orchestrators.slurm import Slurm

ORCHESTRATORS = {each.name: each for each in (SkyPilot(), Slurm(), Dstack(), Kubernetes())}
