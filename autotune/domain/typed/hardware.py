"""A machine of the job file as a person types it: devices, price or ownership, and its host.

Annotations are values in here, not text that pydantic would have to parse and evaluate.
"""

from typing import Annotated, Literal, Self

from pydantic import Tag, model_validator

from autotune.domain.typed.values import (
    MAPPING,
    MAX_DEVICES,
    TEXT,
    Duration,
    Electricity,
    Money,
    OfferPrice,
    Rate,
    Section,
    Size,
    Text,
    real,
    refuse,
    shown,
    text_or_mapping,
    whole,
)


class PerMonth(Section):
    """A subscription: dollars a month for so many hours of use."""

    per_month: Money
    hours: Annotated[float, real(0.0, 744.0, open_low=True)]


class OwnedSection(Section):
    """A machine of one's own: an hour more costs its electricity, in full also its purchase."""

    electricity: Electricity
    watts: Annotated[float, real(0.0, 1e5, open_low=True)] | None = None  # of one device
    purchase: Money | None = None  # of the whole machine
    lifetime: Duration | None = None
    utilisation: Annotated[float, real(0.0, 1.0, open_low=True)] | None = None  # share in use
    cost: Literal["marginal", "full"] | None = None  # what the answer counts; marginal

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.purchase is None:
            stated = [k for k in ("lifetime", "utilisation") if getattr(self, k) is not None]
            if stated:
                refuse(f"{', '.join(stated)} spread the purchase, and none is stated")
            if self.cost == "full":
                refuse("cost: full counts the purchase; state purchase, such as 2000 USD")
        return self


class HostSection(Section):
    """The machine around the devices. What is left out is assumed and said so."""

    cores: Annotated[int, whole(1, 10_000)] | None = None
    ram: Size | None = None
    shm: Size | None = None
    disk: Size | None = None
    checkpoint_write: Rate | None = None
    storage_read: Rate | None = None
    download: Rate | None = None
    wsl: bool | None = None


Price = Annotated[
    Annotated[OfferPrice, Tag(TEXT)] | Annotated[PerMonth, Tag(MAPPING)],
    text_or_mapping(
        'a price carries its unit: "2.50 USD/h" (whole offer), "1.99 USD/gpu-h", free, '
        "or {per_month: 10 USD, hours: 100}"
    ),
]


class HardwareSection(Section):
    """One offer: devices of one kind, on one host or several alike, at one price."""

    gpu: Text
    instance: Text | None = None  # "aws p4d.24xlarge", which these devices are
    count: Annotated[int, whole(1, MAX_DEVICES)] = 1  # of all machines together
    nodes: Annotated[int, whole(1, MAX_DEVICES)] = 1  # machines
    network: Text | None = None  # what joins them: "infiniband-ndr", "efa", "ethernet-25g"
    price: Price | None = None
    owned: OwnedSection | None = None
    spot: bool = False
    interruptions_per_hour: Annotated[float, real(0.0, 60.0)] | None = None
    interruptions_per_day: Annotated[float, real(0.0, 1440.0)] | None = None
    host: HostSection | None = None

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.price is not None and self.owned is not None:
            refuse("state price or owned, not both")
        rates = (self.interruptions_per_hour, self.interruptions_per_day)
        if None not in rates:
            refuse("state interruptions_per_hour or interruptions_per_day, not both")
        if rates != (None, None) and not self.spot:
            refuse("only spot offers are interrupted; add spot: true")
        if self.count % self.nodes:
            refuse(
                f"count is {self.count} and nodes is {self.nodes}: count is of all machines "
                "together, the same number on each"
            )
        if self.network is not None and self.nodes == 1:
            refuse(f"network {shown(self.network)} joins machines, and nodes is 1")
        return self

    @property
    def per_node(self) -> int:
        """Devices of one machine."""
        return self.count // self.nodes
