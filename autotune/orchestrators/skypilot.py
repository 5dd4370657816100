"""A SkyPilot task: the offer's accelerator where it is rented, recovery, a bucket of checkpoints.

Source: the YAML of a task and of a managed job in SkyPilot's documentation; `sky/utils/schemas.py`
of 0.14.1, which `tests/orchestrators` runs where it is installed.
"""

from __future__ import annotations

import csv
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from autotune.catalog.tables import DATA
from autotune.domain.errors import InputError
from autotune.frozen import dataclass
from autotune.orchestrators.contract import (
    REQUIREMENTS,
    SCRIPT,
    STORE,
    Orchestrator,
    as_yaml,
    whole_gb,
    whole_gib,
)

if TYPE_CHECKING:
    from autotune.domain.device import Offer
    from autotune.orchestrators.contract import Launch

BUCKET = "CHECKPOINT_BUCKET"
OWN_MACHINES = "ssh"  # SkyPilot's cloud of machines that are one's own
IDLE_MINUTES = 10
_PLACE = (  # of this machine among several, and where they meet
    'export NODE_RANK="$SKYPILOT_NODE_RANK" MASTER_ADDR="$(head -n 1 <<< "$SKYPILOT_NODE_IPS")"',
)


@dataclass(frozen=True, slots=True)
class Accelerator:
    """What SkyPilot calls a device, and the clouds where that name means no other."""

    device: str
    name: str
    clouds: tuple[str, ...]


@lru_cache(maxsize=1)
def accelerators() -> dict[str, tuple[Accelerator, ...]]:
    """SkyPilot's names by device of the catalogue."""
    found: dict[str, tuple[Accelerator, ...]] = {}
    with (DATA / "skypilot_accelerators.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            each = Accelerator(row["device"], row["accelerator"], tuple(row["clouds"].split("|")))
            found[each.device] = (*found.get(each.device, ()), each)
    return found


class SkyPilot(Orchestrator):
    """A task for `sky jobs launch`, or for `sky launch` on a machine that is kept."""

    name = "sky"
    title = "SkyPilot"
    file = "sky.yaml"
    command = "sky jobs launch sky.yaml"
    has_spot = True

    def write(self, launch: Launch) -> tuple[str, list[str]]:
        """The task."""
        envs: dict[str, str | None] = {}
        mounts: dict[str, Any] = {}
        notes: list[str] = []
        if launch.writes_to:
            envs[BUCKET] = None
            mounts[STORE] = {"name": f"${{{BUCKET}}}", "mode": "MOUNT_CACHED"}
        else:
            notes.append(
                f"your own file says where results go: let it be {STORE}, with a bucket under"
                " file_mounts, or they go with the machine"
            )
        if launch.rows:
            envs["DATA"] = launch.rows_there
            mounts[launch.rows_there] = launch.rows
        elif launch.asks_for_rows:
            envs["DATA"] = None
        told = " ".join(f"--env {name}=..." for name, value in envs.items() if value is None)
        task: dict[str, Any] = {
            "name": launch.name,
            "workdir": ".",
            **({"num_nodes": launch.offer.nodes} if launch.offer.nodes > 1 else {}),
            "resources": _resources(launch),
            **({"envs": envs} if envs else {}),
            "secrets": {"HF_TOKEN": ""},
            **({"file_mounts": mounts} if mounts else {}),
            "setup": f"python -m pip install -r {REQUIREMENTS}\n",
            "run": "\n".join(
                [*launch.keeps_results(), *(_PLACE if launch.offer.nodes > 1 else ()),
                 f"RESUME=1 exec bash {SCRIPT}"]
            ) + "\n",
        }  # fmt: skip
        command = f"{self.command} {told}".strip()
        head = launch.head(
            command,
            "this file sets no time limit: watch the run",
            "a gated model: --secret HF_TOKEN",
            stops=False,
        )
        return head + as_yaml(task), notes


def _resources(launch: Launch) -> dict[str, Any]:
    offer = launch.offer
    found: dict[str, Any] = {}
    places = _places(offer)
    if len(places) == 1:
        found |= places[0]
    found["use_spot"] = offer.spot
    if offer.network is not None and not offer.network.name.startswith("ethernet"):
        found["network_tier"] = "best"  # what the price counts on: EFA, InfiniBand, RoCE
    cores, ram = launch.stated("cores"), launch.stated("ram_bytes")
    if not _instance(offer):
        found |= {"cpus": f"{cores:.0f}+"} if cores else {}
        found |= {"memory": f"{whole_gib(ram)}+"} if ram else {}
    found["disk_size"] = whole_gb(launch.disk_bytes)
    found["job_recovery"] = {"max_restarts_on_errors": 1}
    found["autostop"] = {"idle_minutes": IDLE_MINUTES, "down": True}
    if len(places) > 1:
        found["any_of"] = places
    return found


def _places(offer: Offer) -> list[dict[str, Any]]:
    """The offer as SkyPilot asks for it: a place each."""
    own = offer.price_source.startswith("owned")
    infra = {"infra": OWN_MACHINES} if own else {}
    if offer.device.is_cpu:
        return [infra]
    known = accelerators().get(offer.device.name, ())
    if not known:
        msg = f"SkyPilot's catalogue has no accelerator that is {offer.device.name}"
        have = ", ".join(accelerators())
        raise InputError(msg, f"it has: {have}; or start run.sh on the machine itself")
    if own:
        return [infra | {"accelerators": f"{known[0].name}:{offer.per_node}"}]
    provider = offer.price_source.split(",")[0].split()[0].casefold()
    named = _instance(offer)
    here = [each for each in known if provider in each.clouds]
    if here and named:
        return [{"infra": provider, "instance_type": named}]
    return [
        {"infra": cloud, "accelerators": f"{each.name}:{offer.per_node}"}
        for each in (here or known)
        for cloud in ([provider] if here else each.clouds)
    ]


def _instance(offer: Offer) -> str:
    """The cloud's name of the machine, where the offer was named by it."""
    provider, _, name = offer.instance.partition(" ")
    return name if provider in {"aws", "azure", "gcp"} and " " not in name else ""
