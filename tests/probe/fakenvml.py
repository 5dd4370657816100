"""A management library made by hand: boards, MIG slices, processes, and the ways it refuses."""
# ruff: noqa: N802 - the library's own names

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

MIB = 2**20
NOT_SUPPORTED, LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED, GPU_IS_LOST = 3, 12, 9, 15


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__({GPU_IS_LOST: "GPU is lost"}.get(value, f"error {value}"))
        self.value = value


@dataclass
class Fake:
    """A board or a slice. Bytes in MiB, as nvidia-smi shows them."""

    name: str
    total: int
    reserved: int = 0
    held: int = 0
    pids: tuple[int, ...] = ()
    uuid: str = "GPU-0"
    mig: tuple[Fake, ...] | None = None  # None: MIG is off or unknown to the board
    memory_error: int = 0
    handle_error: int = 0
    has_v2: bool = True


@dataclass
class FakeLibrary:
    boards: tuple[Fake, ...] = ()
    init_error: int = 0
    has_v2: bool = True  # old bindings know no version
    shut: list[bool] = field(default_factory=list)

    def module(self) -> ModuleType:
        found: Any = ModuleType("pynvml")
        found.NVML_ERROR_NOT_SUPPORTED = NOT_SUPPORTED
        if self.has_v2:
            found.nvmlMemory_v2 = 0x2000028
        names = [name for name in dir(self) if name.startswith("nvml")]
        for name in names:
            setattr(found, name, getattr(self, name))
        return found  # type: ignore[no-any-return]

    def nvmlInit(self) -> None:
        _raise(self.init_error)

    def nvmlShutdown(self) -> None:
        self.shut.append(True)

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"575.57"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.boards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Fake:
        _raise(self.boards[index].handle_error)
        return self.boards[index]

    def nvmlDeviceGetName(self, board: Fake) -> str:
        return board.name

    def nvmlDeviceGetUUID(self, board: Fake) -> str:
        return board.uuid

    def nvmlDeviceGetMemoryInfo(self, board: Fake, version: int | None = None) -> SimpleNamespace:
        _raise(board.memory_error)
        if version is None:
            return SimpleNamespace(
                total=board.total * MIB, used=(board.reserved + board.held) * MIB
            )
        if not board.has_v2:
            raise NVMLError(13)
        return SimpleNamespace(
            total=board.total * MIB, reserved=board.reserved * MIB, used=board.held * MIB
        )

    def nvmlDeviceGetComputeRunningProcesses(self, board: Fake) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid) for pid in board.pids]

    def nvmlDeviceGetMigMode(self, board: Fake) -> list[int]:
        if board.mig is None:
            raise NVMLError(NOT_SUPPORTED)
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, _board: Fake) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, board: Fake, number: int) -> Fake:
        slices = board.mig or ()
        if number >= len(slices):
            raise NVMLError(6)
        return slices[number]


def _raise(value: int) -> None:
    if value:
        raise NVMLError(value)


RTX_4090 = Fake("NVIDIA GeForce RTX 4090", 24564, reserved=436, held=0)
A100 = Fake("NVIDIA A100-SXM4-40GB", 40960, reserved=606, held=0)
