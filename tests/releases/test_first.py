"""The client of version 1 says what that release said, byte for byte: with fixed keys it gives the recorded bytes."""

import json
from typing import Any, Final

from tests.documents import ROOT
from tests.releases import first

RECORDED: Final[dict[str, Any]] = json.loads((ROOT / "tests" / "vectors" / "version-1.json").read_text())
HANDSHAKES: Final = json.loads((ROOT / "tests" / "vectors" / "handshake.json").read_text())["handshakes"]
STREAM: Final = (3, 1_000, 1)


def said() -> dict[str, bytes]:
    """Each datagram of a session in which everything happens, under the recorded keys."""
    server, ephemeral, secret = (bytes.fromhex(RECORDED[name]) for name in ("server_public", "ephemeral", "secret"))
    connection, peer = int(RECORDED["connection"]), int(RECORDED["peer"])
    noise = first.Handshake(server, first.prologue(connection), ephemeral).message1
    seal, made = first.Seal(secret, 0), {"hello": first.hello(connection, bytes(16), noise)}
    frames = {
        "authenticate": first.log(1, [first.authenticate(b"token")]),
        "join": first.log(2, [first.join(1, "news", {})]),
        "open": first.log(3, [first.opening(2, "news", 77)]),
        "publish": first.publish(5, 6, 1, 1, [b"one", b"two"]),
        "resume": first.log(4, [first.join(3, "news", {STREAM: 12})]),
        "leave": first.log(5, [first.leave(9)]),
        "close": first.frame(first.CLOSE, b"\0"),
    }
    for sequence, (name, each) in enumerate(frames.items(), 1):
        made[name] = seal.close(sequence, first.header(first.DATA, peer, sequence), each)
    return made


def test_every_datagram_is_as_it_was_recorded() -> None:
    assert {name: each.hex() for name, each in said().items()} == RECORDED["datagrams"]


def test_its_handshake_agrees_with_the_golden_one() -> None:
    (case,) = [each for each in HANDSHAKES if each["pattern"] == first.PATTERN.decode()]
    server, prologue, ephemeral = (bytes.fromhex(case[n]) for n in ("server_public", "prologue", "initiator_entropy"))
    handshake = first.Handshake(server, prologue, ephemeral)
    assert handshake.message1.hex() == case["message1"]
    assert handshake.finish(bytes.fromhex(case["message2"])).hex() == case["secret"]
