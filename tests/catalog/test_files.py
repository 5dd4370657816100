"""Files are written whole or not at all, with the modes a user expects."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from autotune.catalog import files
from autotune.catalog.files import (
    SCRATCH,
    append_synced,
    is_scratch,
    readable_entries,
    set_aside,
    write_new,
    write_whole,
)
from autotune.catalog.locks import hold


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_has_what_umask_leaves_and_an_old_one_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "a file"
    before = os.umask(0o027)
    try:
        write_whole(path, "one\n")
        assert mode(path) == 0o640
        path.chmod(0o600)
        write_whole(path, "zwei ü\n")
    finally:
        os.umask(before)
    assert mode(path) == 0o600
    assert path.read_bytes() == "zwei ü\n".encode()
    write_whole(path, b"three", 0o755)
    assert (mode(path), path.read_bytes()) == (0o755, b"three")
    assert [each.name for each in tmp_path.iterdir()] == ["a file"]


def test_a_link_is_replaced_and_what_it_leads_to_stays(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("theirs")
    (tmp_path / "link").symlink_to("elsewhere")
    write_whole(tmp_path / "link", "ours")
    assert (tmp_path / "elsewhere").read_text() == "theirs"
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "link").read_text() == "ours"


def test_what_cannot_be_put_in_its_place_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kept"
    path.write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["kept"]


def test_one_of_many_writers_of_a_new_file_wins_and_every_reader_sees_it_whole(
    tmp_path: Path,
) -> None:
    path, won = tmp_path / "claim", []
    texts = [str(i) * 10_000 for i in range(8)]
    threads = [
        threading.Thread(target=lambda t=text: won.append(t) if write_new(path, t) else None)
        for text in texts
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [path.read_text()]
    assert [each.name for each in tmp_path.iterdir()] == ["claim"]


def test_a_half_written_file_whose_name_another_took_meanwhile_is_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sweepers at once: one takes it away before it is locked, one makes its name anew."""
    taken: list[Path] = []

    def late(handle: int, scratch: Path) -> bool:
        if not taken:
            taken.append(scratch)
            scratch.unlink()
            scratch.touch()
        return hold(handle, scratch)

    monkeypatch.setattr(files, "hold", late)
    assert write_new(tmp_path / "claim", "whole")
    assert taken
    assert (tmp_path / "claim").read_text() == "whole"
    assert [each.name for each in tmp_path.iterdir()] == ["claim"]


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    path, read = tmp_path / "pipe", []
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: read.append(path.read_text()))
    reader.start()
    write_whole(path, "through")
    reader.join()
    assert read == ["through"]
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_half_written_files_are_known_by_their_name() -> None:
    assert is_scratch(Path("run/.job.json.k3x"), ("job.json",))
    assert not is_scratch(Path("run/.other.k3x"), ("job.json",))
    assert is_scratch(Path(f"run/.other.k3x{SCRATCH}"))


def test_what_a_killed_writer_left_goes_and_what_a_living_one_writes_stays(tmp_path: Path) -> None:
    dead = tmp_path / f".answer.json.x1{SCRATCH}"
    dead.write_text('{"half')
    with files._written(tmp_path / "slow", "theirs", None) as scratch:
        write_whole(tmp_path / "quick", "ours")
        assert scratch.read_text() == "theirs"
        assert not dead.exists()
    assert [each.name for each in tmp_path.iterdir()] == ["quick"]


def test_an_appended_line_is_whole_or_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real, room = tmp_path / "trials.jsonl", os.write, [3, 3, 3]

    def short(handle: int, content: bytes) -> int:
        if not room:
            raise OSError(28, "No space left on device")
        return real(handle, bytes(content)[: room.pop()])

    path.write_bytes(b"first\n")
    monkeypatch.setattr(os, "write", short)
    with path.open("ab") as stream, pytest.raises(OSError, match="No space") as full:
        append_synced(stream, b"a line of more than nine bytes\n")
    assert full.value.filename == str(path), "which disk that is depends on the file"
    assert path.read_bytes() == b"first\n"
    room[:] = [3] * 9
    with path.open("ab") as stream:
        append_synced(stream, b"three at a time\n")
    assert path.read_bytes() == b"first\nthree at a time\n"


def test_a_full_disk_is_named_by_the_file_that_was_to_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space") as refused:
        write_whole(tmp_path / "report.html", "a page")
    assert refused.value.filename == str(tmp_path / "report.html")
    assert not list(tmp_path.iterdir())


def test_a_damaged_file_is_set_aside_and_never_over_another(tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    for number in range(3):
        path.write_text(f"{{{number}")
        said = set_aside(path)
        assert "was damaged" in said
        assert str(path) in said
    assert not path.exists()
    assert sorted(each.read_text() for each in tmp_path.iterdir()) == ["{0", "{1", "{2"]


@pytest.mark.parametrize(
    ("text", "found", "damage"),
    [
        ('{"runs": [1, 2, 3]}', (1, 2, 3), ""),
        ('{"runs": [1, "x", 3], "more": 4}', (1, 3), "1 of 3 runs cannot be read"),
        ('{"runs": [1, 2, {"a', (1, 2), "the file breaks off behind 2 of its runs"),
        ('{"about": [9],\n "runs" : [\n 1,\n 2\x00, 3]}', (1, 2), "breaks off behind 2"),
        ("[" * 100_000, (), "breaks off behind 0"),
        ('{"other": []}', (), "it has no list of runs"),
        ("[1, 2]", (), "it has no list of runs"),
        ("null", (), "it has no list of runs"),
        ("", (), "breaks off behind 0"),
    ],
)
def test_a_bad_entry_or_a_torn_end_costs_no_other_entry(
    text: str, found: tuple[int, ...], damage: str
) -> None:
    entries = readable_entries(text.encode(), "runs", int)
    assert entries.found == found
    assert damage in entries.damage
    assert bool(entries.damage) == bool(damage)


def test_what_is_lost_of_a_damaged_file_and_what_is_used_on_is_said(tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    path.write_text("{")
    said = set_aside(path, "1 of 3 runs cannot be read", 2)
    assert "was damaged (1 of 3 runs cannot be read)" in said
    assert "the 2 that can be read are used on" in said


def test_a_check_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "prices.csv"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError):
        write_whole(path, "new", check=lambda _: 1 // 0)
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["prices.csv"]
