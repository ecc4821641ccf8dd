"""The ring of a room that is read: what each reader gets, against a list of all that ever came."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import muster
from muster.items import Stream
from muster_server.systems.rooms.http.feeds import CHUNK_BYTES, Offsets, Ring, parse_id

ONE, TWO = (2, 1, 1), (2, 2, 1)


def message(stream: tuple[int, int, int], offset: int, data: bytes = b"x") -> muster.Message:
    return muster.Message("default:r", stream, offset, 7, data)


def events(chunk: bytes) -> list[tuple[str, dict[str, Any]]]:
    """Name and document of each event."""
    found = []
    for block in chunk.decode().split("\n\n")[:-1]:
        fields = dict(line.partition(": ")[::2] for line in block.split("\n"))
        found.append((fields.get("event", "message"), json.loads(fields["data"])))
    return found


def positions(chunk: bytes) -> list[str]:
    return [document["position"] for name, document in events(chunk) if name == "message"]


def last_id(chunk: bytes) -> str:
    found: list[str] = re.findall(r"^id: (.*)$", chunk.decode(), re.MULTILINE)
    return found[-1]


def filled(*items: muster.Item, count: int = 100, size: int = 1 << 20, whole: bool = True) -> Ring:
    ring = Ring(count, size)
    ring.whole = whole
    for item in items:
        ring.add(item)
    return ring


def test_a_reader_goes_on_after_the_id_it_has() -> None:
    ring = filled(*(message(ONE, at) for at in range(1, 6)))
    gaps, cursor = ring.after({"2.1.1": 3})
    assert gaps == b""
    assert positions(ring.take(cursor, {})[0]) == ["2.1.1:4", "2.1.1:5"]
    assert ring.after({"2.1.1": 5}) == (b"", ring.end)


def test_what_is_gone_is_a_gap_with_its_end() -> None:
    ring = filled(*(message(ONE, at) for at in range(1, 11)), count=4)
    gaps, cursor = ring.after({"2.1.1": 2})
    assert events(gaps) == [("gap", {"stream": "2.1.1", "first": 3, "last": 6, "reason": "expired"})]
    assert positions(ring.take(cursor, {})[0]) == [f"2.1.1:{at}" for at in range(7, 11)]
    assert parse_id(last_id(gaps)) == {"2.1.1": 6}


def test_of_a_stream_that_is_unknown_nobody_knows_the_end() -> None:
    ring = filled(message(TWO, 1), message(TWO, 2))
    gaps, cursor = ring.after({"2.1.1": 9})
    assert events(gaps) == [("gap", {"stream": "2.1.1", "first": 10, "last": None, "reason": "expired"})]
    assert positions(ring.take(cursor, {})[0]) == ["2.2.1:1", "2.2.1:2"]


def test_a_reader_with_wanted_headers_gets_those_messages_and_every_gap() -> None:
    def priced(offset: int, pair: str) -> muster.Message:
        return muster.Message("default:r", ONE, offset, 7, b"x", None, {"pair": pair} if pair else None)

    pairs = ["EUR", "JPY", "", "USD", "CHF"]
    ring = filled(*(priced(at, pair) for at, pair in enumerate(pairs, 1)), muster.Gap(Stream(*ONE), 6, 7, "unrepaired"))
    chunk, cursor, known = ring.take(0, {}, {"pair": ["EUR", "USD"]})
    assert positions(chunk) == ["2.1.1:1", "2.1.1:4"]
    assert [name for name, _ in events(chunk)] == ["message", "message", "gap"]
    assert (cursor, dict(known)) == (ring.end, {"2.1.1": 7})
    ring.add(priced(8, "JPY"))
    assert ring.take(cursor, known, {"pair": ["EUR"]}) == (b"", ring.end, {"2.1.1": 8})


def test_a_new_owner_s_messages_follow_those_of_the_one_before() -> None:
    ring = filled(message(ONE, 1), message(ONE, 2), message(TWO, 1), message(TWO, 2))
    gaps, cursor = ring.after({"2.1.1": 2})
    assert gaps == b""
    chunk = ring.take(cursor, {})[0]
    assert positions(chunk) == ["2.2.1:1", "2.2.1:2"]
    assert parse_id(last_id(chunk)) == {"2.1.1": 2, "2.2.1": 2}


def test_a_reader_that_lags_gets_a_gap_and_then_what_there_is() -> None:
    ring = filled(message(ONE, 1), count=3)
    _, cursor, known = ring.take(0, {})
    for at in range(2, 12):
        ring.add(message(ONE, at))
    chunk, cursor, known = ring.take(cursor, known)
    assert events(chunk)[0] == ("gap", {"stream": "2.1.1", "first": 2, "last": 8, "reason": "slow"})
    assert positions(chunk) == ["2.1.1:9", "2.1.1:10", "2.1.1:11"]
    assert ring.take(cursor, known) == (b"", ring.end, known)


def test_the_ring_is_bounded_in_bytes() -> None:
    ring = filled(*(message(ONE, at, b"x" * 1_000) for at in range(1, 1_001)), count=10_000, size=100_000)
    assert ring.bytes <= 100_000
    assert ring.end - ring.begin < 60


def test_a_chunk_is_bounded_and_the_next_one_goes_on() -> None:
    ring = filled(*(message(ONE, at, b"x" * 60_000) for at in range(1, 21)), size=1 << 24)
    seen, cursor = [], 0
    while cursor < ring.end:
        chunk, cursor, _ = ring.take(cursor, {})
        assert len(chunk) < CHUNK_BYTES + 61_000
        seen += positions(chunk)
    assert seen == [f"2.1.1:{at}" for at in range(1, 21)]


def test_binary_is_base64_and_text_is_text() -> None:
    ring = filled(message(ONE, 1, b"\xff\x00"), message(ONE, 2, "ö\n\n".encode()))
    first, second = (document for _, document in events(ring.take(0, {})[0]))
    assert first == {"position": "2.1.1:1", "sender": "7", "data": "/wA=", "encoding": "base64"}
    assert second["data"] == "ö\n\n"


def test_gaps_and_commands_are_events_of_their_own() -> None:
    ring = filled(
        message(ONE, 1),
        muster.Gap(Stream(*ONE), 2, 4, "unrepaired"),
        muster.Command("default:r", 9, 7, b"c"),
        message(ONE, 5),
    )
    names = [name for name, _ in events(ring.take(0, {})[0])]
    assert names == ["message", "gap", "command", "message"]
    assert ring.after({"2.1.1": 4})[1] == 3
    assert len(ring.messages(ring.newest(2))) == 2


@pytest.mark.parametrize("text", ["", "x", "1.2.3", "1.2:3", "1.2.3:x", "1.2.3.4:5", "1.2.3:-1", "1.2.3:1," * 100])
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_id(text)


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=40),
    st.integers(1, 8),
    st.lists(st.integers(0, 5), min_size=1, max_size=40),
)
def test_every_reader_has_each_offset_or_a_gap_over_it(sizes: list[int], count: int, steps: list[int]) -> None:
    """Readers at any pace, over a ring of any size: what they have and their gaps are all, each once and in order."""
    ring = filled(count=count)
    known: Offsets = {}
    offset = cursor = covered = 0
    waits = iter(steps * len(sizes))
    wait = next(waits)
    for size in [*sizes, 0]:
        if size:
            offset += size
            ring.add(message(ONE, offset))
        wait -= 1
        if wait > 0 and size:
            continue
        wait = next(waits, 0)
        while True:
            chunk, cursor, known = ring.take(cursor, known)
            if not chunk:
                break
            for name, document in events(chunk):
                if name == "gap":
                    assert document["first"] == covered + 1
                    covered = document["last"]
                else:
                    at = int(document["position"].rpartition(":")[2])
                    assert covered < at <= covered + 3
                    covered = at
    assert covered == offset
