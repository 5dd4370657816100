"""`prices refresh` with a stand-in for gpuhunt: what is kept, what is refused, what stays."""

from __future__ import annotations

import socket
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from autotune.app import refresh_prices as refreshing
from autotune.app.refresh_prices import device_of, refresh_prices
from autotune.catalog.prices.prices import load_prices, price_for, refused_prices
from autotune.domain.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TODAY = datetime.now(UTC).date().isoformat()


@dataclass
class Item:
    """An offer as gpuhunt 0.1.34 hands it out, as far as it is read."""

    instance_name: str
    price: float
    gpu_name: str | None
    gpu_memory: float | None
    gpu_count: int = 1
    spot: bool = False
    location: str = "us-east-1"
    flags: tuple[str, ...] = ()


class GPUHuntError(Exception):
    """The name that gpuhunt raises when no provider can be loaded."""


H100 = Item("p5.4xlarge", 6.88, "H100", 80)
Answers = dict[str, "list[Item] | Exception"]


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Answers], list[str]]:
    """Installs a gpuhunt that answers so; gives the providers it is asked for."""
    monkeypatch.delenv("AUTOTUNE_OFFLINE", raising=False)
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path))

    def install(answers: Answers) -> list[str]:
        asked: list[str] = []

        def query(*, provider: str, **_: Any) -> list[Item]:
            asked.append(provider)
            assert socket.getdefaulttimeout() == refreshing.SILENT_S
            answer = answers.get(provider, [])
            if isinstance(answer, Exception):
                raise answer
            return answer

        module = ModuleType("gpuhunt")
        vars(module).update(query=query)
        monkeypatch.setitem(sys.modules, "gpuhunt", module)
        return asked

    return install


def test_each_provider_is_stored_and_used(offer: Any, tmp_path: Path) -> None:
    offer({"aws": [H100, Item("p5.4xlarge", 2.2, "H100", 80, spot=True)], "gcp": RuntimeError()})
    found = {each.provider: each for each in refresh_prices()}
    assert found["aws"].rows == 1
    assert found["gcp"].rows == 0
    assert found["gcp"].problem == "gcp: RuntimeError"
    assert sorted(path.name for path in (tmp_path / "prices").iterdir()) == ["aws.csv"]
    (row,) = [price for price in load_prices() if price.provider == "aws"]
    assert (row.device_name, row.usd_per_hour, row.spot_usd_per_hour) == ("h100-sxm", 6.88, 2.2)
    assert row.as_of == TODAY
    assert refused_prices() == ()


def test_the_cheapest_region_and_the_median_spot_price_are_kept(offer: Any) -> None:
    offer({"aws": [
        H100, Item("p5.4xlarge", 5.0, "H100", 80, location="us-west-2"),
        *(Item("p5.4xlarge", usd, "H100", 80, spot=True) for usd in (1.0, 2.0, 9.0)),
    ]})  # fmt: skip
    refresh_prices(["aws"])
    (row,) = [price for price in load_prices() if price.provider == "aws"]
    assert (row.usd_per_hour, row.spot_usd_per_hour, row.region) == (5.0, 2.0, "us-west-2")


def test_offers_on_other_terms_are_no_prices_by_the_hour(offer: Any) -> None:
    ahead = Item("a3-highgpu-1g", 3.0, "H100", 80, flags=("gcp-dws-calendar-mode",))
    offer({"gcp": [Item("a3-highgpu-1g", 5.0, "H100", 80), ahead]})
    refresh_prices(["gcp"])
    (row,) = [price for price in load_prices() if price.source.startswith("gpuhunt")]
    assert row.usd_per_hour == 5.0


def test_a_failing_provider_keeps_its_last_good_copy(offer: Any, tmp_path: Path) -> None:
    offer({"aws": [H100]})
    refresh_prices(["aws"])
    before = (tmp_path / "prices" / "aws.csv").read_bytes()
    offer({"aws": ConnectionError("no route"), "gcp": [Item("a3-highgpu-1g", 5.0, "H100", 80)]})
    found = {each.provider: each for each in refresh_prices(["aws", "gcp"])}
    assert (found["aws"].kept, found["gcp"].rows) == (TODAY, 1)
    assert (tmp_path / "prices" / "aws.csv").read_bytes() == before


