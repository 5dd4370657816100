"""What PyTorch's CUDA caching allocator would hold for a stream of allocations and frees.

Covers: rounding, the small and the large pool, segments, best fit, splitting, coalescing, giving
cached segments back when the device is full, expandable segments; one stream.
Does not cover: tensors shared between streams, private pools of CUDA graphs, garbage collection
and the other settings of PYTORCH_ALLOC_CONF, which are off by default.

Source: PyTorch c10/cuda/CUDACachingAllocator.cpp (commit 001074d, March 2025; `malloc`,
`get_free_block`, `should_split`, `alloc_block`, `free_block`, `release_cached_blocks`, `map_block`)
and c10/core/AllocatorConfig.h of PyTorch 2.13.0, where the constants stand.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

MIB = 2**20
MIN_BLOCK = 512  # [bytes] kMinBlockSize: sizes are multiples of it
SMALL_SIZE = MIB  # [bytes] kSmallSize: the largest allocation of the small pool
SMALL_SEGMENT = 2 * MIB  # [bytes] kSmallBuffer
MIN_LARGE = 10 * MIB  # [bytes] kMinLargeAlloc: from here on a segment is made to measure
LARGE_SEGMENT = 20 * MIB  # [bytes] large_segment_size
ROUND_LARGE = 2 * MIB  # [bytes] kRoundLarge
_ADDRESSES = 2**44  # [bytes] apart: where expandable segments start; more than any device has


class OutOfMemory(Exception):  # noqa: N818 - PyTorch's own name without its suffix
    """The device cannot give what is needed, with every cached segment given back."""

    def __init__(self, size: int) -> None:
        """Keep the [bytes] that were asked of the device."""
        super().__init__(f"{size} bytes")
        self.size = size


class Block:
    """A piece of a segment: in use, cached, or (in an expandable segment) without memory."""

    __slots__ = ("address", "allocated", "mapped", "next", "pool", "previous", "size")

    def __init__(self, address: int, size: int, pool: Pool) -> None:
        """A cached block without neighbours."""
        self.address, self.size, self.pool = address, size, pool
        self.previous: Block | None = None
        self.next: Block | None = None
        self.allocated = False
        self.mapped = True

    @property
    def is_split(self) -> bool:
        """Whether it shares its segment with others."""
        return self.previous is not None or self.next is not None


class Pool:
    """Cached blocks of one kind, by size and then address."""

    def __init__(self, *, small: bool) -> None:
        """An empty pool."""
        self.small = small
        self.segment = SMALL_SEGMENT if small else LARGE_SEGMENT
        self.unmapped: list[Block] = []  # by address; of expandable segments only
        self._order: list[tuple[int, int]] = []
        self._blocks: dict[int, Block] = {}

    @property
    def blocks(self) -> list[Block]:
        """Cached blocks, the smallest first."""
        return [self._blocks[address] for _, address in self._order]

    def add(self, block: Block) -> None:
        """Cache a block."""
        insort(self._order, (block.size, block.address))
        self._blocks[block.address] = block

    def remove(self, block: Block) -> None:
        """Take a block out, whatever for."""
        del self._order[bisect_left(self._order, (block.size, block.address))]
        del self._blocks[block.address]

    def best_fit(self, size: int, *, expandable: bool) -> Block | None:
        """The smallest cached block that holds `size`, the lowest address first.

        In expandable segments a block counts with the room it can grow into, so that the end of a
        segment is used last.
        """
        at = bisect_left(self._order, (size, 0))
        if at == len(self._order):
            return None
        found = self._blocks[self._order[at][1]]
        while expandable and at + 1 < len(self._order):
            following = self._blocks[self._order[at + 1][1]]
            if _room(following) >= _room(found):
                break
            at, found = at + 1, following
        return found


def _room(block: Block) -> int:
    beyond = block.next
    return block.size + (beyond.size if beyond is not None and not beyond.mapped else 0)


@dataclass(slots=True)
class Counts:
    """[bytes] in use and held now and at most; how often cached segments were given back."""

    allocated: int = 0
    reserved: int = 0
    peak_allocated: int = 0
    peak_reserved: int = 0
    retries: int = 0


def rounded(size: int) -> int:
    """[bytes] a request as the allocator hands it out."""
    return max(-(-size // MIN_BLOCK), 1) * MIN_BLOCK


class CachingAllocator:
    """One device's caching allocator. capacity: [bytes] the device can give; None: any number."""

    def __init__(self, *, capacity: int | None = None, expandable: bool = False) -> None:
        """Start with nothing held."""
        self.capacity, self.expandable = capacity, expandable
        self.counts = Counts()
        self.small, self.large = Pool(small=True), Pool(small=False)
        self._next_address = 0

    def malloc(self, size: int) -> Block:
        """A block of at least `size` bytes. Raises OutOfMemory."""
        size = rounded(size)
        pool = self.small if size <= SMALL_SIZE else self.large
        block = pool.best_fit(size, expandable=self.expandable)
        if block is not None:
            pool.remove(block)
        else:
            block = self._from_device(pool, size)
        if self._splits(block, size):
            block = self._split(block, size)
        block.allocated = True
        counts = self.counts
        counts.allocated += block.size
        counts.peak_allocated = max(counts.peak_allocated, counts.allocated)
        return block

    def free(self, block: Block) -> None:
        """Cache a block again, joined with its free neighbours."""
        block.allocated = False
        self.counts.allocated -= block.size
        block = self._merged(block)
        block.pool.add(block)

    def release_cached(self) -> int:
        """[bytes] given back to the device: whole cached segments, or whole pages of them."""
        before = self.counts.reserved
        for pool in (self.large, self.small):
            for block in pool.blocks:
                if self.expandable:
                    self._unmap(block)
                elif not block.is_split:
                    pool.remove(block)
                    self.counts.reserved -= block.size
        return before - self.counts.reserved

    def _splits(self, block: Block, size: int) -> bool:
        rest = block.size - size
        if block.pool.small or self.expandable:
            return rest >= MIN_BLOCK
        return rest > SMALL_SIZE

    @staticmethod
    def _split(block: Block, size: int) -> Block:
        """The front of a block, `size` bytes long; the rest is cached."""
        front = _cut(block, size)
        block.pool.add(block)
        return front

    def _from_device(self, pool: Pool, size: int) -> Block:
        """New memory; a device that is full gets every cached segment back, once."""
        found = self._grown(pool, size)
        if found is None:
            self.counts.retries += 1
            self.release_cached()
            found = self._grown(pool, size)
        if found is None:
            raise OutOfMemory(size)
        return found

    def _grown(self, pool: Pool, size: int) -> Block | None:
        if self.expandable:
            return self._expanded(pool, size)
        segment = pool.segment
        if size >= MIN_LARGE:
            segment = -(-size // ROUND_LARGE) * ROUND_LARGE
        if not self._reserve(segment):
            return None
        block = Block(self._next_address, segment, pool)
        self._next_address += segment
        return block

    def _reserve(self, size: int) -> bool:
        counts = self.counts
        if self.capacity is not None and counts.reserved + size > self.capacity:
            return False
        counts.reserved += size
        counts.peak_reserved = max(counts.peak_reserved, counts.reserved)
        return True

    def _merged(self, block: Block) -> Block:
        """The block joined with the neighbours that are in the same state."""
        before, after = block.previous, block.next
        if before is not None and not before.allocated and before.mapped == block.mapped:
            self._forget(before)
            block.address, block.previous = before.address, before.previous
            if block.previous is not None:
                block.previous.next = block
            block.size += before.size
        if after is not None and not after.allocated and after.mapped == block.mapped:
            self._forget(after)
            block.next = after.next
            if block.next is not None:
                block.next.previous = block
            block.size += after.size
        return block

    @staticmethod
    def _forget(block: Block) -> None:
        if block.mapped:
            block.pool.remove(block)
        else:
            block.pool.unmapped.remove(block)

    def _expanded(self, pool: Pool, size: int) -> Block | None:
        """A free block of an expandable segment, grown to `size`; None when the device is full."""
        block = self._with_room(pool, size)
        if not block.mapped and not self._map(block, min(block.size, size)):
            return None
        while block.size < size:
            following = block.next
            assert following is not None  # noqa: S101 - `_with_room` looked
            if not self._map(following, min(size - block.size, following.size)):
                return None
            block = following  # it has taken in the free block before it
        pool.remove(block)
        return block

    def _with_room(self, pool: Pool, size: int) -> Block:
        """The lowest free or unmapped block with enough free address space behind it."""
        for unmapped in pool.unmapped:
            before = unmapped.previous
            start = before if before is not None and not before.allocated else unmapped
            if _free_from(start, size) >= size:
                return start
        segment = Block(self._next_address, _ADDRESSES // pool.segment * pool.segment, pool)
        self._next_address += 2 * _ADDRESSES
        segment.mapped = False
        pool.unmapped.append(segment)
        return segment

    def _map(self, block: Block, size: int) -> bool:
        """Give memory to the front of an unmapped block, in whole pages of its segment."""
        pool = block.pool
        size = -(-size // pool.segment) * pool.segment
        if not self._reserve(size):
            return False
        pool.unmapped.remove(block)
        block.mapped = True
        if size < block.size:
            rest = Block(block.address + size, block.size - size, pool)
            rest.mapped = False
            rest.previous, rest.next = block, block.next
            if rest.next is not None:
                rest.next.previous = rest
            block.next, block.size = rest, size
            insort(pool.unmapped, rest, key=_address)
        pool.add(self._merged(block))
        return True

    def _unmap(self, block: Block) -> None:
        """Give the whole pages inside a cached block back; what is left at its ends stays."""
        pool, page = block.pool, block.pool.segment
        origin = block.address // _ADDRESSES * _ADDRESSES
        first = origin + -(-(block.address - origin) // page) * page
        last = origin + (block.address + block.size - origin) // page * page
        if first >= last:
            return
        pool.remove(block)
        if first > block.address:
            pool.add(_cut(block, first - block.address))
        if last < block.address + block.size:
            front = _cut(block, last - block.address)
            pool.add(block)
            block = front
        self.counts.reserved -= block.size
        block.mapped = False
        insort(pool.unmapped, self._merged(block), key=_address)


def _cut(block: Block, size: int) -> Block:
    """The front of a block, `size` bytes long, as a block of its own before the rest."""
    front = Block(block.address, size, block.pool)
    front.previous, front.next = block.previous, block
    if front.previous is not None:
        front.previous.next = front
    block.previous = front
    block.address += size
    block.size -= size
    return front


def _address(block: Block) -> int:
    return block.address


def _free_from(start: Block, enough: int) -> int:
    """[bytes] of address space that is free from a block on, as far as `enough`."""
    room, block = 0, start
    while not block.allocated and room < enough:
        room += block.size
        if block.next is None:
            break
        block = block.next
    return room
