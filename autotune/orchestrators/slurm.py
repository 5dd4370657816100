"""A batch script for sbatch: the resources of the offer, a limit, and a start after a requeue.

Source: sbatch(1) of Slurm 23.11: --gpus-per-node, --signal, --requeue, --open-mode.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from autotune.orchestrators.contract import REQUIREMENTS, SCRIPT, Orchestrator, whole_gib

if TYPE_CHECKING:
    from autotune.orchestrators.contract import Launch

_MEETING = (
    "# the machines meet at the first one",
    'MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"',
    "export MASTER_ADDR MASTER_PORT=$(( 20000 + SLURM_JOB_ID % 20000 ))",
)
DAY_S, HOUR_S, MINUTE_S = 86400, 3600, 60


class Slurm(Orchestrator):
    """A script for `sbatch`, typed in the run folder, which every node has to see."""

    name = "slurm"
    title = "Slurm"
    file = "run.sbatch"
    command = "sbatch run.sbatch"
    has_spot = False

    def write(self, launch: Launch) -> tuple[str, list[str]]:
        """The script."""
        offer = launch.offer
        ram = launch.stated("ram_bytes")
        options = {
            "job-name": launch.name,
            "nodes": f"{offer.nodes}",
            **({"ntasks": "1"} if offer.nodes == 1 else {"ntasks-per-node": "1"}),
            "cpus-per-task": f"{offer.host.cores}",
            **({"mem": f"{whole_gib(ram)}G"} if ram else {}),
            **(
                {}
                if offer.device.is_cpu
                else {"gpus-per-node": f"{_type(launch)}:{offer.per_node}"}
            ),
            **({"time": _clock(launch.limit_s)} if launch.limit_s else {}),
            "requeue": "",
            "open-mode": "append",
            "output": "%x-%j.log",
        }
        lines = [
            *(f"#SBATCH --{key}{f'={value}' if value else ''}" for key, value in options.items()),
            "set -euo pipefail",
            'cd -- "${SLURM_SUBMIT_DIR:?start it with sbatch}"',
            (
                f'[[ -f {SCRIPT} ]] || {{ echo "there is no {SCRIPT} in $PWD: cd to the run folder'
                ' and sbatch there" >&2; exit 1; }'
            ),
            f"# an environment with {REQUIREMENTS} in it: sbatch --export=ALL,VENV=/path/of/it",
            'if [[ -n "${VENV:-}" ]]; then source "$VENV/bin/activate"; fi',
            "export RESUME=1  # after a requeue, and after a limit of the queue, it goes on",
            *(_MEETING if offer.nodes > 1 else ()),
            f"exec srun --kill-on-bad-exit=1 bash {SCRIPT}",
        ]
        notes = []
        if not offer.device.is_cpu:
            notes.append(
                f"slurm: what a site calls its GPUs is its own: `sinfo -o %G` says it; the file"
                f" asks for {_type(launch)}"
            )
        rows = "DATA=rows.jsonl " if launch.asks_for_rows and not launch.rows else ""
        head = launch.head(f"{rows}{self.command}")
        return f"#!/usr/bin/env bash\n{head}" + "\n".join(lines) + "\n", notes


def _type(launch: Launch) -> str:
    """The device in the few characters that sites use: h100, a100, l40s."""
    parts = launch.offer.device.name.split("-")
    kept = parts[:2] if parts[0] == "rtx" else parts[:1]
    return "".join(kept)


def _clock(seconds: float) -> str:
    """D-HH:MM:00, rounded up to minutes."""
    whole = math.ceil(seconds / MINUTE_S) * MINUTE_S
    days, rest = divmod(whole, DAY_S)
    return f"{days}-{rest // HOUR_S:02d}:{rest % HOUR_S // MINUTE_S:02d}:00"
