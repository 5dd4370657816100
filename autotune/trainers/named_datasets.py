"""Which public data sets a trainer's file names: by their hub id, or by the trainer's own name.

Read, and left in the file as they are. A file that lies here is counted by `--data`, not by this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.trainers.parsed import Keys

# Names that a trainer gives to a data set of the hub. Sources: torchtune 0.6.1 datasets/_alpaca.py;
# litgpt 0.5.11 data/alpaca_2k.py.
_COMPONENTS = {
    "torchtune.datasets.alpaca_dataset": "tatsu-lab/alpaca",
    "litgpt.data.alpaca2k": "mhenrichsen/alpaca_2k_test",
}
_MOST = 20  # data sets of one file


def named_datasets(keys: Keys) -> tuple[str, ...]:
    """Hub ids and names, in the file's order; empty where one of them is not a name.

    axolotl: `datasets: - path:`; LLaMA-Factory: `dataset: a,b`; TRL: `dataset_name:`; torchtune:
    `dataset: {source: or _component_:}`; litgpt: `data: {class_path:}`.
    """
    found = list(_stated(keys))
    usable = found and len(found) <= _MOST and all(isinstance(name, str) for name in found)
    return tuple(str(name).strip() for name in found) if usable else ()


def _stated(keys: Keys) -> Iterator[object]:
    several, one = keys.at("datasets"), keys.at("dataset")
    if isinstance(several, list):
        yield from (item.get("path") if isinstance(item, dict) else item for item in several)
    if isinstance(one, str):
        yield from one.split(",")
    elif isinstance(one, dict):
        component = str(one.get("_component_", "")).casefold()
        yield one.get("source") or _COMPONENTS.get(component)
    if keys.at("dataset_name") is not None:
        yield keys.at("dataset_name")
    for key in ("data", "data.class_path"):
        value = keys.at(key)
        if isinstance(value, str) and value.casefold() in _COMPONENTS:
            yield _COMPONENTS[value.casefold()]
