"""Workers of `bench.many_hands` as tasks of a Ray cluster of two nodes on this machine.

What is killed by chance: a worker, a node with all that runs on it, or the driver's tie to the
cluster, with which Ray ends every task of it. A lost node comes back as another one.
"""

from __future__ import annotations

import os
import signal
import warnings
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.app.workers.executor import WorkerJob
from autotune.app.workers.ray_cluster import RayExecutor

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

STARTS = 5  # of a node
NODES, STORE_BYTES = 2, 80 * 2**20  # the smallest store of objects that Ray takes


def absent() -> str:
    """What this machine lacks for it; empty where it has all."""
    return "" if find_spec("ray") else "the package ray is not installed"


def patiently(start: Callable[[], Any]) -> Any:  # noqa: ANN401 - Ray's own
    """Start a node, again where need be: Ray gives it half a minute, which is short when busy."""
    for left in reversed(range(STARTS)):
        try:
            return start()
        except Exception as error:  # Ray raises no kind of its own
            if not left or "timed out" not in str(error):
                raise
    return None


@dataclass
class HandsOnRay:
    """The workers of a search on a cluster, which are replaced when they are lost."""

    command: list[str]
    folder: Path
    count: int
    most_refused: int
    failed: int = 0
    started: int = 0
    seen: set[str] = field(default_factory=set)
    losses: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        warnings.simplefilter("ignore")
        from ray.cluster_utils import Cluster

        root = str(Path(__file__).parents[1])
        os.environ["PYTHONPATH"] = root
        head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": STORE_BYTES}
        self.cluster: Any = patiently(lambda: Cluster(initialize_head=True, head_node_args=head))
        self.nodes = [self._node() for _ in range(NODES)]
        self.executor = RayExecutor(self.cluster.address)
        self.job = WorkerJob(tuple(self.command), self.folder, "cpu", 1, {"PYTHONPATH": root})

    def _node(self) -> Any:  # noqa: ANN401 - Ray's own
        room = -(-self.count // NODES)
        return patiently(lambda: self.cluster.add_node(
            num_cpus=room, object_store_memory=STORE_BYTES, wait=False
        ))  # fmt: skip

    def fill(self) -> None:
        """Start as many as are wanting. Raises RuntimeError where many ended with an error."""
        states = self.executor.states()
        for state in states:
            if state.state == "ended" and state.name not in self.seen:
                self.seen.add(state.name)
                self.failed += (state.code or 0) > 0
                if self.failed > self.most_refused:
                    raise RuntimeError(state.why)
        for _ in range(self.count - sum(state.state != "ended" for state in states)):
            self.started += 1
            self.executor.start(self.job, f"hand-{self.started}")

    def kill_one(self, chance: random.Random) -> None:
        """A worker, a node or the driver's tie."""
        what = chance.choice(("worker", "node", "driver"))
        self.losses.append(what)
        if what == "node":
            lost = self.nodes.pop(chance.randrange(len(self.nodes)))
            self.cluster.remove_node(lost, allow_graceful=False)
            self.nodes.append(self._node())
        elif what == "driver":
            import ray

            ray.shutdown()
            self.executor, self.seen = RayExecutor(self.cluster.address), set()
        elif living := self._workers():
            os.kill(chance.choice(living), signal.SIGKILL)

    def _workers(self) -> list[int]:
        """Numbers of the processes that measure: the guard of each has the same words."""
        wanted = "\0".join(self.command).encode()
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdecimal() and (entry / "cmdline").read_bytes().startswith(wanted):
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def end(self) -> None:
        """Nobody stays behind."""
        self.executor.stop()
        self.cluster.shutdown()
