"""Prices under $AUTOTUNE_HOME: used when they hold, left out with a reason when they do not."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from autotune.catalog.prices.cache import MAX_FILE_BYTES
from autotune.catalog.prices.prices import load_prices, price_for, refused_prices
from autotune.catalog.prices.table import COLUMNS

if TYPE_CHECKING:
    from pathlib import Path

TODAY = datetime.now(UTC).date()
HEADER = ",".join(COLUMNS)
ROW = f"aws,p5.x,h100-sxm,1,1.11,0.40,us,{TODAY},stated,list,gpuhunt,"


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path))
    (tmp_path / "prices").mkdir()
    return tmp_path


def refreshed(home: Path, text: str, name: str = "aws.csv") -> Path:
    path = home / "prices" / name
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    return path


def test_without_a_cache_the_snapshot_is_what_there_is(home: Path) -> None:
    assert refused_prices() == ()
    assert len(load_prices()) >= 223
    assert (home / "prices").is_dir()


def test_a_refreshed_price_is_used_and_replaces_the_providers_older_rows(home: Path) -> None:
    refreshed(home, f"{HEADER}\n{ROW}\n")
    found = price_for("h100-sxm")
    assert (found.usd_per_hour, found.as_of) == (1.11, TODAY.isoformat())
    assert [price.instance for price in load_prices() if price.provider == "aws"] == ["p5.x"]
    assert any(price.provider == "gcp" for price in load_prices())


def test_a_rewritten_file_is_read_again(home: Path) -> None:
    path = refreshed(home, f"{HEADER}\n{ROW}\n")
    assert price_for("h100-sxm") is not None
    path.write_text(f"{HEADER}\n{ROW.replace('1.11', '1.125')}\n")
    found = price_for("h100-sxm")
    assert found.usd_per_hour == 1.125


def test_the_users_own_table_wins_over_everything(home: Path) -> None:
    refreshed(home, f"{HEADER}\n{ROW}\n")
    own = f"colo,rack 7,h100-sxm,1,9.00,,cellar,{TODAY - timedelta(days=300)},stated,page,mine,"
    (home / "prices.csv").write_text(f"{HEADER}\n{own}\n")
    found = price_for("h100-sxm")
    assert (found.usd_per_hour, found.provider) == (9.0, "colo")


HOSTILE = {
    "empty": "",
    "only a header": f"{HEADER}\n",
    "binary": "\x00\x01\x02" * 100,
    "not UTF-8": f"{HEADER}\n{ROW}\udcff\n",
    "another header": "a,b,c\n1,2,3\n",
    "cut short": f"{HEADER}\n{ROW}\n{ROW[:20]}",
    "a negative price": f"{HEADER}\n{ROW.replace('1.11', '-1.11')}\n",
    "a price of zero": f"{HEADER}\n{ROW.replace('1.11', '0').replace('0.40', '0')}\n",
    "not a number": f"{HEADER}\n{ROW.replace('1.11', 'nan')}\n",
    "infinite": f"{HEADER}\n{ROW.replace('1.11', 'inf')}\n",
    "absurd": f"{HEADER}\n{ROW.replace('1.11', '1e9')}\n",
    "an unknown device": f"{HEADER}\n{ROW.replace('h100-sxm', 'h100-free')}\n",
    "another provider": f"{HEADER}\n{ROW.replace('aws', 'gcp')}\n",
    "the future": f"{HEADER}\n{ROW.replace(str(TODAY), str(TODAY + timedelta(days=30)))}\n",
    "the past": f"{HEADER}\n{ROW.replace(str(TODAY), '1999-01-01')}\n",
    "escape sequences": f"{HEADER}\n{ROW.replace('p5.x', chr(27) + '[2Jp5')}\n",
    "a long cell": f"{HEADER}\n{ROW.replace('p5.x', 'x' * 5000)}\n",
    "a fractional count": f"{HEADER}\n{ROW.replace(',1,1.11', ',1.5,1.11')}\n",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_file_is_left_out_with_a_reason_and_the_snapshot_stands_in(
    home: Path, kind: str
) -> None:
    before = price_for("h100-sxm")
    path = refreshed(home, HOSTILE[kind])
    assert price_for("h100-sxm") == before
    (reason,) = refused_prices()
    assert str(path) in reason
    assert "snapshot" in reason
    assert reason.isprintable()


def test_neither_a_pipe_nor_a_huge_file_is_read(home: Path) -> None:
    os.mkfifo(home / "prices" / "aws.csv")
    with (home / "prices" / "gcp.csv").open("wb") as stream:
        stream.truncate(MAX_FILE_BYTES + 1)
    (home / "prices" / "azure.csv").mkdir()
    reasons = refused_prices()
    assert len(reasons) == 3
    assert sum("not a regular file" in reason for reason in reasons) == 2
    assert sum("larger than" in reason for reason in reasons) == 1


def test_a_file_of_no_providers_name_is_left_out(home: Path) -> None:
    refreshed(home, f"{HEADER}\n{ROW}\n", ".. evil.csv")
    assert any("no provider's" in reason for reason in refused_prices())
