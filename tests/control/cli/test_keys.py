"""The list of nodes and their keys, as a node reads it."""

from pathlib import Path

import msgspec
import pytest

from muster_server import _engines
from muster_server.plane.keys import cluster_keys
from muster_server.plane.spec import Spec, SpecError
from tests.control import players

OWN = "5e" * 32
MINE = bytes(_engines.public_key(bytes.fromhex(OWN))).hex()
THEIRS = bytes(_engines.public_key(b"2" * 32)).hex()


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    """The spec of a gateway that has to prove its identity."""
    for name, content in (("cluster.secret", "ab" * 32), ("node.key", OWN + "\n")):
        (tmp_path / name).write_text(content)
    return msgspec.structs.replace(
        players.spec(0, "gateway"),
        cluster_secret_file=str(tmp_path / "cluster.secret"),
        identity="required",
        node_key_file=str(tmp_path / "node.key"),
        nodes_file=str(tmp_path / "nodes.list"),
    )


def listing(spec: Spec, *lines: str) -> None:
    Path(spec.nodes_file).write_text("\n".join(lines))


def test_a_list_says_which_key_is_which_node_in_which_role(spec: Spec) -> None:
    listing(spec, "# nodes", "", f"7 gateway {MINE} gateway-b  # mine", f"\t1 broker {THEIRS.upper()}")
    allow = cluster_keys(spec).allow
    assert allow is not None
    assert (allow.own, allow.demand, allow.number()) == (bytes.fromhex(OWN), "required", 7)
    assert allow.nodes == [(7, "gateway", bytes.fromhex(MINE)), (1, "broker", bytes.fromhex(THEIRS))]


def test_without_identities_no_list_is_read(spec: Spec) -> None:
    assert cluster_keys(msgspec.structs.replace(spec, identity="off")).allow is None


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        ([f"7 gateway {MINE}", "8 gateway"], "line 2: invalid line '8 gateway' (expected NUMBER ROLE PUBLIC-KEY)"),
        ([f"7 client {MINE}"], "line 1: 'client' is not one of router, broker, gateway, proxy"),
        ([f"0 gateway {MINE}"], "line 1: '0' is not a node number"),
        ([f"-7 gateway {MINE}"], "line 1: '-7' is not a node number"),
        ([f"4294967296 gateway {MINE}"], "line 1: '4294967296' is not a node number"),
        (["7 gateway key"], "line 1: 'key' is not hex"),
        (["7 gateway abcd"], "line 1: invalid length of a public key: 2 bytes (expected 32)"),
        ([f"7 gateway {MINE}", f"8 broker {'00' * 32}"], f"line 2: weak key {'00' * 32}: "),
        ([f"7 gateway {MINE}", f"7 broker {THEIRS}"], "line 2: node 7 is listed twice"),
        ([f"7 gateway {MINE}", f"8 broker {MINE}"], "line 2: two nodes have the same key"),
        ([f"7 router {MINE}"], "of this gateway is listed as that of a router"),
        ([f"7 gateway {THEIRS}"], f"this node is not listed; add the line: NUMBER gateway {MINE}"),
    ],
)
def test_a_list_that_says_nothing_certain_is_not_taken(spec: Spec, lines: list[str], wrong: str) -> None:
    listing(spec, *lines)
    with pytest.raises(SpecError) as raised:
        cluster_keys(spec)
    assert wrong in str(raised.value)


def test_a_node_that_has_a_number_is_not_another_one_in_the_list(spec: Spec) -> None:
    listing(spec, f"7 gateway {MINE}")
    assert cluster_keys(msgspec.structs.replace(spec, node=7)).allow
    with pytest.raises(SpecError, match="this node has the number 8, but the file lists its key with 7"):
        cluster_keys(msgspec.structs.replace(spec, node=8))


def test_a_key_that_is_not_there_comes_with_the_line_that_makes_it(spec: Spec) -> None:
    listing(spec, f"7 gateway {MINE}")
    Path(spec.node_key_file).unlink()
    with pytest.raises(SpecError, match=f"is missing; muster cluster node-key {spec.node_key_file} makes it"):
        cluster_keys(spec)


def test_a_list_is_needed_and_has_to_be_there(spec: Spec) -> None:
    with pytest.raises(SpecError, match=r"nodes\.list: cannot be read"):
        cluster_keys(spec)
    Path(spec.nodes_file).write_bytes(b"\xff\xfe")
    with pytest.raises(SpecError, match=r"nodes\.list: cannot be read: not a text file"):
        cluster_keys(spec)
    with pytest.raises(SpecError, match=r"cluster\.nodes_file: missing; cluster\.identity needs"):
        cluster_keys(msgspec.structs.replace(spec, nodes_file=""))
