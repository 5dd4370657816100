"""What holds for every test: Ctrl-C works, nobody asks the hub or reads a user's cache or home.

Under several workers (`-n 2 --dist loadfile --no-loadscope-reorder`) the tests of a file stay
together and in their order, and what takes long begins first.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode does not: builders lives here
from parts import SERVICES, Parts

# The same examples each time, so that a change is judged and not the draw; new ones are drawn with
# `pytest --hypothesis-profile=default`. How long one takes is the machine's affair.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


def pytest_configure(config: pytest.Config) -> None:
    """Take SIGINT back where it is ignored, as in `make test &` of a script and under some CI.

    Children inherit an ignored signal, and a Python that starts so never raises KeyboardInterrupt.
    """
    os.environ["AUTOTUNE_OFFLINE"] = "1"
    os.environ["HF_HUB_CACHE"] = str(Path(tempfile.gettempdir()) / f"no-hub-cache-{os.getpid()}")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(Parts(), "parts")
    if config.getoption("numprocesses", None):  # they are the parallelism, and begin with this:
        os.environ["OMP_NUM_THREADS"] = "1"  # numpy, which the warnings' filters import, reads it


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Nobody looks for garbage among the thousands of tests and modules, which stay to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files with slow tests or services first, so that no worker is left alone with them."""
    if not hasattr(config, "workerinput"):
        return
    long = ("slow", SERVICES)
    slow = {item.path for item in items if any(map(item.get_closest_marker, long))}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="session", autouse=True)
def _home_and_runs_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is learned, traced and written lands in no user's home and not in the checkout.

    PYTHON, with which `make` may have been told its interpreter, would be run.sh's.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHON", raising=False)
        patch.setenv("AUTOTUNE_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("AUTOTUNE_RUNS", str(tmp_path_factory.mktemp("runs")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _prices_do_not_age() -> Iterator[None]:
    """Prices are as old as on this day, so that no test fails on a later one.

    It is the day of `bench.pins`. Only a test that starts a process meets the real clock.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("autotune.catalog.prices.prices.today", lambda: date(2026, 11, 22))
        yield


@pytest.fixture(scope="session", autouse=True)
def _nobody_waits_for_the_disk() -> Iterator[None]:
    """No test cuts the power, so what is written need not reach the disk before it goes on.

    Processes that a test starts wait as a user's do; a test that counts the calls still counts.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _handle: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _traced_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What the installed code holds in memory is traced once a run, whatever home a test has."""
    own = tmp_path_factory.getbasetemp()
    kept = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "traced"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("autotune.trace.client.home_dir", lambda: kept)
        yield


@pytest.fixture(scope="session")
def tracer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One process that traces for all tests, which begins with the first trace."""
    from builders import PATIENT_S

    from autotune.trace.client import Tracer

    with Tracer(cache=tmp_path_factory.mktemp("traces"), limit_s=PATIENT_S) as found:
        yield found


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home, and a folder for runs, of the test's own."""
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AUTOTUNE_RUNS", str(tmp_path / "runs"))
    return tmp_path / "home"


@pytest.fixture(scope="session")
def build() -> Any:
    """tests/builders.py, as one fixture."""
    import builders

    return builders


@pytest.fixture(scope="session")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Typed command lines that change nothing, each once: tests/commandline.py."""
    from commandline import Answers

    return Answers(tmp_path_factory.mktemp("answers"))


@pytest.fixture(scope="session")
def fitted_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The fits of the shipped rows are made once: tests/shippedfits.py."""
    from shippedfits import remember

    with pytest.MonkeyPatch.context() as patch:
        remember(patch, tmp_path_factory.getbasetemp())
        yield


@pytest.fixture(scope="session")
def validation(fitted_once: None, tmp_path_factory: pytest.TempPathFactory) -> Any:  # noqa: ARG001 - only that it is so
    """`validate` of the shipped rows, once a run."""
    from shippedfits import once_a_run

    from autotune.app.validate import run_validation

    return once_a_run(tmp_path_factory.getbasetemp(), "validation", run_validation)


@pytest.fixture
def validated_once(validation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`autotune validate` of the shipped rows prints what that one run of it found."""
    monkeypatch.setattr("autotune.app.validate.run_validation", lambda *_: validation)


@pytest.fixture(scope="session")
def case_a_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of case A, tuned without any verified run; nobody writes into it."""
    from autotune.app.job.load import load_job
    from autotune.app.tune.tune import Options, tune

    top = tmp_path_factory.mktemp("planned")
    job = Path(__file__).parents[1] / "jobs" / "a100_llama7b_int8.yaml"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOTUNE_HOME", str(top / "home"))
        tune(load_job(job), Options(fidelity="formula", trials=5, run_dir=top / "run"))
    return top / "run"


@pytest.fixture
def fake_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes of a command line are processes that report round figures; real ones: tests/walk."""
    from functools import partial

    from autotune.app.probing import plan

    worker = (str(Path(__file__).parent / "probe" / "fake_worker.py"), "good")
    monkeypatch.setattr(plan, "ProbeOptions", partial(plan.ProbeOptions, worker=worker))


@pytest.fixture(scope="session")
def samples() -> Any:
    """Answers made by hand: tests/samples.py."""
    from samples import made

    return made()
