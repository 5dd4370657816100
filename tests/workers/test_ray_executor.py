"""Workers as tasks of Ray: placed, lost with their node, cancelled with the search."""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
import threading
import warnings
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from waiting import until

from autotune.app.workers import ray_cluster
from autotune.app.workers.executor import WorkerJob
from autotune.app.workers.ray_cluster import RayExecutor, _answers, _connect, _resources, _work
from autotune.domain.errors import InputError
from bench.many_hands.on_ray import patiently

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from autotune.app.workers.executor import WorkerState

SLEEPS = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
EIGHT = {"GPU": 8.0, "CPU": 64.0, "accelerator_type:H100": 1.0, "accelerator_type:L4": 1.0}


def job(folder: Path, code: str, device: str = "cpu", count: int = 1) -> WorkerJob:
    return WorkerJob((sys.executable, "-c", code), folder, device, count)


@pytest.mark.parametrize(
    ("device", "count", "there", "wanted"),
    [
        ("cpu", 1, {"CPU": 2.0}, {}),
        ("h100-sxm", 2, EIGHT, {"accelerator_type:H100": 0.001}),
        ("h100-sxm", 2, EIGHT | {"h100-sxm": 8.0}, {"h100-sxm": 2.0}),
        ("h100-sxm", 2, {"GPU": 8.0}, {}),
    ],
)
def test_a_worker_is_placed_where_its_device_is(
    device: str, count: int, there: dict[str, float], wanted: dict[str, float], tmp_path: Path
) -> None:
    assert _resources(job(tmp_path, "", device, count), there) == wanted


@pytest.mark.parametrize(
    ("device", "count", "says"),
    [("a100-sxm4-80gb", 1, "it has H100, L4"), ("h100-sxm", 16, "needs 16 GPUs")],
)
def test_a_cluster_that_can_never_run_it_is_refused(
    device: str, count: int, says: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=says):
        _resources(job(tmp_path, "", device, count), EIGHT)


