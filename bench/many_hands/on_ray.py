"""Workers of `bench.many_hands` as tasks of a Ray cluster of two nodes on this machine.

The driver is a process of its own, with which Ray ends every task of it. A lost node comes back as
another one; a driver that was attached to it goes with it.
"""

from __future__ import annotations

import os
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.app.workers.ray_cluster import RayExecutor

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from autotune.app.workers.executor import Executor

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


def executor(address: str) -> Executor:
    """Who starts workers on that cluster; its driver is this process."""
    warnings.simplefilter("ignore")
    return RayExecutor(address)


class Nodes:
    """A cluster of a head that runs nothing and nodes that can be lost."""

    def __init__(self, workers: int) -> None:
        """workers: for whom there is room on the nodes together."""
        self.room = -(-workers // NODES)

    def __enter__(self) -> Nodes:  # noqa: PYI034 - not subclassed
        warnings.simplefilter("ignore")
        from ray.cluster_utils import Cluster

        os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
        head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": STORE_BYTES}
        self.cluster: Any = patiently(lambda: Cluster(initialize_head=True, head_node_args=head))
        self.nodes = [self._node() for _ in range(NODES)]
        self.address = str(self.cluster.address)
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.shutdown()

    def _node(self) -> Any:  # noqa: ANN401 - Ray's own
        return patiently(lambda: self.cluster.add_node(
            num_cpus=self.room, object_store_memory=STORE_BYTES, wait=False
        ))  # fmt: skip

    def lose(self, chance: random.Random) -> None:
        """One with all that runs on it, as where its power goes; another takes its place."""
        lost = self.nodes.pop(chance.randrange(len(self.nodes)))
        self.cluster.remove_node(lost, allow_graceful=False)
        self.nodes.append(self._node())
