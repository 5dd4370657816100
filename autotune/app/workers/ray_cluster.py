"""Workers as tasks of Ray, on this machine or on a cluster that runs already.

Each worker is one task with the GPUs that it needs, on a node that has the device. It is never
retried by Ray itself: what a lost node leaves behind is the study's to give to another worker. A
task ends with its driver, and the worker with its task.
Source: Ray 2.60, ray.remote (num_gpus, resources, max_retries), accelerator types as resources
`accelerator_type:NAME`, ray.cancel.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.app.workers.executor import LEAVE_S, TOLD, WorkerState, end, last_words, started
from autotune.catalog.software import install_command
from autotune.domain.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.app.workers.executor import WorkerJob

ANSWER_S = 5.0  # for the head of a cluster to take a connection
LOOK_S = 0.2
FRAME_HEAD, SETTINGS = 9, 4  # of HTTP/2: bytes before a frame, and a kind of it
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, SETTINGS, 0, 0, 0, 0, 0])
SHARE = 0.001  # of an accelerator type: it marks a node, and is not used up
THREADS = "OMP_NUM_THREADS"
CLIENT, FOUND = "ray://", ("auto", "local")  # addresses: of Ray's client, and those it finds
PORT, CLIENT_PORT, MOST_PORT = 6379, 10001, 65535  # its own, where nobody says another
AUTH_MODE = "RAY_AUTH_MODE"
RUNS = f"`ray status` says whether it runs; --ray-address HOST:{PORT} names its head"
_TYPE = "accelerator_type:"


class RayExecutor:
    """Tasks of one Ray cluster. Raises InputError without Ray, or without its cluster."""

    def __init__(self, address: str | None = None) -> None:
        """address: of a running cluster ("auto", "HOST:6379", "ray://HOST:10001"); None: here."""
        try:
            import ray
        except ImportError:
            msg = "--executor ray needs Ray, which is not installed"
            raise InputError(msg, install_command("ray")) from None
        self._ray = ray
        self._tasks: dict[str, tuple[Any, WorkerJob]] = {}
        self._ended: dict[str, WorkerState] = {}
        self._own = not ray.is_initialized()
        if self._own:
            _connect(ray, address)

    def start(self, job: WorkerJob, name: str) -> None:
        """One more task. Raises InputError where no node could ever run it."""
        wanted = _resources(job, self._ray.cluster_resources())
        options: dict[str, Any] = {
            "num_cpus": 1, "num_gpus": job.gpus, "resources": wanted, "max_retries": 0,
            "name": f"autotune-{name}",
        }  # fmt: skip
        task = self._ray.remote(_work).options(**options)
        threads = {THREADS: os.environ[THREADS]} if THREADS in os.environ else {}
        handle = task.remote(list(job.argv), {**threads, **job.environment}, str(job.log(name)))
        self._tasks[name] = (handle, job)

    def states(self) -> list[WorkerState]:
        """How each is; a node that was lost took its worker along."""
        living = {name: found for name, found in self._tasks.items() if name not in self._ended}
        handles = [handle for handle, _ in living.values()]
        done: set[Any] = set()
        if handles:
            ready, _ = self._ray.wait(handles, num_returns=len(handles), timeout=0)
            done = set(ready)
        for name, (handle, _) in living.items():
            if handle in done:
                self._ended[name] = self._result(name, handle)
        return [
            self._ended.get(name)
            or WorkerState(name, "running" if job.log(name).exists() else "queued")
            for name, (_, job) in self._tasks.items()
        ]

    def _result(self, name: str, handle: Any) -> WorkerState:  # noqa: ANN401 - Ray's reference
        try:
            code, why = self._ray.get(handle, timeout=LEAVE_S)
        except self._ray.exceptions.RayError as error:  # a lost node, a killed or cancelled task
            return WorkerState(name, "ended", None, f"{type(error).__name__}: {error}"[:TOLD])
        return WorkerState.of_exit(name, code, why)

    def stop(self) -> None:
        """Cancel every task, wait until its worker has left, and leave the cluster."""
        living = [h for name, (h, _) in self._tasks.items() if name not in self._ended]
        for handle in living:
            with contextlib.suppress(Exception):
                self._ray.cancel(handle, force=False)
        if living:
            with contextlib.suppress(Exception):
                self._ray.wait(living, num_returns=len(living), timeout=2 * LEAVE_S)
        self.states()
        for name, (handle, _) in self._tasks.items():
            if name not in self._ended:
                with contextlib.suppress(Exception):
                    self._ray.cancel(handle, force=True)
                self._ended[name] = WorkerState(name, "ended", None, "cancelled")
        if self._own:
            self._ray.shutdown()


def _connect(ray: Any, address: str | None) -> None:  # noqa: ANN401 - a module without types
    """Join the cluster, or start one on this machine."""
    _answers(address)
    before = signal.getsignal(signal.SIGTERM)
    here: dict[str, Any] = {} if address else {"include_dashboard": False}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what it warns of before it gives up is said below
            ray.init(address=address or "local", log_to_driver=False, logging_level="ERROR", **here)
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        where = f"the Ray cluster at {address}" if address else "Ray on this machine"
        said = " ".join(str(error).split())[:TOLD]
        msg = f"{where} cannot be joined: {type(error).__name__}: {said}"
        raise InputError(msg, _why_silent(address)) from None
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # Ray takes it: a search leaves in its own way


def _why_silent(address: str | None) -> str:
    """What to look at where what listens is Ray's, and does not let us in."""
    if address is None or address in FOUND:
        return RUNS
    ports = f"HOST:{PORT} is the port of its head, ray://HOST:{CLIENT_PORT} that of its clients"
    mode = "" if os.environ.get(AUTH_MODE) else f"; one that asks for a token: {AUTH_MODE}=token"
    return f"`ray status` says whether it runs; {ports}{mode}"