def test_rows_that_do_not_hold_never_replace_good_ones(offer: Any, tmp_path: Path) -> None:
    offer({"aws": [H100]})
    refresh_prices(["aws"])
    before = (tmp_path / "prices" / "aws.csv").read_bytes()
    offer({"aws": [Item("p5", 1e9, "H100", 80)], "gcp": [Item("a3", 5.0, "H100", 80)]})
    found = {each.provider: each for each in refresh_prices(["aws", "gcp"])}
    assert "1000 USD" in found["aws"].problem
    assert (tmp_path / "prices" / "aws.csv").read_bytes() == before
    assert [path.name for path in (tmp_path / "prices").iterdir() if path.is_dir()] == []


def test_without_a_network_nothing_changes_and_it_is_said_once(offer: Any, tmp_path: Path) -> None:
    offer({"aws": [H100]})
    refresh_prices(["aws"])
    asked = offer({"aws": GPUHuntError("Failed to load catalogs of all providers")})
    with pytest.raises(InputError) as caught:
        refresh_prices()
    assert asked == ["aws"]
    assert "no provider's prices could be fetched" in caught.value.message
    assert caught.value.hint is not None
    assert f"aws of {TODAY}" in caught.value.hint
    assert price_for("h100-sxm") is not None
    assert (tmp_path / "prices" / "aws.csv").exists()


def test_offline_nothing_is_fetched(offer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = offer({"aws": [H100]})
    monkeypatch.setenv("AUTOTUNE_OFFLINE", "1")
    with pytest.raises(InputError, match="AUTOTUNE_OFFLINE is set"):
        refresh_prices()
    assert asked == []


def test_without_gpuhunt_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AUTOTUNE_OFFLINE", raising=False)
    monkeypatch.setitem(sys.modules, "gpuhunt", None)
    with pytest.raises(InputError) as caught:
        refresh_prices()
    assert "pip install" in (caught.value.hint or "")


def test_an_unknown_provider_is_an_error_with_close_names(offer: Any) -> None:
    asked = offer({})
    with pytest.raises(InputError, match="did you mean lambda"):
        refresh_prices(["lamda"])
    assert asked == []


def test_our_name_of_a_provider_is_understood(offer: Any) -> None:
    asked = offer({"lambdalabs": [Item("gpu_1x_h100_pcie", 2.49, "H100", 80)]})
    (found,) = refresh_prices(["lambda"])
    assert (asked, found.provider, found.rows) == (["lambdalabs"], "lambda", 1)


def test_a_folder_that_cannot_be_written_is_no_bug(offer: Any, tmp_path: Path) -> None:
    (tmp_path / "prices").write_text("a file where the folder should be")
    offer({"aws": [H100]})
    with pytest.raises(InputError, match="nothing was changed"):
        refresh_prices(["aws"])


@pytest.mark.parametrize(
    ("item", "device"),
    [
        (Item("p4d.24xlarge", 20.0, "A100", 40, 8), "a100-sxm4-40gb"),
        (Item("p4de.24xlarge", 20.0, "A100", 80, 8), "a100-sxm4-80gb"),
        (Item("Standard_NC24ads_A100_v4", 4.0, "A100", 80), "a100-pcie-80gb"),
        (Item("Standard_ND96isr_H100_v5", 90.0, "H100", 80, 8), "h100-sxm"),
        (Item("a3-highgpu-8g", 80.0, "H100", 80, 8), "h100-sxm"),
        (Item("gpu_1x_h100_pcie", 2.49, "H100", 80), "h100-pcie"),
        (Item("gpu_8x_h100_sxm5", 20.0, "H100", 80, 8), "h100-sxm"),
        (Item("NVIDIA H100 80GB HBM3", 3.0, "H100", 80), "h100-sxm"),
        (Item("BM.GPU4.8", 24.4, "A100", 40, 8), "a100-sxm4-40gb"),
        (Item("1H100.80S.30V", 2.29, "H100", 80), "h100-sxm"),
        (Item("2A100.44V", 2.58, "A100", 80, 2), "a100-sxm4-80gb"),
        (Item("some box", 3.0, "H100", 80), "h100-pcie"),  # not said: the slower board
        (Item("g6.xlarge", 0.8, "L4", 24), "l4"),
        (Item("x", 0.5, "RTX4090", 24), "rtx-4090"),
        (Item("x", 0.5, "RTX4090", 48), None),  # modified boards are another device
        (Item("x", 0.5, "V100", 32), "v100-sxm2-32gb"),
        (Item("x", 0.5, "A100", None), None),
        (Item("x", 0.5, "TPUv4", 32), None),
        (Item("x", 0.5, None, None, 0), None),
    ],
)
def test_a_board_is_known_by_name_memory_and_form(item: Item, device: str | None) -> None:
    assert device_of(item) == device
