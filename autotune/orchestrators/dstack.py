"""A dstack task: the device by name and memory, spot as priced, retries, a volume for checkpoints.

Source: `TaskConfiguration` of dstack 0.22.5, which `tests/orchestrators` runs where it is
installed; device names: gpuhunt 0.1, KNOWN_NVIDIA_GPUS and KNOWN_AMD_GPUS.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from autotune.domain.units import GIB, HOUR_S
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
    from autotune.domain.device import Device
    from autotune.orchestrators.contract import Launch

DEARER = 1.1  # than the plan's price: no such machine is taken
VOLUME = "checkpoints"
_PLACE = 'NODE_RANK="$DSTACK_NODE_RANK" MASTER_ADDR="$DSTACK_MASTER_NODE_IP" '
_NAMES = {"rtx-6000-ada": "RTX6000Ada", "gh200-96gb": "GH200", "gh200-144gb": "GH200"}
_FORM = re.compile(r"-(pcie|sxm\d?)?(-?\d+gb)?$")


class Dstack(Orchestrator):
    """A task for `dstack apply`."""

    name = "dstack"
    title = "dstack"
    file = "train.dstack.yml"
    command = "dstack apply -f train.dstack.yml"
    has_spot = True

    def write(self, launch: Launch) -> tuple[str, list[str]]:
        """The task."""
        offer = launch.offer
        needs = [name for name in launch.files if not name.endswith(".diff")]
        notes = [f"dstack: the volume {VOLUME} has to be there: dstack apply of a `type: volume`"]
        if not launch.writes_to:
            notes = ["dstack: your own file says where results go: let it be on a volume"]
        if offer.nodes > 1:  # a volume of the network belongs to one machine at a time
            shared = f"every machine has to have one shared folder at {STORE}"
            notes = [f"dstack: {shared}, and the fleet `placement: cluster`"]
        if launch.rows:
            notes.append(f"dstack: rows of {launch.rows} have to lie on the volume, as DATA says")
        env = ["HF_TOKEN"]
        if launch.rows:
            env.append(f"DATA={STORE}/{launch.rows_there.rpartition('/')[2]}")
        elif launch.asks_for_rows:
            env.append("DATA")
        task: dict[str, Any] = {
            "type": "task",
            "name": launch.name,
            **({"nodes": offer.nodes} if offer.nodes > 1 else {}),
            "python": "3.11",
            "working_dir": "/workflow",
            "files": [f"{name}:/workflow/{name}" for name in needs],
            "env": env,
            "commands": [
                f"python -m pip install -r {REQUIREMENTS}",
                *launch.keeps_results(),
                f"{_PLACE if offer.nodes > 1 else ''}RESUME=1 bash {SCRIPT}",
            ],
            **({"volumes": [f"{VOLUME if offer.nodes == 1 else STORE}:{STORE}"]}
               if launch.writes_to or launch.rows else {}),
            "resources": _resources(launch),
            "spot_policy": "spot" if offer.spot else "on-demand",
            **({"max_price": round(DEARER * offer.usd_per_hour / offer.nodes, 2)}
               if offer.usd_per_hour > 0 and not offer.price_source.startswith("owned") else {}),
            **({"max_duration": round(launch.limit_s)} if launch.limit_s else {}),  # [s]
            "retry": {"on_events": ["no-capacity", "interruption", "error"],
                      "duration": f"{max(1, round(launch.limit_s / HOUR_S))}h"},
        }  # fmt: skip
        return launch.head(self.command, "HF_TOKEN is taken from your shell") + as_yaml(task), notes


def _resources(launch: Launch) -> dict[str, Any]:
    offer = launch.offer
    cores, ram, shm = (launch.stated(key) for key in ("cores", "ram_bytes", "shm_bytes"))
    found: dict[str, Any] = {}
    found |= {"cpu": f"{cores:.0f}.."} if cores else {}
    found |= {"memory": f"{whole_gib(ram)}GB.."} if ram else {}
    found |= {"shm_size": f"{whole_gib(shm)}GB"} if shm and whole_gib(shm) else {}
    found["disk"] = f"{whole_gb(launch.disk_bytes)}GB.."
    if not offer.device.is_cpu:
        least = int(0.95 * offer.device.memory_driver_bytes / GIB)  # under what it is sold with
        found["gpu"] = {"name": device_name(offer.device), "count": offer.per_node,
                        "memory": f"{least}GB.."}  # fmt: skip
    else:
        found["gpu"] = 0
    return found


def device_name(device: Device) -> str:
    """Gpuhunt's name: H100, H100NVL, RTX4090, A6000, RTX6000Ada; of AMD, as it is sold."""
    name = device.name
    if name in _NAMES:
        return _NAMES[name]
    plain = _FORM.sub("", name)
    if plain.startswith("rtx-pro-6000"):
        return "RTXPRO6000"
    if plain.startswith("rtx-a"):
        return plain.removeprefix("rtx-").upper()  # A4000, A5000, A6000
    if plain.startswith("rtx-"):
        return plain.replace("rtx-", "RTX").replace("ti", "Ti")
    return plain.replace("-", "").upper()
