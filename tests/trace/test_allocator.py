"""The simulated caching allocator: its invariants, and sequences worked out by hand."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.trace.allocator import MIB, Block, CachingAllocator, OutOfMemory, Pool, rounded
from autotune.trace.answers import least_capacity, simulate

GIB = 1024 * MIB
SIZES = st.one_of(st.integers(1, 4096), st.integers(1, 30 * MIB), st.sampled_from([MIB, 10 * MIB]))
# Each action allocates so many bytes, or frees one of what is live.
ACTIONS = st.lists(st.one_of(SIZES, st.floats(0.0, 0.999)), max_size=60)
CAPACITIES = st.one_of(st.none(), st.integers(MIB, 200 * MIB))


def segment_of(block: Block) -> list[Block]:
    """Every block of a segment, by address."""
    while block.previous is not None:
        block = block.previous
    found = [block]
    while found[-1].next is not None:
        found.append(found[-1].next)
    return found


def check(allocator: CachingAllocator, live: list[Block]) -> None:
    counts = allocator.counts
    assert counts.allocated == sum(block.size for block in live)
    assert counts.allocated <= counts.reserved <= counts.peak_reserved
    assert allocator.capacity is None or counts.reserved <= allocator.capacity
    spans = sorted((block.address, block.address + block.size) for block in live)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans)), "two live blocks overlap"
    cached = [*allocator.small.blocks, *allocator.large.blocks]
    assert counts.allocated + sum(block.size for block in cached) == counts.reserved
    for block in [*live, *cached]:
        whole = segment_of(block)
        assert block in whole
        for left, right in pairwise(whole):
            assert left.address + left.size == right.address
            idle = not left.allocated and not right.allocated
            assert not (idle and left.mapped == right.mapped), "free neighbours were not joined"


@given(actions=ACTIONS, capacity=CAPACITIES, expandable=st.booleans())
def test_whatever_is_asked_nothing_overlaps_or_is_lost(
    actions: list[int | float], capacity: int | None, expandable: bool
) -> None:
    allocator = CachingAllocator(capacity=capacity, expandable=expandable)
    live: list[Block] = []
    for action in actions:
        if isinstance(action, float):
            if live:
                allocator.free(live.pop(int(action * len(live))))
        else:
            try:
                live.append(allocator.malloc(action))
            except OutOfMemory:
                pass
            else:
                assert live[-1].size >= action
        check(allocator, live)
    for block in live:
        allocator.free(block)
    assert allocator.counts.allocated == 0
    allocator.release_cached()
    assert allocator.counts.reserved == 0


@given(sizes=st.lists(SIZES, max_size=40), expandable=st.booleans())
def test_the_same_step_again_reserves_nothing_more(sizes: list[int], expandable: bool) -> None:
    allocator = CachingAllocator(expandable=expandable)
    held = []
    for _ in range(3):
        blocks = [allocator.malloc(size) for size in sizes]
        for block in blocks:
            allocator.free(block)
        held.append(allocator.counts.reserved)
    assert held[1] == held[2]


@pytest.mark.parametrize(("asked", "given_out"), [(1, 512), (512, 512), (513, 1024)])
def test_sizes_are_multiples_of_512_bytes(asked: int, given_out: int) -> None:
    assert rounded(asked) == given_out


@pytest.mark.parametrize(
    ("asked", "segment"),
    [
        (1, 2 * MIB),  # the small pool
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),  # the large pool, below 10 MiB
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),  # made to measure, in steps of 2 MiB
        (11 * MIB, 12 * MIB),
        (1000 * MIB + 1, 1002 * MIB),
    ],
)
def test_segments_are_as_large_as_pytorch_makes_them(asked: int, segment: int) -> None:
    allocator = CachingAllocator()
    allocator.malloc(asked)
    assert allocator.counts.reserved == segment


def test_a_large_block_is_split_only_when_more_than_one_mib_is_left() -> None:
    for asked, kept in ((18 * MIB, 18 * MIB), (19 * MIB, 20 * MIB), (20 * MIB, 20 * MIB)):
        allocator = CachingAllocator()
        allocator.free(allocator.malloc(20 * MIB))
        assert allocator.malloc(asked).size == kept
        assert allocator.counts.allocated == kept  # PyTorch counts the whole block as allocated
        assert allocator.counts.reserved == 20 * MIB


def test_a_small_block_is_split_down_to_512_bytes() -> None:
    allocator = CachingAllocator()
    first, second = allocator.malloc(512), allocator.malloc(512)
    assert second.address == first.address + 512
    assert allocator.counts.reserved == 2 * MIB


def test_the_smallest_block_that_fits_is_taken() -> None:
    allocator = CachingAllocator()
    blocks = {size: allocator.malloc(size * MIB) for size in (100, 40, 60)}
    address = blocks[60].address
    for block in blocks.values():
        allocator.free(block)
    taken = allocator.malloc(50 * MIB)
    assert (taken.address, taken.size) == (address, 50 * MIB)
    assert allocator.counts.reserved == 200 * MIB
    assert [block.size // MIB for block in allocator.large.blocks] == [10, 40, 100]


def test_neighbours_are_joined_again_but_never_across_segments() -> None:
    allocator = CachingAllocator()
    parts = [allocator.malloc(4 * MIB) for _ in range(10)]  # two segments of 20 MiB
    assert allocator.counts.reserved == 40 * MIB
    for block in parts:
        allocator.free(block)
    assert [block.size for block in allocator.large.blocks] == [20 * MIB, 20 * MIB]
    allocator.malloc(21 * MIB)
    assert allocator.counts.reserved == 62 * MIB


def test_a_full_device_gets_whole_cached_segments_back_and_no_others() -> None:
    allocator = CachingAllocator(capacity=100 * MIB)
    whole, split = allocator.malloc(40 * MIB), allocator.malloc(40 * MIB)
    allocator.free(whole)
    allocator.free(split)
    kept = allocator.malloc(10 * MIB)  # splits one of them
    assert allocator.malloc(60 * MIB).size == 60 * MIB  # the other went back to the device
    assert allocator.counts.retries == 1
    assert allocator.counts.reserved == 100 * MIB
    with pytest.raises(OutOfMemory) as caught:
        allocator.malloc(31 * MIB)  # 30 MiB are cached, in a segment that `kept` holds
    assert caught.value.size == 31 * MIB
    allocator.free(kept)
    assert allocator.malloc(31 * MIB).size == 31 * MIB


def test_fragments_that_no_request_fits_run_out_of_memory_and_expandable_ones_do_not() -> None:
    def fragmented(*, expandable: bool) -> Block:
        allocator = CachingAllocator(capacity=420 * MIB, expandable=expandable)
        for block in [allocator.malloc(40 * MIB) for _ in range(10)]:
            allocator.free(block)
        for _ in range(10):  # in segments of their own each of these leaves 18 MiB over
            allocator.malloc(22 * MIB)
        return allocator.malloc(60 * MIB)

    assert fragmented(expandable=True).size == 60 * MIB
    with pytest.raises(OutOfMemory):
        fragmented(expandable=False)


def test_an_expandable_segment_grows_by_pages_and_takes_its_free_end_along() -> None:
    allocator = CachingAllocator(expandable=True)
    first = allocator.malloc(30 * MIB)
    assert allocator.counts.reserved == 40 * MIB  # two pages of 20 MiB
    second = allocator.malloc(25 * MIB)  # the free 10 MiB and one more page
    assert second.address == first.address + 30 * MIB
    assert allocator.counts.reserved == 60 * MIB
    small = allocator.malloc(100)
    assert allocator.counts.reserved == 62 * MIB  # a page of the small pool
    for block in (first, second, small):
        allocator.free(block)
    grown = allocator.malloc(70 * MIB)
    assert grown.address == first.address
    assert allocator.counts.reserved == 82 * MIB


def test_expandable_segments_give_whole_pages_back_from_between_live_blocks() -> None:
    allocator = CachingAllocator(capacity=120 * MIB, expandable=True)
    before, hole, after = (allocator.malloc(size * MIB) for size in (10, 70, 40))
    allocator.free(hole)  # from 10 to 80 MiB: three whole pages
    again = allocator.malloc(70 * MIB)
    assert again.address == before.address + 10 * MIB
    allocator.free(again)
    assert allocator.release_cached() == 60 * MIB
    assert allocator.counts.reserved == 60 * MIB
    assert after.address == before.address + 80 * MIB


def test_best_fit_leaves_the_growing_end_of_an_expandable_segment_for_last() -> None:
    pool = Pool(small=False)
    end, inside = Block(0, 20 * MIB, pool), Block(1000 * MIB, 24 * MIB, pool)
    beyond = Block(20 * MIB, GIB, pool)
    beyond.mapped, end.next = False, beyond
    pool.add(end)
    pool.add(inside)
    assert pool.best_fit(16 * MIB, expandable=True) is inside
    assert pool.best_fit(16 * MIB, expandable=False) is end


def events(*sizes: int) -> list[tuple[int, int, int, str, str]]:
    """Positive: allocate under the next key; negative: free that key (from 1 on)."""
    found, key = [], 0
    for size in sizes:
        key += size > 0
        found.append(
            (key, size, 1, "forward", f"op{key}") if size > 0 else (-size, -1, 1, "forward", "")
        )
    return found


def test_a_replay_says_where_it_runs_out() -> None:
    run = events(100 * MIB, 50 * MIB, -1, 120 * MIB)
    roomy = simulate(run)
    assert (roomy.allocated, roomy.reserved) == (170 * MIB, 270 * MIB)
    assert roomy.at.op == "op3"
    assert roomy.out_of_memory is None
    tight = simulate(run, capacity=170 * MIB)
    assert tight.out_of_memory is None
    assert tight.retries == 1
    failed = simulate(run, capacity=169 * MIB).out_of_memory
    assert (failed.phase, failed.op, failed.size) == ("forward", "op3", 120 * MIB)


def test_the_least_capacity_is_enough_and_no_more_than_is_held_when_there_is_room() -> None:
    run = events(60 * MIB, 60 * MIB, 60 * MIB, -1, -3, 20 * MIB, 20 * MIB, 100 * MIB, -2, 90 * MIB)
    roomy = simulate(run)
    least = least_capacity(run)
    assert roomy.allocated <= least <= roomy.reserved
    assert simulate(run, capacity=least).out_of_memory is None
    assert simulate(run, capacity=least - 33 * MIB).out_of_memory is not None
