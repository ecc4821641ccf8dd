"""The judge of `muster load edge`: each kind of fault in what a member gets is counted as that fault and no other."""

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec
import pytest

from muster_server.control.errors import UserError
from muster_server.systems.edge.load import EdgeLoad, Frames, Member, Stream, Tally
from muster_server.systems.edge.sessions import Keeper, Server
from muster_server.systems.edge.wire import Encodings, Publication, Subscribed

SIZE: Final = 60
START: Final = Subscribed("1", 0)


class Room:
    """A room with one stream and one member."""

    def __init__(self, messages: int) -> None:
        self.tally, self.frames = Tally(), Frames(8)
        keeper = Keeper([], "", "json", index=0, knocking=asyncio.Semaphore())
        self.stream = Stream(5, 0, keeper, SIZE)
        for number in range(messages):
            self.stream.answered(self.stream.add(1_000 * number), well=True)
        self.member = self.joined()

    def joined(self) -> Member:
        """One more member."""
        member = Member([self.stream], 5, self.tally, self.frames)
        member.subscribed(START)
        return member

    def pushed(self, *numbers: int) -> Sequence[Publication]:
        """Messages as an edge pushes them."""
        return [Publication(msgspec.Raw(self.stream.body(number)), 10 + number) for number in numbers]

    def counts(self) -> tuple[int, int, int, int]:
        """Delivered, lost, out of turn, corrupted."""
        tally = self.tally
        return tally.delivered, tally.lost, tally.out_of_turn, tally.corrupted


def test_a_member_that_gets_each_message_once_and_in_order_finds_no_fault() -> None:
    room = Room(4)
    room.member.publications(room.pushed(0, 1), None)
    assert not room.member.has_all()
    room.member.publications(room.pushed(2, 3), None)
    assert room.member.has_all()
    assert room.counts() == (4, 0, 0, 0)


@pytest.mark.parametrize(
    ("numbers", "delivered", "faults"), [((0, 1, 1, 2), 3, 1), ((0, 2, 1), 2, 2), ((0, 2), 2, 1), ((2, 0, 1), 1, 4)]
)
def test_a_double_a_jump_and_another_order_are_out_of_turn(numbers: Sequence[int], delivered: int, faults: int) -> None:
    room = Room(3)
    room.member.publications(room.pushed(*numbers), None)
    assert room.counts() == (delivered, 0, faults, 0)


def test_what_is_missing_behind_an_announced_gap_is_lost_and_what_comes_later_counts_again() -> None:
    room = Room(3)
    room.member.publications(room.pushed(0), None)
    room.member.subscribed(Subscribed("1", 12))
    room.member.publications(room.pushed(2), None)
    assert room.counts() == (2, 1, 0, 0)
    for number in (3, 4):
        room.stream.answered(room.stream.add(1_000 * number), well=True)
    room.member.publications(room.pushed(4), None)
    assert room.counts() == (3, 1, 1, 0)


def test_what_was_recovered_is_no_loss() -> None:
    room = Room(3)
    room.member.publications(room.pushed(0), None)
    room.member.subscribed(Subscribed("1", 12, recovered=True, publications=[*room.pushed(1, 2)]))
    assert room.member.has_all()
    assert room.counts() == (3, 0, 0, 0)
    assert room.member.position is not None
    assert room.member.position.offset == 12


def test_the_end_of_a_stream_that_was_announced_as_lost_is_counted() -> None:
    room = Room(3)
    room.member.publications(room.pushed(0), None)
    room.member.subscribed(Subscribed("1", 12))
    assert room.member.has_all()
    assert room.counts() == (1, 2, 0, 0)


def test_a_message_without_a_positive_answer_may_come_or_not() -> None:
    room = Room(1)
    stream = room.stream
    assert [stream.add(0) for _ in "12"] == [1, 2]
    stream.answered(2, well=True)
    room.member.publications(room.pushed(0, 2), None)
    assert room.counts() == (2, 0, 0, 0)  # its answer may still say that it was refused
    assert stream.answered(1, well=False) == []
    other = room.joined()
    other.publications(room.pushed(0, 1, 2), None)
    assert room.counts() == (5, 0, 0, 0)


def test_a_message_that_was_skipped_before_its_positive_answer_is_out_of_turn() -> None:
    room = Room(1)
    stream = room.stream
    assert [stream.add(0) for _ in "12"] == [1, 2]
    stream.answered(2, well=True)
    room.member.publications(room.pushed(0, 2), None)
    assert stream.answered(1, well=True) == ["out_of_turn"]


@pytest.mark.parametrize("at", [0, 3, 20, 30, SIZE - 1])
def test_a_message_with_another_byte_is_corrupted(at: int) -> None:
    room = Room(1)
    body = bytearray(room.stream.body(0))
    body[at] ^= 1
    room.member.publications([Publication(msgspec.Raw(bytes(body)), 10)], b"frame")
    assert room.counts() == (0, 0, 0, 1)
    assert not room.joined().known(b"frame")


def test_members_share_what_one_of_them_has_checked_and_each_judges_its_own_order() -> None:
    room = Room(2)
    room.member.publications(room.pushed(0), b"first")
    room.member.publications(room.pushed(1), b"second")
    other = room.joined()
    assert not other.known(b"third")
    assert other.known(b"second")
    assert other.known(b"first")
    assert room.counts() == (3, 0, 2, 0)
    assert other.position is not None
    assert other.position.offset == 10


def load(**changed: object) -> EdgeLoad:
    usual = EdgeLoad(
        urls=["ws://127.0.0.1:1"],
        token="",
        ca="",
        encodings=Encodings.both,
        members=2,
        rooms=1,
        publishers=1,
        rate=1.0,
        size=60,
        for_s=1.0,
        ramp_s=0.0,
    )
    return msgspec.structs.replace(usual, **changed)


def test_numbers_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(UserError, match="--rooms 3 is more than --members 2"):
        load(rooms=3).check()


def test_a_load_crosses_to_another_host_whole() -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(load()), type=EdgeLoad) == load()


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("ws://127.0.0.1:7450", Server("127.0.0.1", 7450, False, "/connection/websocket")),
        ("wss://example.com/live?x=1", Server("example.com", 443, True, "/live?x=1")),
        ("ws://[::1]:80/", Server("::1", 80, False, "/")),
    ],
)
def test_an_edge_is_named_by_its_url(url: str, server: Server) -> None:
    assert Server.of(url) == server


@pytest.mark.parametrize("url", ["", "http://a", "ws://", "a:1", "ws://a:x"])
def test_another_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        Server.of(url)
