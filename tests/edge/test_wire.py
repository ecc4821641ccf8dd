"""The client's side of the protocol: frames in pieces, both encodings alike, and bytes that are not of it."""

import json

import pytest

from muster_server.systems.edge import wire
from muster_server.systems.edge.wire import Encodings, Malformed, Position


def served(kind: int, body: bytes) -> bytes:
    """A frame as a server sends it."""
    if len(body) < 126:
        return bytes([0x80 | kind, len(body)]) + body
    return bytes([0x80 | kind, 126]) + len(body).to_bytes(2, "big") + body


def test_frames_come_out_whole_however_the_bytes_are_cut() -> None:
    sent = [(wire.TEXT, b"{}"), (wire.BINARY, b"x" * 300), (wire.PING, b""), (wire.TEXT, b"y" * 65_535)]
    data = b"".join(served(*each) for each in sent)
    for step in (1, 2, 3, 7, 1_000, len(data)):
        found, rest = list[tuple[int, bytes]](), b""
        for at in range(0, len(data), step):
            more, rest = wire.frames(rest + data[at : at + step])
            found += more
        assert (found, rest) == (sent, b"")


@pytest.mark.parametrize("data", [b"\x81\x80\0\0\0\0", b"\x01\x01x", b"\x82\x7f" + (1 << 40).to_bytes(8, "big")])
def test_a_frame_with_a_mask_or_in_parts_or_of_any_length_is_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        wire.frames(data)


def test_a_command_says_the_same_in_both_encodings() -> None:
    since = Position("7:1", 300)
    text = wire.subscribe("json", 3, "a", since=since)
    assert json.loads(text[text.index(b"{") :]) == {
        "id": 3,
        "subscribe": {
            "channel": "a",
            "recover": True,
            "epoch": "7:1",
            "offset": 300,
            "recoverable": True,
            "positioned": True,
        },
    }
    body = b"\x0a\x01a\x18\x01\x32\x037:1\x38\xac\x02\x48\x01\x50\x01"
    assert wire.subscribe("protobuf", 3, "a", since=since)[6:] == bytes([4 + len(body), 8, 3, 0x2A, len(body)]) + body
    assert json.loads(wire.publish("json", 1, 'a"b', b'"x"')[6:]) == {
        "id": 1,
        "publish": {"channel": 'a"b', "data": "x"},
    }


def test_publications_and_answers_are_read_alike_in_both_encodings() -> None:
    lines = (
        b'{"push":{"channel":"a","pub":{"data":"x","offset":9}}}\n{"id":2,"error":{"code":111,"message":"slow"}}\n{}'
    )
    publication = b"\x22\x03" + b'"x"' + b"\x30\x09"
    push = b"\x12\x01a\x22" + bytes([len(publication)]) + publication
    pushed = b"\x22" + bytes([len(push)]) + push
    refused = b"\x08\x02\x12\x08\x08\x6f\x12\x04slow"
    body = bytes([len(pushed)]) + pushed + bytes([len(refused)]) + refused + b"\0"
    both = [wire.messages("json", lines), wire.messages("protobuf", body)]
    for messages in both:
        first, second, ping = messages
        assert first.push is not None
        assert first.push.pub is not None
        assert (first.push.channel, bytes(first.push.pub.data), first.push.pub.offset) == ("a", b'"x"', 9)
        assert second.error is not None
        assert (second.id, second.error.code, second.error.message) == (2, 111, "slow")
        assert (ping.id, ping.push) == (0, None)


@pytest.mark.parametrize(
    ("encoding", "body"), [("json", b"{"), ("json", b"[]"), ("protobuf", b"\x05\x08"), ("protobuf", b"\x02\x0a\x7f")]
)
def test_a_message_that_is_cut_is_refused(encoding: wire.Encoding, body: bytes) -> None:
    with pytest.raises(Malformed):
        wire.messages(encoding, body)


def test_sessions_take_both_encodings_in_turn() -> None:
    assert [Encodings.both.of(index) for index in range(3)] == ["json", "protobuf", "json"]
    assert {Encodings.protobuf.of(index) for index in range(3)} == {"protobuf"}