@pytest.mark.parametrize("own", [{}, {"OMP_NUM_THREADS": "3"}])
def test_a_worker_has_the_threads_of_the_search_and_not_ray_s_one(
    own: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as Ray sets it for a task of one processor
    says = "import os; print(os.environ.get('OMP_NUM_THREADS', 'all'))"
    found = _work([sys.executable, "-c", says], own, str(tmp_path / "log"))
    assert found == (0, own.get("OMP_NUM_THREADS", "all"))


@pytest.mark.parametrize(
    ("address", "typed"),
    [("head", "head:6379"), ("127.0.0.1", "127.0.0.1:6379"), ("ray://head", "ray://head:10001")],
)
def test_an_address_without_its_port_is_answered_with_the_one_to_type(
    address: str, typed: str
) -> None:
    with pytest.raises(InputError, match="must be HOST:PORT") as caught:
        _answers(address)
    assert f"--ray-address {typed}," in str(caught.value.hint)


@pytest.mark.parametrize(
    "address",
    ["", ":6379", "head:", "head:x", "head:0", "head:65536", "ray://", "ray://head:1.5",
     "http://head:6379", "me@head:6379"],
)  # fmt: skip
def test_an_address_that_is_none_is_named_with_its_form(address: str) -> None:
    with pytest.raises(InputError, match="must be HOST:PORT") as caught:
        _answers(address)
    assert repr(address) in caught.value.message


@pytest.mark.parametrize("greeting", [b"HTTP/1.1 400 Bad Request\r\n", b"-ERR\r\n", b"", None])
def test_what_listens_and_is_not_ray_is_named_before_ray_tries_it(
    greeting: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if greeting is None:  # it says nothing at all
        monkeypatch.setattr(ray_cluster, "ANSWER_S", 0.1)
    with server(greeting) as port, pytest.raises(InputError, match="cannot be joined"):
        _answers(f"127.0.0.1:{port}")


def test_what_greets_as_a_head_of_ray_does_is_left_to_ray() -> None:
    with server(bytes([0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 9])) as port:
        _answers(f"127.0.0.1:{port}")
        _answers(f"ray://localhost:{port}")


@pytest.mark.parametrize("address", [None, "auto", "local"])
def test_a_cluster_that_ray_finds_or_starts_itself_needs_no_address(address: str | None) -> None:
    _answers(address)


def test_what_listens_as_ray_and_lets_nobody_in_is_answered_with_its_ports_and_its_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuses(**_: object) -> None:
        warnings.warn("Ray Client connection timed out", stacklevel=1)
        raise ConnectionError

    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    ray = SimpleNamespace(init=refuses)
    with server(bytes([0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 9])) as port:
        for address in (f"ray://127.0.0.1:{port}", f"127.0.0.1:{port}"):
            with pytest.raises(InputError, match="cannot be joined: ConnectionError") as caught:
                _connect(ray, address)
            for named in ("HOST:6379", "ray://HOST:10001", "RAY_AUTH_MODE=token"):
                assert named in str(caught.value.hint)


@contextlib.contextmanager
def server(greeting: bytes | None) -> Iterator[int]:
    """Something that takes connections, and greets each; its port."""
    with socket.create_server(("127.0.0.1", 0)) as listens, contextlib.ExitStack() as kept:

        def serve() -> None:
            with contextlib.suppress(OSError):  # nobody listens any more
                while True:
                    there = kept.enter_context(listens.accept()[0])
                    if greeting is None:
                        continue
                    with contextlib.suppress(OSError):  # it has heard enough, and is gone
                        there.recv(100)
                        there.sendall(greeting)
                        there.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield listens.getsockname()[1]
        finally:
            listens.shutdown(socket.SHUT_RDWR)  # wakes who waits in accept
            thread.join()


def state(executor: RayExecutor, name: str) -> WorkerState:
    return next(found for found in executor.states() if found.name == name)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes on loopback; the head runs no worker."""
    pytest.importorskip("ray", reason="the extra ray is not installed")
    from ray.cluster_utils import Cluster

    made = patiently(lambda: Cluster(initialize_head=True, head_node_args={
        "num_cpus": 0, "include_dashboard": False, "object_store_memory": 80 * 2**20,
    }))  # fmt: skip
    yield made
    made.shutdown()


def node(cluster: Any) -> Any:
    return patiently(lambda: cluster.add_node(
        num_cpus=1, resources={"cpu": 1}, object_store_memory=80 * 2**20, wait=False
    ))  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_workers_of_a_cluster_end_are_lost_with_their_node_and_leave_with_the_search(
    cluster: Any, tmp_path: Path
) -> None:
    one = node(cluster)
    before = signal.getsignal(signal.SIGTERM)
    executor = RayExecutor(cluster.address)
    assert signal.getsignal(signal.SIGTERM) is before
    try:
        until(lambda: executor._ray.cluster_resources().get("cpu") == 1.0)
        executor.start(job(tmp_path, "print('no such study'); raise SystemExit(2)"), "1")
        until(lambda: state(executor, "1").state == "ended")
        found = state(executor, "1")
        assert (found.code, found.why, found.is_final) == (2, "no such study", True)

        executor.start(job(tmp_path, SLEEPS), "2")
        executor.start(job(tmp_path, SLEEPS), "3")  # waits: the node has room for one
        until(lambda: state(executor, "2").state == "running")
        assert state(executor, "3").state == "queued"
        cluster.remove_node(one, allow_graceful=False)
        until(lambda: state(executor, "2").state == "ended")
        lost = state(executor, "2")
        assert lost.code is None
        assert not lost.is_final

        node(cluster)
        until(lambda: state(executor, "3").state == "running")
    finally:
        executor.stop()
    assert [found.state for found in executor.states()] == ["ended", "ended", "ended"]


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_a_cluster_that_is_not_there_is_named_at_once(address: str) -> None:
    with pytest.raises(InputError, match=f"Ray cluster at {address} cannot be joined"):
        _answers(address)
