"""The holder of the key certifies servers that do not have it, and renews what is due."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
from structlog.testing import capture_logs

from muster_server.control.cluster.certifier import Certifier
from muster_server.control.cluster.instance import Folder
from muster_server.control.registry.certified import ENDED, FALSE, Certified, Delivered
from muster_server.control.registry.places import Certificate, Node
from muster_server.plane.certificate import LIFE_S, RENEW_S, public_half
from muster_server.plane.spec import Registration, Spec

LOG = structlog.get_logger()
KEY, OTHER = b"\x05" * 32, b"\x06" * 32
PUBLIC = "ab" * 32
ADDRESS = ("127.0.0.1", 7_400)
NODE = Node(3, "gateway", "127.0.0.1", 7_001, client=ADDRESS, public_key=PUBLIC)
SAID = "no valid certificate, so clients will not connect"


def spec(**changed: Any) -> Spec:
    where = Registration(
        url="embedded", folder="", name="gateway", partition=0, client=changed.get("client", ADDRESS),
        public_key=PUBLIC, session_ms=1, auth="none", user="", password_file="",
    )  # fmt: skip
    return Spec(
        instance="i", role="gateway", node=changed.get("node", 3), epoch=1, bind=ADDRESS, link_bind=None,
        admin=("127.0.0.1", 1), placement_epoch=0, nodes=[], layers={}, registry=where, key_id=1,
        cluster_secret_file="", name_key_file="", server_key_file=None, reset_secret_file=None, token_file=None,
        recv_buffer=0, send_buffer=0, payload_bytes=0, faults=None, seed=1, drain_ms=0, log_level="info",
        log_format="json", settings={},
    )  # fmt: skip


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def test_a_server_without_the_key_is_certified_and_renewed_and_a_clock_that_jumps_is_followed(tmp_path: Path) -> None:
    clock, place = Clock(), Folder(tmp_path)
    certifier = Certifier(place, KEY, LOG, clock)
    certifier.take("gateway", spec())
    file = place.certificate("gateway")
    source = Delivered(file, [public_half(KEY)], LOG)
    first = source.fresh(NODE, clock.now)
    assert first is not None
    assert first.until == int(clock.now) + LIFE_S
    node = msgspec.structs.replace(NODE, certificate=first)
    assert Certified([public_half(KEY)], clock).doubt(node) == ""
    for step, renewed in ((LIFE_S - RENEW_S - 1, False), (1.0, True), (-100_000.0, True), (LIFE_S + 1.0, True)):
        clock.now += step
        certifier.renew()
        found = source.fresh(node, clock.now)
        assert (found is not None) is renewed, step
        if found is not None:
            assert found.until == int(clock.now) + LIFE_S
            node = msgspec.structs.replace(node, certificate=found)
    certifier.forget("gateway")
    before = file.read_bytes()
    clock.now += LIFE_S
    certifier.renew()
    assert file.read_bytes() == before


def test_a_server_that_moves_has_another_certificate_at_once(tmp_path: Path) -> None:
    clock, place = Clock(), Folder(tmp_path)
    certifier = Certifier(place, KEY, LOG, clock)
    certifier.take("gateway", spec())
    certifier.take("gateway", spec(client=("127.0.0.1", 7_500)))
    source = Delivered(place.certificate("gateway"), [public_half(KEY)], LOG)
    assert source.fresh(NODE, clock.now) is None
    assert source.fresh(msgspec.structs.replace(NODE, client=("127.0.0.1", 7_500)), clock.now) is not None


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (None, "No such file or directory"),
        (b"", "is not a certificate"),
        (b"{}", "is not a certificate"),
        ("another key", FALSE),
        ("another node", FALSE),
        ("an old one", ENDED),
    ],
)
def test_a_wrong_file_is_said_once_with_its_mend_and_is_not_registered(
    tmp_path: Path, content: bytes | str | None, cause: str
) -> None:
    clock, place = Clock(), Folder(tmp_path)
    file = place.certificate("gateway")
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None:
        made = spec(node=4) if content == "another node" else spec()
        Certifier(place, OTHER if content == "another key" else KEY, LOG, clock).take("gateway", made)
        clock.now += LIFE_S + 1 if content == "an old one" else 0
    with capture_logs() as lines:
        source = Delivered(file, [public_half(KEY)], structlog.get_logger())
        assert [source.fresh(NODE, clock.now) for _ in range(3)] == [None] * 3
    (line,) = [each for each in lines if each["event"] == SAID]
    assert line["cause"] == cause
    assert line["mend"] == f"muster cluster certify gateway 3 127.0.0.1:7400 {PUBLIC} --cluster main > {file}"
    Certifier(place, KEY, LOG, clock).take("gateway", spec())
    assert isinstance(source.fresh(NODE, clock.now), Certificate)
