from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

import autotune.space.file as space_file
from autotune.domain.candidates import AUTO
from autotune.domain.config import KNOBS
from autotune.domain.errors import InputError
from autotune.space.file import MAX_FILE_BYTES, load_space

if TYPE_CHECKING:
    from pathlib import Path


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_both_shipped_spaces_give_every_knob_but_the_derived_one() -> None:
    for name in ("default", "extended"):
        space = load_space(name)
        assert set(space.values) == set(KNOBS) - {"gradient_accumulation_steps"}
        assert space.name == name


def test_extended_holds_everything_that_default_holds() -> None:
    default, extended = load_space().values, load_space("extended").values
    for name, values in default.items():
        assert set(values) <= set(extended[name])
    assert extended["packing"] == ("off", "on")
    assert extended["prefetch_factor"] == (2, 4, 8)


def test_every_choice_of_a_knob_is_in_the_extended_space() -> None:
    for name, values in load_space("extended").values.items():
        assert set(KNOBS[name].choices) == (set(values) if KNOBS[name].choices else set())


def test_shipped_files_comment_every_knob_with_its_class() -> None:
    for path in space_file._shipped().values():
        comment: list[str] = []
        for line in path.read_text(encoding="utf-8").splitlines():
            name = line.strip().partition(":")[0]
            if line.strip().startswith("#"):
                comment.append(line.strip("# "))
            elif name in KNOBS:
                assert KNOBS[name].knob_class in " ".join(comment), name
                comment = []


def test_a_file_lists_only_what_differs_from_default(tmp_path: Path) -> None:
    space = load_space(written(tmp_path, "knobs:\n  num_dataloader_workers: [3, 5]\n"))
    assert space.values["num_dataloader_workers"] == (3, 5)
    assert space.values["precision"] == load_space().values["precision"]
    assert space.name == "mine"


def test_auto_and_single_values_are_read(tmp_path: Path) -> None:
    text = "knobs: {micro_batch_size: auto, compile: off, pin_memory: false, prefetch_factor: 4}"
    values = load_space(written(tmp_path, text)).values
    assert values["micro_batch_size"] == AUTO
    assert values["compile"] == ("off",)
    assert values["pin_memory"] == (False,)
    assert values["prefetch_factor"] == (4,)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("knobs: {num_dataloader_worker: [1]}", "num_dataloader_workers"),
        ("knobs: {precision: [bf61]}", "bf16"),
        ("knobs: {num_dataloader_workers: [-1]}", "whole number"),
        ("knobs: {num_dataloader_workers: [1.5]}", "float"),
        ("knobs: {num_dataloader_workers: [[1]]}", "list"),
        ("knobs: {num_dataloader_workers: []}", "lists no values"),
        ("knobs: {num_dataloader_workers: auto}", "cannot be auto"),
        ("knobs: {gradient_accumulation_steps: [2]}", "follows from micro_batch_size"),
        ("knobs: {compile: 'off', compile: default}", "not valid YAML"),
        ("knob: {compile: 'off'}", "key knobs"),
        ("knobs: {compile: 'off'}\nextra: 1", "extra"),
        ("knobs: [compile]", "must map knobs"),
        ("- compile", "must be a mapping"),
        ("", "must be a mapping"),
        ("knobs: {compile: [", "not valid YAML"),
        ("knobs: {compile: !!python/name:os.system x}", "tag"),
        ("a: &a [1]\nknobs: {compile: *a}", "anchor or alias"),
        ("knobs: " + "[" * 5000, "levels deep"),
    ],
)
def test_bad_files_are_input_errors(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        load_space(written(tmp_path, text))
    assert says in caught.value.message


def test_a_bomb_is_refused_before_it_grows(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    with pytest.raises(InputError, match="anchor"):
        load_space(written(tmp_path, "\n".join(lines)))


def test_unreadable_huge_and_undecodable_files_are_input_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        load_space(tmp_path / "absent.yaml")
    with pytest.raises(InputError, match="cannot be read"):
        load_space(tmp_path)
    huge = written(tmp_path, "#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(InputError, match="KiB"):
        load_space(huge)
    huge.write_bytes(b"knobs: \xff\xfe")
    with pytest.raises(InputError, match="UTF-8"):
        load_space(huge)


def test_an_unknown_name_gets_the_closest_ones() -> None:
    with pytest.raises(InputError) as caught:
        load_space("extendet")
    assert "extended" in caught.value.message


def test_spaces_are_found_inside_an_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = space_file._shipped()["default"].parent
    package = tmp_path / "site-packages" / "autotune"
    shutil.copytree(shipped, package / "search_spaces")
    monkeypatch.setattr(space_file, "__file__", str(package / "space" / "file.py"))
    assert space_file._shipped()["default"].is_relative_to(package)
    assert load_space("extended").values["packing"] == ("off", "on")
