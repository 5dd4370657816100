"""What is said of a device before somebody starts on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from autotune.app.job.load import load_job
from autotune.catalog.device_notes import device_notes, wheel_note
from autotune.catalog.devices import find_device
from autotune.domain.answer.recommendation import Decisive
from autotune.domain.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.domain.device import Offer

TORCH = (2, 13, 0)
JOB = """\
model: Qwen/Qwen2.5-0.5B
method: lora
data: {rows: 1000, max_length: 512, lengths: {mean: 200}}
hardware: [{gpu: m3-max, price: free}]
"""


@pytest.mark.parametrize(
    ("device", "torch", "told"),
    [
        ("p100", (2, 7, 1), False),
        ("p100", (2, 8, 0), True),
        ("v100", (2, 10, 0), False),
        ("v100", (2, 13, 0), True),
        ("t4", (2, 13, 0), False),
        ("mi300x", (2, 13, 0), False),
        ("cpu", (2, 13, 0), False),
    ],
)
def test_a_chip_that_the_wheel_of_torch_leaves_out_is_told(
    device: str, torch: tuple[int, ...], *, told: bool
) -> None:
    note = wheel_note(find_device(device), torch)
    assert (note is not None) == told
    assert not told or (note and "cu126" in note and find_device(device).name in note)


def offer_of(folder: Path, **stated: str) -> Offer:
    path = folder / "job.yaml"
    path.write_text(JOB)
    return load_job(path, set_values=stated).offers[0]


def test_a_mac_has_the_memory_that_is_stated_and_is_told_what_is_assumed(tmp_path: Path) -> None:
    """A laptop with 36 GB was said to hold 68 GiB "with probability 0.98"."""
    assumed = offer_of(tmp_path)
    (note,) = device_notes(assumed, TORCH)
    assert isinstance(note, Decisive)
    assert "--set host.ram=36GB" in note
    assert "128.0 GiB" in note
    stated = offer_of(tmp_path, **{"host.ram": "36GB"})
    assert stated.device.memory_driver_bytes == 36e9
    assert stated.device.memory_torch_bytes == 27e9
    assert stated.host.ram_bytes == 36e9
    assert device_notes(stated, TORCH) == ()


@pytest.mark.parametrize("text", ["mps", "macbook", "Apple M2 Ultra", "m1 pro", "m2"])
def test_a_mac_that_is_not_in_the_table_is_told_which_are(text: str) -> None:
    with pytest.raises(InputError, match="apple-m4-10c") as caught:
        find_device(text)
    assert "host.ram=36GB" in caught.value.hint


@pytest.mark.parametrize("text", ["m60", "max1550", "a100m"])
def test_another_unknown_device_is_no_mac(text: str) -> None:
    with pytest.raises(InputError, match="unknown device"):
        find_device(text)
