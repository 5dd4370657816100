"""`prices refresh` with gpuhunt itself: its classes, its file format, its own loading over HTTP."""

from __future__ import annotations

import functools
import gc
import io
import threading
import warnings
import zipfile
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from autotune.app.refresh_prices import BOARDS, PROVIDERS, WITHOUT_KEY, refresh_prices
from autotune.catalog.prices.prices import load_prices, price_for, refused_prices
from autotune.domain.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# gpuhunt leaves the answers of missing files open, whenever they are collected.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
gpuhunt = pytest.importorskip("gpuhunt")
storage = pytest.importorskip("gpuhunt._internal.storage")


def item(provider: str, instance: str, gpu: str, memory: float, price: float, **more: Any) -> Any:
    """An offer of gpuhunt's own class."""
    facts = {
        "location": "r1", "cpu": 16, "memory": 128.0, "gpu_count": 1, "spot": False,
        "disk_size": None, "gpu_vendor": gpuhunt.AcceleratorVendor.NVIDIA, **more,
    }  # fmt: skip
    return gpuhunt.CatalogItem(
        provider=provider, instance_name=instance, gpu_name=gpu, gpu_memory=memory, price=price,
        **facts,
    )  # fmt: skip


OFFERS = {
    "aws": [
        item("aws", "p5.48xlarge", "H100", 80.0, 55.04, gpu_count=8),
        item("aws", "p5.48xlarge", "H100", 80.0, 60.54, gpu_count=8, location="r2"),
        item("aws", "p5.48xlarge", "H100", 80.0, 25.0, gpu_count=8, spot=True),
        item("aws", "g6f.large", "L4", 3.0, 0.2),
    ],
    "gcp": [
        item("gcp", "a3-highgpu-8g", "H100", 80.0, 88.49, gpu_count=8),
        item("gcp", "a3-highgpu-8g", "H100", 80.0, 30.0, gpu_count=8,
             flags=["gcp-dws-calendar-mode"], provider_data={"is_dws_calendar_mode": True}),
    ],
    "runpod": [
        item("runpod", "NVIDIA H100 80GB HBM3", "H100", 80.0, 2.99),
        item("runpod", "NVIDIA H100 80GB HBM3", "H100", 80.0, 8.0, gpu_count=8,
             flags=["runpod-cluster"], provider_data={"pod_counts": [2, 3]}),
    ],
    "verda": [
        item("verda", "1H100.80S.30V", "H100", 80.0, 2.29),
        item("verda", "1A100.22V", "A100", 80.0, 1.29),
        item("verda", "1L40S.20V", "L40S", 48.0, 1.1),
    ],
    "oci": [item("oci", "BM.GPU.H100.8", "H100", 80.0, 80.0, gpu_count=8)],
}  # fmt: skip


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder and says nothing."""

    def log_message(self, *_: Any) -> None:
        """No log."""


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The folder that gpuhunt takes its published catalogues from."""
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("AUTOTUNE_OFFLINE", raising=False)
    folder = tmp_path / "bucket"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("GPUHUNT_CATALOG_URL", f"http://127.0.0.1:{server.server_port}")
    gpuhunt.default_catalog.cache_clear()
    yield folder
    server.shutdown()
    thread.join()
    server.server_close()
    with warnings.catch_warnings():  # gpuhunt leaves the answers of missing files open
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def publish(bucket: Path, name: str, items: list[Any], *, cut: bool = False) -> None:
    """As the collector of gpuhunt does: a version, and a CSV of its own writer in a zip."""
    folder = bucket / name / "20261101"
    folder.mkdir(parents=True, exist_ok=True)
    (bucket / name / "version").write_text("20261101\n")
    storage.dump(items, str(folder / "table.csv"))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.write(folder / "table.csv", f"{name}.csv")
    content = packed.getvalue()
    (folder / "catalog.zip").write_bytes(content[: len(content) // 2] if cut else content)
    gpuhunt.default_catalog.cache_clear()


def stored(provider: str) -> list[tuple[str, str, int, float, float | None]]:
    return [
        (p.instance, p.device_name, p.count, p.usd_per_hour, p.spot_usd_per_hour)
        for p in load_prices()
        if p.provider == provider and p.source.startswith("gpuhunt")
    ]


def test_offers_of_gpuhunt_become_prices_of_the_boards_that_arrive(bucket: Path) -> None:
    for name, items in OFFERS.items():
        publish(bucket, name, items)
    found = {each.provider: each for each in refresh_prices(list(OFFERS))}
    assert {name: each.rows for name, each in found.items()} == {
        "aws": 1, "gcp": 1, "runpod": 1, "verda": 3, "oci": 1,
    }  # fmt: skip
    assert stored("aws") == [("p5.48xlarge", "h100-sxm", 8, 55.04, 25.0)]
    assert stored("oci") == [("BM.GPU.H100.8", "h100-sxm", 8, 80.0, None)]
    assert stored("verda") == [
        ("1A100.22V", "a100-sxm4-80gb", 1, 1.29, None),
        ("1H100.80S.30V", "h100-sxm", 1, 2.29, None),
        ("1L40S.20V", "l40s", 1, 1.1, None),
    ]
    price = price_for("h100-sxm")
    assert price.usd_per_hour == 2.29
    assert refused_prices() == ()


def test_prices_that_are_booked_ahead_or_need_a_cluster_are_no_offers(bucket: Path) -> None:
    publish(bucket, "gcp", OFFERS["gcp"])
    publish(bucket, "runpod", OFFERS["runpod"])
    refresh_prices(["gcp", "runpod"])
    assert stored("gcp") == [("a3-highgpu-8g", "h100-sxm", 8, 88.49, None)]
    assert stored("runpod") == [("offers", "h100-sxm", 1, 2.99, None)]


def test_a_provider_that_is_cut_short_keeps_its_last_good_copy(bucket: Path) -> None:
    publish(bucket, "verda", OFFERS["verda"])
    publish(bucket, "oci", OFFERS["oci"])
    refresh_prices(["verda", "oci"])
    publish(bucket, "verda", OFFERS["verda"], cut=True)
    found = {each.provider: each for each in refresh_prices(["verda", "oci"])}
    assert (found["verda"].rows, found["oci"].rows) == (0, 1)
    assert found["verda"].kept is not None
    assert len(stored("verda")) == 3


def test_an_empty_bucket_is_said_once_and_changes_nothing(bucket: Path) -> None:
    assert not list(bucket.iterdir())
    with pytest.raises(InputError, match="Failed to load catalogs of all providers"):
        refresh_prices()
    assert stored("aws") == []


def test_every_provider_and_board_is_one_that_gpuhunt_knows() -> None:
    catalog = pytest.importorskip("gpuhunt._internal.catalog")
    assert set(PROVIDERS) <= {*catalog.OFFLINE_PROVIDERS, *catalog.ONLINE_PROVIDERS}
    assert set(catalog.OFFLINE_PROVIDERS) <= set(WITHOUT_KEY)
    known = {gpu.name for gpu in [*gpuhunt.KNOWN_NVIDIA_GPUS, *gpuhunt.KNOWN_AMD_GPUS]}
    assert set(BOARDS) <= known
