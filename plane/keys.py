"""A node's keys on links: the cluster's secrets, its own key, and the operator's list of nodes.

Reads files that a spec names. Handshakes are the engine's business.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple

from muster import _core
from muster_server.plane.kinds import linked
from muster_server.plane.spec import Spec, SpecError, secret

KEY_BYTES: Final = 32
NODE_MAX: Final = 2**32 - 1


class Allow(NamedTuple):
    """The identities of nodes, as an engine takes them."""

    own: bytes
    """This node's private key."""
    nodes: list[tuple[int, str, bytes]]
    """Number, role and public key."""
    demand: Literal["accepted", "offered", "required"]

    def number(self) -> int:
        """This node's own number, by its key."""
        public = bytes(_core.public_key(self.own))
        return next(number for number, _, key in self.nodes if key == public)


class ClusterKeys(NamedTuple):
    """The cluster's secrets, each with its id: for new links, and another one that is accepted."""

    current: tuple[int, bytes]
    other: tuple[int, bytes] | None
    allow: Allow | None = None
    """If nodes prove their identity."""


def cluster_keys(spec: Spec) -> ClusterKeys:
    """Read everything that links are made and accepted with. Raises `SpecError`."""
    current = spec.key_id, secret(spec.cluster_secret_file, KEY_BYTES)
    allow = None
    if spec.identity != "off":
        allow = _allow(spec, spec.identity)
    if not spec.other_secret_file:
        return ClusterKeys(current, None, allow)
    other = spec.other_key_id, secret(spec.other_secret_file, KEY_BYTES)
    if other[0] == current[0]:
        raise SpecError(f"cluster.other_key_id: {other[0]} is the id of cluster.secret_file already")
    if other[1] == current[1]:
        raise SpecError(
            f"cluster.other_secret_file: {spec.other_secret_file} has the same secret as cluster.secret_file"
        )
    return ClusterKeys(current, other, allow)


def public_key(file: str) -> str:
    """The public key of a private one in a file, in hex. Raises `SpecError`."""
    return bytes(_core.public_key(secret(file, KEY_BYTES))).hex()


def check_number(spec: Spec, allow: Allow | None) -> None:
    """Check that the list has this node under its number, if it has one yet. Raises `SpecError`."""
    if allow is not None and spec.node not in {0, allow.number()}:
        raise SpecError(f"{spec.nodes_file}: this is node {spec.node}, and there it is {allow.number()}")


def _allow(spec: Spec, demand: Literal["accepted", "offered", "required"]) -> Allow:
    if not spec.nodes_file:
        raise SpecError("cluster.nodes_file: missing; cluster.identity needs the list of nodes and their keys")
    if not Path(spec.node_key_file).exists():
        raise SpecError(f"{spec.node_key_file}: is missing; muster cluster node-key {spec.node_key_file} makes it")
    own, public = secret(spec.node_key_file, KEY_BYTES), public_key(spec.node_key_file)
    nodes = listed(Path(spec.nodes_file))
    mine = next(((number, role) for number, role, key in nodes if key.hex() == public), None)
    if mine is None:
        raise SpecError(f"{spec.nodes_file}: this node is not in it; its line is: NUMBER {spec.role} {public}")
    if mine[1] != spec.role:
        raise SpecError(f"{spec.nodes_file}: the key of this {spec.role} is that of a {mine[1]} there, {public}")
    allow = Allow(own, nodes, demand)
    check_number(spec, allow)
    return allow


def listed(file: Path) -> list[tuple[int, str, bytes]]:
    """Read a list of nodes: number, role and public key. Raises `SpecError`.

    One a line, the key in hex; the rest of a line, and text after `#`, is for people.
    """
    return list(_lines(file))


def _lines(file: Path) -> Iterator[tuple[int, str, bytes]]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{file}: cannot be read: {getattr(error, 'strerror', None) or 'is no text'}") from None
    numbers, keys = set[int](), set[bytes]()
    for at, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"{file}, line {at}"
        if len(words) < 3:
            raise SpecError(f"{where}: {line.strip()!r} is not NUMBER ROLE PUBLIC-KEY")
        number, key = _number(where, words[0]), _key(where, words[2])
        if words[1] not in linked():
            raise SpecError(f"{where}: {words[1]!r} is not one of {', '.join(linked())}")
        if number in numbers:
            raise SpecError(f"{where}: node {number} is listed twice")
        if key in keys:
            raise SpecError(f"{where}: two nodes with one key, {key.hex()}")
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
        raise SpecError(f"{where}: a public key has {KEY_BYTES} bytes, not {len(key)}")
    if not _core.key_proves(key):
        raise SpecError(f"{where}: {word} is a weak key: everybody has its private half")
    return key
