"""Memory and archive as one history: no message twice, none missing without a gap, wherever each of them ends."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

import muster
from muster_server.systems.rooms.archive.shapes import Gap, Item, Message, Page, Place, Read, place, stream_of
from muster_server.systems.rooms.history import Asked, Found, Recent, Untimed, found
from tests.reference.archive import Archive

ROOM = "default:r"
ONE, TWO = muster.Stream(1, 1, 1), muster.Stream(2, 1, 1)
Offsets = list[tuple[int, int]]


def order(one: int, two: int) -> Offsets:
    """A room whose second owner follows the first: node and offset of each message."""
    return [(1, offset) for offset in range(1, one + 1)] + [(2, offset) for offset in range(1, two + 1)]


class World:
    """A room of which the archive has a part, and memory the end."""

    def __init__(self, offsets: Offsets, written: int, memory: int) -> None:
        self.offsets = offsets
        self.model = Archive()
        self.model.write(ROOM, [muster.Message(ROOM, (n, 1, 1), o, 0, b"") for n, o in offsets[:written]], 5)
        if not written:
            self.model.rooms.clear()
        self.recent = [Recent(f"{n}.1.1", o, (n, o)) for n, o in offsets[len(offsets) - memory :]]

    async def read(self, asked: Read) -> Page:
        if ROOM not in self.model.rooms:
            return Page()
        items, over = self.model.page(asked)
        known: dict[int, int] = {}
        for item in self.model.rooms[ROOM]:
            assert isinstance(item, Message)
            known[item.place.stream[0]] = item.place.offset
        last = known.get(asked.at.stream[0], 0) if asked.at is not None else 0
        if asked.back and asked.at is not None and last + 1 < asked.at.offset:
            items = [Gap(asked.at.stream, last + 1, asked.at.offset - 1, "unwritten"), *items]
        if not asked.back and asked.at is not None and not last:
            items = [Gap(asked.at.stream, asked.at.offset + 1, None, "trimmed"), *items]
        return Page(True, items, over, True, [Place((node, 1, 1), offset) for node, offset in known.items()])

    def page(self, asked: Asked) -> Found[tuple[int, int]]:
        return asyncio.run(found(asked, self.recent, len(self.recent) == len(self.offsets), self.read))

    def pages(self, limit: int, *, back: bool, at: Place | None = None) -> list[Recent[tuple[int, int]] | Item]:
        items: list[Recent[tuple[int, int]] | Item] = []
        while True:
            said = self.page(Asked(ROOM, limit, back, at))
            assert said.messages <= limit
            items += said.items
            if said.next is None:
                return items
            assert said.items
            at = said.next


def offsets(items: Sequence[Recent[tuple[int, int]] | Item]) -> Offsets:
    return [
        item.value if isinstance(item, Recent) else (item.place.stream[0], item.place.offset)
        for item in items
        if not isinstance(item, Gap)
    ]


def missing(items: Sequence[Recent[tuple[int, int]] | Item]) -> set[tuple[int, int]]:
    return {
        (item.stream[0], offset)
        for item in items
        if isinstance(item, Gap)
        for offset in range(item.first, (item.last or 0) + 1)
    }


sizes = st.integers(0, 6)


@given(sizes, sizes, st.integers(0, 12), st.integers(0, 12), st.integers(1, 5))
def test_all_pages_back_are_the_room_or_say_what_is_missing(
    one: int, two: int, written: int, memory: int, limit: int
) -> None:
    whole = order(one, two)
    world = World(whole, min(written, len(whole)), min(memory, len(whole)))
    items = world.pages(limit, back=True)
    seen = offsets(items)[::-1]
    assert seen == sorted(set(seen))
    lacking = set(whole) - set(seen)
    known = set(whole[: min(written, len(whole))])
    assert not lacking & known, "what the archive has is shown"
    in_the_middle = {each for each in lacking if seen and any(other > each for other in seen if other[0] == each[0])}
    if known:
        assert in_the_middle <= missing(items)


@given(sizes, sizes, st.integers(0, 12), st.integers(0, 12), st.integers(1, 5), st.data())
def test_all_pages_forward_are_what_follows_or_say_what_is_missing(
    one: int, two: int, written: int, memory: int, limit: int, data: st.DataObject
) -> None:
    whole = order(one, two)
    world = World(whole, min(written, len(whole)), min(memory, len(whole)))
    at = data.draw(st.sampled_from([None, *whole])) if whole else None
    known = {node for node, _ in whole[: min(written, len(whole))]}
    items = world.pages(limit, back=False, at=None if at is None else Place((at[0], 1, 1), at[1]))
    seen = offsets(items)
    assert seen == sorted(set(seen))
    if known and at is not None and at[0] not in known | {value[0] for _, _, value in world.recent}:
        # nothing is left of its stream: after a gap without an end comes all that there is
        assert items[0] == Gap((at[0], 1, 1), at[1] + 1, None, "trimmed")
        at = None
    assert at is None or all(each > at for each in seen)
    there = {*whole[: min(written, len(whole))], *(each.value for each in world.recent)}
    wanted = {each for each in there if at is None or each > at}
    assert wanted <= set(seen)
    for each in set(whole) - set(seen):
        between = (at is None or each > at) and any(other > each for other in seen if other[0] == each[0])
        if between and (at is not None or seen[0] < each):
            assert each in missing(items)


async def test_a_room_that_is_not_kept_has_no_times() -> None:
    world = World(order(5, 0), 0, 3)
    for back in (True, False):
        for read in (world.read, None):
            with pytest.raises(Untimed):
                await found(Asked(ROOM, 3, back, since_ms=1), world.recent, False, read)


async def test_a_message_of_the_future_is_none() -> None:
    world = World(order(5, 0), 4, 2)
    said = await found(Asked(ROOM, 9, False, since_ms=1 << 50), world.recent, False, world.read)
    assert said.items == []
    said = await found(Asked(ROOM, 9, False, since_ms=1), world.recent, False, world.read)
    assert offsets(said.items) == order(5, 0)


async def test_a_position_that_memory_has_lost_is_a_gap() -> None:
    world = World(order(9, 0), 0, 3)
    said = await found(Asked(ROOM, 9, False, Place((1, 1, 1), 2)), world.recent, False, None)
    assert said.items[0] == Gap((1, 1, 1), 3, 6, "expired")
    assert offsets(said.items) == [(1, 7), (1, 8), (1, 9)]
    said = await found(Asked(ROOM, 9, False, Place((4, 1, 1), 2)), world.recent, False, None)
    assert said.items[0] == Gap((4, 1, 1), 3, None, "expired")


@pytest.mark.parametrize(
    "text", ["", "1:2", "1.2:3", "1.2.3:", "1.2.3:x", "1.2.3:-1", f"{1 << 32}.1.1:1", f"1.1.1:{1 << 62}"]
)
def test_a_position_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="invalid position"):
        place(text)


def test_a_position_is_as_messages_have_it() -> None:
    assert str(place("1.2.3:4")) == "1.2.3:4"
    with pytest.raises(ValueError, match="invalid stream"):
        stream_of("1.2")
