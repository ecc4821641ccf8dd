"""A node's keys on links: the cluster's secrets, its own key, and the operator's list of nodes.

Reads files that a spec names. The engine does the handshakes.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from muster_server import _engines
from muster_server.plane.kinds import linked
from muster_server.plane.spec import Spec, SpecError, secret

if TYPE_CHECKING:
    from muster_server._engines import LinkOptions

KEY_BYTES: Final = 32
NODE_MAX: Final = 2**32 - 1


class Allow(NamedTuple):
    """The identities of nodes, as an engine takes them."""

    own: bytes
    """This node's private key."""
    nodes: list[tuple[int, str, bytes]]
    """Number, role and public key of each node."""
    demand: Literal["accepted", "offered", "required"]

    def number(self) -> int:
        """This node's number, found by its key."""
        public = bytes(_engines.public_key(self.own))
        return next(number for number, _, key in self.nodes if key == public)


class ClusterKeys(NamedTuple):
    """The cluster's secrets, each with its id: one for new links, and another one that is accepted."""

    current: tuple[int, bytes]
    other: tuple[int, bytes] | None
    allow: Allow | None = None
    """Set if nodes prove their identity."""


def link_options(spec: Spec) -> "LinkOptions":
    """The first argument of every engine with links. Raises `SpecError`."""
    if spec.link_bind is None:
        raise SpecError(f"a {spec.role} needs link_bind")
    keys = cluster_keys(spec)
    return {
        "node": spec.node,
        "epoch": spec.epoch,
        "link_bind": spec.link_bind,
        "cluster_key": keys.current,
        "cluster_other": keys.other,
        "cluster_allow": keys.allow,
        "seed": spec.seed,
        "recv_buffer": spec.recv_buffer,
        "send_buffer": spec.send_buffer,
        "payload_bytes": spec.payload_bytes,
        "faults": spec.faults,
    }


def cluster_keys(spec: Spec) -> ClusterKeys:
    """Read all secrets and keys of links. Raises `SpecError`."""
    current = spec.key_id, secret(spec.cluster_secret_file, KEY_BYTES)
    allow = None
    if spec.identity != "off":
        allow = _allow(spec, spec.identity)
    if not spec.other_secret_file:
        return ClusterKeys(current, None, allow)
    other = spec.other_key_id, secret(spec.other_secret_file, KEY_BYTES)
    if other[0] == current[0]:
        raise SpecError(
            f"cluster.other_key_id: {other[0]} is also the id of cluster.secret_file; give the other secret a new id"
        )
    if other[1] == current[1]:
        raise SpecError(
            f"cluster.other_secret_file: {spec.other_secret_file} has the same secret as cluster.secret_file"
        )
    return ClusterKeys(current, other, allow)


def public_key(file: str) -> str:
    """Return the public key of a private key in a file, in hex. Raises `SpecError`."""
    return bytes(_engines.public_key(secret(file, KEY_BYTES))).hex()


def check_number(spec: Spec, allow: Allow | None) -> None:
    """Check that the list has this node's number, if it has one yet. Raises `SpecError`."""
    if allow is not None and spec.node not in {0, allow.number()}:
        raise SpecError(
            f"{spec.nodes_file}: this node has the number {spec.node}, but the file lists its key with {allow.number()}"
        )


def _allow(spec: Spec, demand: Literal["accepted", "offered", "required"]) -> Allow:
    if not spec.nodes_file:
        raise SpecError("cluster.nodes_file: missing; cluster.identity needs the list of nodes and their keys")
    if not Path(spec.node_key_file).exists():
        raise SpecError(f"{spec.node_key_file}: is missing; muster cluster node-key {spec.node_key_file} makes it")
    own, public = secret(spec.node_key_file, KEY_BYTES), public_key(spec.node_key_file)
    nodes = listed(Path(spec.nodes_file))
    mine = next(((number, role) for number, role, key in nodes if key.hex() == public), None)
    if mine is None:
        raise SpecError(f"{spec.nodes_file}: this node is not listed; add the line: NUMBER {spec.role} {public}")
    if mine[1] != spec.role:
        raise SpecError(f"{spec.nodes_file}: the key {public} of this {spec.role} is listed as that of a {mine[1]}")
    allow = Allow(own, nodes, demand)
    check_number(spec, allow)
    return allow


def listed(file: Path) -> list[tuple[int, str, bytes]]:
    """Read a list of nodes: number, role and public key. Raises `SpecError`.

    One node per line, the key in hex; the rest of a line, and text after `#`, is a comment.
    """
    return list(_lines(file))


def _lines(file: Path) -> Iterator[tuple[int, str, bytes]]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{file}: cannot be read: {getattr(error, 'strerror', None) or 'not a text file'}") from None
    numbers, keys = set[int](), set[bytes]()
    for at, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"{file}, line {at}"
        if len(words) < 3:
            raise SpecError(f"{where}: invalid line {line.strip()!r} (expected NUMBER ROLE PUBLIC-KEY)")
        number, key = _number(where, words[0]), _key(where, words[2])
        if words[1] not in linked():
            raise SpecError(f"{where}: {words[1]!r} is not one of {', '.join(linked())}")
        if number in numbers:
            raise SpecError(f"{where}: node {number} is listed twice")
        if key in keys:
            raise SpecError(f"{where}: two nodes have the same key {key.hex()}")
        numbers.add(number)
        keys.add(key)
        yield number, words[1], key


def _number(where: str, word: str) -> int:
    if not word.isascii() or not word.isdecimal() or not 0 < int(word) <= NODE_MAX:
        raise SpecError(f"{where}: {word!r} is not a node number")
    return int(word)


def _key(where: str, word: str) -> bytes:
    try:
        key = bytes.fromhex(word)
    except ValueError:
        raise SpecError(f"{where}: {word!r} is not hex") from None
    if len(key) != KEY_BYTES:
        raise SpecError(f"{where}: invalid length of a public key: {len(key)} bytes (expected {KEY_BYTES})")
    if not _engines.key_proves(key):
        raise SpecError(f"{where}: weak key {word}: its private half is publicly known")
    return key
