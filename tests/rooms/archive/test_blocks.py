"""Blocks of the archive: the items that went in come out, and each block has one stream without a hole."""

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import muster
from muster_server.systems.rooms.archive import blocks
from muster_server.systems.rooms.archive.blocks import BLOCK_BYTES_MAX, Block, packed
from muster_server.systems.rooms.archive.shapes import Item, Message, Place
from tests.reference.archive import Archive

streams = st.builds(muster.Stream, st.integers(1, 2), st.just(1), st.integers(0, 1))
offsets = st.integers(1, (1 << 62) - 2)
messages = st.builds(
    lambda stream, offset, sender, data, headers: muster.Message("r", stream, offset, sender, data, None, headers),
    streams,
    st.integers(1, 6) | offsets,
    st.integers(0, (1 << 64) - 1),
    st.binary(max_size=20),
    st.dictionaries(st.sampled_from(["key", "kind"]), st.text(max_size=5)),
)
gaps = st.builds(
    lambda stream, first, more: muster.Gap(stream, first, None if more is None else first + more, "expired"),
    streams,
    st.integers(1, 6),
    st.none() | st.integers(0, 5),
)
commands = st.builds(muster.Command, st.just("r"), st.just(1), st.just(1), st.just(b"c"))


@given(st.lists(messages | gaps | commands, max_size=30), st.integers(1, 1 << 40))
def test_the_items_that_go_in_come_out_in_order(items: list[muster.Item], seq: int) -> None:
    found = packed(items, seq, 7)
    model = Archive()
    model.write("r", items, 7)
    out: list[Item] = [item for block in found for item in block.items()]
    assert out == model.rooms["r"]
    for one, other in pairwise(found):
        assert one.end == other.seq
    for block in found:
        assert block.count == len(block.items())
        assert block.last - block.first + 1 == block.count or block.reason


def test_a_block_is_bounded_with_the_longest_messages() -> None:
    items = [muster.Message("r", (1, 1, 1), at, 0, b"x" * 64_000, None, {"k": "v" * 1_000}) for at in range(1, 40)]
    found = packed(items, 1, 0)
    assert all(len(block.data) <= BLOCK_BYTES_MAX for block in found)
    assert sum(block.count for block in found) == 39
    many = [muster.Message("r", (1, 1, 1), at, 0, b"") for at in range(1, 2 * blocks.COUNT_MAX + 2)]
    assert [block.count for block in packed(many, 1, 0)] == [blocks.COUNT_MAX, blocks.COUNT_MAX, 1]


def test_a_block_of_before_there_were_headers_is_read() -> None:
    block = Block(1, 1, (1, 1, 1), 5, 5, 9, "", msgspec.msgpack.encode([(7, b"old")]))
    assert block.items() == [Message(Place((1, 1, 1), 5), 7, 9, b"old")]


def test_a_message_without_headers_is_no_longer_than_before_there_were_any() -> None:
    [block] = packed([muster.Message("r", (1, 1, 1), 5, 7, b"old")], 1, 9)
    assert block.data == msgspec.msgpack.encode([(7, b"old")])


@pytest.mark.parametrize("data", [b"", b"\x91\x91\x01", b"\x90", b"x"])
def test_a_damaged_block_is_an_error(data: bytes) -> None:
    block = Block(1, 1, (1, 1, 1), 1, 1, 0, "", data)
    with pytest.raises(ValueError, match="damaged block 1"):
        block.items()