def _answers(address: str | None) -> None:
    """Raise InputError for what is no address, or where nobody listens: Ray tries for minutes."""
    if address is None or address in FOUND:
        return
    client = address.startswith(CLIENT)
    host, _, port = address.removeprefix(CLIENT).rpartition(":")
    named = host and not set(host) & set("/ @?")
    if not named or not port.isdecimal() or not 0 < int(port) <= MOST_PORT:
        bare = address.removeprefix(CLIENT)
        msg = f"--ray-address {address[:80]!r} must be HOST:PORT, ray://HOST:PORT or auto"
        hint = "leave it out, and a cluster of this machine is started"
        if bare and not set(bare) & set(":/ @?"):
            whole = f"{CLIENT}{bare}:{CLIENT_PORT}" if client else f"{bare}:{PORT}"
            hint = f"its port is absent: --ray-address {whole}, where Ray has its own one"
        raise InputError(msg, hint)
    try:
        with socket.create_connection((host.strip("[]"), int(port)), ANSWER_S) as there:
            _speaks_grpc(there)
    except (OSError, ValueError, OverflowError) as error:
        msg = f"the Ray cluster at {str(address)[:80]} cannot be joined: {error}"
        raise InputError(msg, RUNS) from None


def _speaks_grpc(there: socket.socket) -> None:
    """Raise OSError where what listens is no head of Ray, which greets as HTTP/2 has it.

    Source: RFC 9113, section 3.4: a server's first frame is SETTINGS (type 4).
    """
    if os.environ.get("RAY_USE_TLS", "0") not in {"", "0"}:
        return  # it greets once the connection is encrypted
    there.settimeout(2.0 * ANSWER_S)  # a Ray that is coming up greets as soon as it takes us
    there.sendall(PREFACE)
    heard = b""
    while len(heard) < FRAME_HEAD and (more := there.recv(FRAME_HEAD - len(heard))):
        heard += more
    if len(heard) < FRAME_HEAD or heard[3] != SETTINGS:
        msg = f"what listens there is not Ray; it says {heard!r}"
        raise OSError(msg)


def _resources(job: WorkerJob, there: Mapping[str, float]) -> dict[str, float]:
    """What marks the nodes that have the device: its own name, else Ray's accelerator type.

    A cluster that marks nothing gives any node with enough GPUs; a worker there refuses another
    device by itself. Raises InputError where no node can ever run the worker.
    """
    if there.get("GPU", 0.0) < job.gpus:
        msg = f"a worker needs {job.gpus} GPUs, and the Ray cluster has {there.get('GPU', 0):g}"
        raise InputError(msg, "`ray start --num-gpus N` says how many a node has")
    if job.device in there:
        return {job.device: float(max(job.count, 1))}
    types = [name.removeprefix(_TYPE) for name in there if name.startswith(_TYPE)]
    if not job.gpus or not types:
        return {}
    chip = job.device.split("-")[0]
    own = [name for name in types if name.casefold().split("-")[0] == chip]
    if not own:
        msg = f"no node of the Ray cluster has {job.device}; it has {', '.join(sorted(types))}"
        hint = f"""`ray start --resources '{{"{job.device}": N}}'` marks nodes that have it"""
        raise InputError(msg, hint)
    return {_TYPE + own[0]: SHARE}


def _work(argv: list[str], environment: dict[str, str], log: str) -> tuple[int, str]:
    """In a process of Ray on the node: run the worker, and be gone when the task is cancelled.

    Returns its exit code (negative: the signal) and the last words of it.
    """
    kept = Path(log)
    os.environ.pop(THREADS, None)  # Ray's one thread is not what the run would have
    process = started(argv, environment, kept)
    try:
        while process.poll() is None:
            time.sleep(LOOK_S)
    except BaseException:  # cancelled: Ray raises KeyboardInterrupt here
        end(process)
        raise
    return process.returncode, last_words(kept)
