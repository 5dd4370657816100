from __future__ import annotations

from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.catalog.devices import load_devices
from autotune.catalog.prices.prices import (
    COLUMNS,
    KINDS,
    LISTED,
    load_prices,
    price_for,
    sold_counts,
)
from autotune.catalog.prices.table import ANY_DEVICE, sizes_of
from autotune.catalog.tables import DATA, read_rows
from autotune.domain.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

PRICES = load_prices()
DEVICES = sorted({price.device_name for price in PRICES})


def test_every_row_is_dated_sourced_and_of_a_known_device() -> None:
    assert len(PRICES) >= 223
    for price in PRICES:
        assert price.device_name in load_devices()
        assert price.source
        assert price.kind in KINDS
        assert date(2025, 1, 1) <= date.fromisoformat(price.as_of) <= datetime.now(tz=UTC).date()
        assert price.usd_per_hour > 0 or price.spot_usd_per_hour
        assert price.count >= 1


def test_spot_never_costs_more_than_on_demand() -> None:
    for price in PRICES:
        if price.spot_usd_per_hour and price.usd_per_hour:
            assert price.spot_usd_per_hour < price.usd_per_hour


def test_the_row_whose_on_demand_is_below_spot_is_distrusted() -> None:
    distrusted = [price for price in PRICES if price.suspicious]
    assert [(p.provider, p.device_name) for p in distrusted] == [("gcp", "h100-sxm")]


@pytest.mark.parametrize("name", DEVICES)
def test_the_default_is_the_cheapest_fresh_published_row_where_there_is_one(name: str) -> None:
    found = price_for(name)
    today = max(date.fromisoformat(price.as_of) for price in PRICES)
    newest = {}
    for price in sorted(PRICES, key=lambda p: p.as_of):
        newest[price.provider, price.instance, price.count, price.region, price.device_name] = price
    fresh = [
        price
        for price in newest.values()
        if price.device_name == name
        and price.kind in LISTED
        and price.usd_per_hour
        and not price.suspicious
        and (today - date.fromisoformat(price.as_of)).days <= 120
    ]
    single = [price for price in fresh if 1 in sizes_of(price)]
    if not single:
        return
    assert not found.scaled_from
    assert found.usd_per_hour == pytest.approx(min(p.usd_per_hour for p in single))


@pytest.mark.parametrize(
    ("name", "usd", "provider", "as_of"),
    [
        ("h100-sxm", 3.85, "nebius", "2026-09-25"),  # cheaper ones are sold by eight
        ("a100-sxm4-80gb", 1.79, "runpod", "2026-11-09"),
        ("a100-pcie-80gb", 1.79, "runpod", "2026-11-09"),
        ("t4", 0.526, "aws", "2026-10-31"),
        ("rtx-4090", 0.40, "vast", "2026-06-30"),  # only markets rent it: the median ask
    ],
)
def test_default_prices_that_people_will_look_up(
    name: str, usd: float, provider: str, as_of: str
) -> None:
    found = price_for(name)
    assert (found.usd_per_hour, found.provider, found.as_of) == (usd, provider, as_of)
    assert found.source.startswith(provider)


@pytest.mark.parametrize(
    ("name", "count", "usd", "of"),
    [
        ("a10g", 4, 5.672, 0),  # g5.12xlarge; four g5.xlarge are four machines at 4.02
        ("a10g", 2, 5.672 / 2, 4),
        ("a100-pcie-40gb", 1, 1.33 / 2, 2),
        ("h100-sxm", 8, 8 * 3.20, 0),  # a price per GPU of a board of eight
        ("a100-sxm4-80gb", 4, 4 * 1.79, 0),  # a pod of four
    ],
)
def test_a_price_is_of_a_machine_that_is_sold_or_says_of_which_it_is_a_share(
    name: str, count: int, usd: float, of: int
) -> None:
    found = price_for(name, count)
    assert (found.usd_per_hour, found.scaled_from) == (pytest.approx(usd), of)
    assert (f"sold by {of}, scaled" in found.source) == bool(of)


def test_half_of_an_offer_of_two_is_no_offer_of_one() -> None:
    pair, single = price_for("rtx-6000-ada", 2), price_for("rtx-6000-ada")
    assert pair.instance == "2x-RTX_6000Ada"
    assert single.usd_per_hour > pair.usd_per_hour / 2
    assert not single.scaled_from


def test_more_devices_than_any_machine_has_get_no_price() -> None:
    assert sold_counts("a10g") == (1, 4, 8)
    assert price_for("a10g", 16) is None


def test_every_provider_of_single_prices_is_one_of_the_table() -> None:
    providers = {price.provider for price in PRICES}
    rows = read_rows(DATA / "sold_sizes.csv")
    assert {row["provider"] for row in rows} <= providers
    assert {row["device"] for row in rows} <= {price.device_name for price in PRICES} | {ANY_DEVICE}


@given(st.sampled_from(DEVICES), st.integers(1, 64))
def test_a_price_is_of_the_whole_offer(name: str, count: int) -> None:
    found = price_for(name, count)
    if found is None:
        assert count > max(sold_counts(name))
        return
    assert found.count == count
    assert found.per_gpu() == pytest.approx(found.usd_per_hour / count)
    assert bool(found.scaled_from) == (count not in sold_counts(name))


@given(st.sampled_from(DEVICES))
def test_spot_undercuts_on_demand(name: str) -> None:
    spot, on_demand = price_for(name, spot=True), price_for(name)
    assert on_demand is not None
    assert spot is None or spot.usd_per_hour < on_demand.usd_per_hour


def test_unknown_devices_have_no_price() -> None:
    assert price_for("gb300") is None
    assert price_for("nonsense") is None


HEADER = ",".join(COLUMNS)
GOOD = "me,box,h100-sxm,1,2.0,,any,2026-11-01,stated,list,my invoice,"


def test_a_users_table_is_read(tmp_path: Path) -> None:
    path = tmp_path / "prices.csv"
    path.write_text(f"{HEADER}\n{GOOD}\n")
    (price,) = load_prices(path)
    assert (price.usd_per_hour, price.device_name) == (2.0, "h100-sxm")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a,b\n1,2\n",
        f"{HEADER}\n{GOOD},extra\n",
        f"{HEADER}\n{GOOD.replace('2.0', '-1')}\n",
        f"{HEADER}\n{GOOD.replace('2.0', 'nan')}\n",
        f"{HEADER}\n{GOOD.replace('2.0', '')}\n",
        f"{HEADER}\n{GOOD.replace('2.0', '5000')}\n",
        f"{HEADER}\n{GOOD.replace('h100-sxm', 'h101')}\n",
        f"{HEADER}\n{GOOD.replace('2026-11-01', 'yesterday')}\n",
        f"{HEADER}\n{GOOD.replace('my invoice', '')}\n",
        f"{HEADER}\n{GOOD.replace(',1,', ',0,')}\n",
    ],
)
def test_a_users_broken_table_is_an_input_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "prices.csv"
    path.write_text(text)
    with pytest.raises(InputError):
        load_prices(path)


def test_a_missing_or_binary_table_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read"):
        load_prices(tmp_path / "none.csv")
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(InputError):
        load_prices(tmp_path / "b.csv")
