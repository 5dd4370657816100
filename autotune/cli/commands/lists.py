"""`autotune devices`, `models` and `prices`: the catalogue."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from autotune.cli.options import option
from autotune.cli.output import (
    Format,
    FormatOption,
    Output,
    Progress,
    QuietOption,
    print_report,
    warn,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.report.lists.catalogs import Listing

Item = TypeVar("Item")
REFRESH = "refresh"
NameArgument = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Only names that contain this.", show_default=False),
]


def devices(name: NameArgument = "", format_: FormatOption = Format.text) -> None:
    """List the devices of the catalogue.

    Memory, dense rates, bandwidth and sources of each.
    """
    from autotune.catalog.devices import load_devices
    from autotune.report.lists.catalogs import devices_listing

    found = _matching(
        load_devices().values(), name, lambda device: " ".join((device.name, *device.aliases))
    )
    print_listing(devices_listing(found), format_)


def models(name: NameArgument = "", format_: FormatOption = Format.text) -> None:
    """List the models of the catalogue.

    With their exact parameter counts. Any other decoder is described by its config.json.
    """
    from autotune.catalog.models.models import find_model, is_named, load_models
    from autotune.cost.parameters import parameter_count
    from autotune.report.lists.catalogs import models_listing

    found = _matching(load_models().values(), name, lambda model: model.name)
    if not found and is_named(name):  # a fine-tune of one, a copy, a short name
        found = [find_model(name)]
    parameters = {model.name: parameter_count(model) for model in found}
    print_listing(models_listing(found, parameters), format_)


def prices(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|refresh",
            help="Only devices or instances whose names contain this; or fetch today's prices.",
            show_default=False,
        ),
    ] = "",
    provider: Annotated[
        list[str] | None, option("--provider", "Only this provider; repeatable.", "NAME")
    ] = None,
    format_: FormatOption = Format.text,
    quiet: QuietOption = False,
) -> None:
    """List prices by device, provider and date, or refresh them.

    autotune prices refresh fetches today's from the providers and keeps them under AUTOTUNE_HOME.
    """
    if name == REFRESH:
        _refresh(provider or [], format_, quiet=quiet)
        return
    from autotune.catalog.prices.prices import load_prices, refused_prices
    from autotune.domain.errors import close_matches, unknown
    from autotune.report.lists.catalogs import prices_listing

    warn(refused_prices(), quiet=quiet)
    known = load_prices()
    sellers = sorted({price.provider for price in known})
    for asked in provider or []:
        if asked not in sellers:
            what = "provider"
            raise unknown(what, asked[:60], sellers, f"providers: {', '.join(sellers)}")
    found = [
        price
        for price in _matching(known, name, lambda price: f"{price.device_name} {price.instance}")
        if not provider or price.provider in provider
    ]
    if not found and close_matches(name, [REFRESH]):
        what, hint = "device or instance", "`autotune prices refresh` fetches today's prices"
        raise unknown(what, name[:60], [REFRESH], hint)
    print_listing(prices_listing(found), format_)


def _refresh(providers: list[str], chosen: Format, *, quiet: bool) -> None:
    from autotune.app.refresh_prices import refresh_prices
    from autotune.report.lists.catalogs import refreshed_listing

    with Progress(quiet=quiet) as progress:
        found = refresh_prices(providers, progress)
    print_listing(refreshed_listing(found), chosen)


def print_listing(listing: Listing, chosen: Format) -> None:
    """A listing in the format asked for."""
    from autotune.report.lists.catalogs import LISTING_REPORT, listing_json

    print_report(LISTING_REPORT, listing, Output(chosen), json=listing_json)


def _matching(items: Iterable[Item], part: str, text_of: Callable[[Item], str]) -> list[Item]:
    wanted = part.casefold()
    return [item for item in items if wanted in text_of(item).casefold()]
