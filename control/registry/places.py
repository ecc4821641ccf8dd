"""Paths and values in the tree: a node's registration, a layer's count, and the map of both.

Owns paths and values. `view.py` reads, doubts and keeps them; `directory.py` talks to the registry.
"""

import contextlib
import functools
import ipaddress
import re
import socket
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Final, Literal, TypeVar

import msgspec

from muster_server.control.config.layout import PARTITIONS_MAX
from muster_server.plane import engine
from muster_server.plane.kinds import clustered, doors, kinds, linked, partitioned, peers, system_of

ROOT: Final = "/pubsub"
MAIN: Final = "main"
"""The default cluster of brokers."""
NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
"""Pattern of a cluster's name, and of a process's stable name."""
COUNT: Final = "partition_num"

CLUSTERS_MAX: Final = 64
ACKS_MAX: Final = CLUSTERS_MAX + 1
"""Limit of layers that may grow at once: all clusters of brokers, and the routers."""
STEPS_MAX: Final = 1 << 16
"""Limit of a layer's steps that a node may miss; a doubling has three."""

State = Literal["init", "running", "draining"]
Step = Literal["prepare", "switched", "final"]
T = TypeVar("T")
U32 = Annotated[int, msgspec.Meta(ge=1, le=(1 << 32) - 1)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65_535)]
Host = Annotated[str, msgspec.Meta(max_length=64)]
Name = Annotated[str, msgspec.Meta(pattern=rf"^{NAME}\Z")]


class Wrong(ValueError):
    """A value of the tree is invalid. The text is one line."""


class Ack(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A process uses this record of a growing layer; `settled`: it has also done its part."""

    layer: Annotated[str, msgspec.Meta(max_length=80)]
    serial: U32
    settled: bool


class Certificate(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """States that a key of the cluster certified a server's address and key for clients: see `plane/certificate.py`."""

    until: Annotated[int, msgspec.Meta(ge=0, lt=1 << 40)]
    """End of the certificate, in seconds since 1970."""
    signature: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{128}\Z")]


class Node(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A role's process, with the addresses for its peers."""

    node: U32
    role: Annotated[str, msgspec.Meta(max_length=64)]
    host: Host
    link_port: Annotated[int, msgspec.Meta(ge=0, le=65_535)]
    """Port of its links; 0 if the role has none."""
    partition: Annotated[int, msgspec.Meta(ge=0, lt=PARTITIONS_MAX)] = 0
    """Its partition; 0 if the role has none."""
    state: State = "running"
    cluster: Name = MAIN
    """Its cluster; the default for a node that serves all clusters."""
    epoch: Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)] = 0
    """Epoch of this registration, greater than that of any earlier one of the same node (I-1)."""
    client: tuple[Host, Port] | None = None
    """Its address for clients, and its public key in hex."""
    public_key: Annotated[str, msgspec.Meta(pattern=r"^(?:[0-9a-f]{64})?\Z")] = ""
    certificate: Certificate | None = None
    """The certificate of a server to which clients present credentials. Not part of the map: it is renewed."""
    weight: Annotated[int, msgspec.Meta(ge=0, le=1_000)] = 1
    """Its share of new clients."""
    admin: tuple[Host, Port] | None = None
    version: Annotated[str, msgspec.Meta(max_length=64)] = ""
    acks: Annotated[tuple[Ack, ...], msgspec.Meta(max_length=ACKS_MAX)] = ()
    """Acknowledgements while layers grow. Not part of the map: they change the path of no message."""
    among: Annotated[int, msgspec.Meta(ge=0, le=PARTITIONS_MAX)] = 0
    """The number of partitions of its layer, as this process uses it; 0: unknown. Not part of the map either."""
    name: Annotated[str, msgspec.Meta(pattern=rf"^(?:{NAME})?\Z")] = ""
    """Its stable name, for people; empty for nodes of 0.1.0."""
    secure: bool = False
    """Clients connect to its address by TLS; False for nodes of 0.2.0, which do not tell."""


class Growth(msgspec.Struct, frozen=True, omit_defaults=True):
    """A doubling in progress and its step, with the name of its coordinator."""

    to: Annotated[int, msgspec.Meta(ge=2, le=PARTITIONS_MAX)]
    step: Step
    goal: Annotated[int, msgspec.Meta(ge=2, le=PARTITIONS_MAX)]
    """The final number of partitions, perhaps after further doublings."""
    coordinator: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    started: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Start time by the wall clock of its coordinator, in seconds since 1970; for people."""


class Count(msgspec.Struct, frozen=True, omit_defaults=True):
    """The number of partitions of a layer, a power of two that only grows, and its growth."""

    partitions: Annotated[int, msgspec.Meta(ge=1, le=PARTITIONS_MAX)]
    """The partitions over which rooms are spread; during a growth, the previous number until the growth is final."""
    serial: Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)] = 0
    """Grows with each step of each growth."""
    growth: Growth | None = None

    @property
    def used(self) -> int:
        """The number of partitions to which rooms are assigned."""
        return self.wide if grown(self) == GROWN["switched"] else self.partitions

    @property
    def wide(self) -> int:
        """The number of partitions that may have nodes."""
        return self.partitions if self.growth is None else self.growth.to

    @property
    def spread(self) -> int:
        """The number of partitions that own rooms: without those of a growth that is only prepared."""
        return self.wide if grown(self) == GROWN["switched"] else self.partitions


class Identity(msgspec.Struct, frozen=True):
    """The number of a stable name, and the last epoch taken for it."""

    node: U32
    epoch: U32


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The placement at one epoch."""

    epoch: int = 0
    nodes: tuple[Node, ...] = ()
    counts: Mapping[str, Count] = field(default_factory=lambda: MappingProxyType({}))
    """The number of partitions of a layer, by `layer`."""

    def of(self, role: str) -> tuple[Node, ...]:
        """The nodes with this role."""
        return tuple(node for node in self.nodes if node.role == role)

    def entries(self, role: str, cluster: str = MAIN) -> list[engine.Node]:
        """The nodes that a node of this role deals with, as an engine takes them; only those of its cluster."""
        roles = peers(role)
        return [
            _entry(node)
            for node in self.nodes
            if node.role in roles and (node.cluster == cluster or node.role not in _layered())
        ]

    def servers(self, cluster: str | None = None) -> dict[str, list[engine.Server]]:
        """For each role, the nodes that clients should learn, as an engine takes them.

        With a `cluster`, roles with clusters have only its nodes.
        """
        told: dict[str, list[engine.Server]] = {role: [] for role in doors()}
        for node in self.nodes:
            if node.role not in told or node.state != "running" or node.client is None:
                continue
            mine = cluster is None or node.role not in clustered() or node.cluster == cluster
            if mine and node.public_key and node.weight:
                told[node.role].append((*node.client, bytes.fromhex(node.public_key), node.weight))
        return told

    def clusters(self) -> list[str]:
        """Every cluster that has, or had, partitions."""
        counted = {name for of in self.counts for _, slash, name in [of.partition("/")] if slash}
        return sorted(counted | {node.cluster for node in self.nodes if node.role in _layered()})

    def uncovered(self) -> dict[str, list[int]]:
        """For each `layer`, the partitions that own rooms but have no running replica; empty if there is no node at
        all.

        Only for clusters with nodes: the count of a removed cluster stays in the registry.
        """
        if not self.nodes:
            return {}
        clusters = {node.cluster for node in self.nodes if node.role in clustered()} or {MAIN}
        running = {folder("", node) for node in self.nodes if node.role in partitioned() and node.state == "running"}
        present = {system_of(node.role) for node in self.nodes}
        layers = [of for of in layers_of(sorted(clusters)) if system_of(of.partition("/")[0]) in present]
        return {
            of: [at for at in range(self.counts.get(of, ONE).spread) if f"/{of}/partition{at}" not in running]
            for of in layers
        }

    def replicas_least(self) -> dict[str, int]:
        """For each `layer`, the number of running replicas of the partition with rooms that has the fewest; limited as
        `uncovered`."""
        running = Counter(
            folder("", node) for node in self.nodes if node.role in partitioned() and node.state == "running"
        )
        return {
            of: min(running[f"/{of}/partition{at}"] for at in range(self.counts.get(of, ONE).spread))
            for of in self.uncovered()
        }

    def beside(self, role: str, clusters: Sequence[str]) -> list[engine.OtherCluster]:
        """The nodes and layers of these clusters, for an engine that serves several."""
        nodes, roles = {cluster: list[engine.Node]() for cluster in clusters}, _layered() & peers(role)
        for node in self.nodes:
            if node.role in roles and node.cluster in nodes:
                nodes[node.cluster].append(_entry(node))
        return [(nodes[cluster], self._layers(cluster, roles)) for cluster in clusters]

    def layers(self, role: str, cluster: str = MAIN) -> dict[str, tuple[int, int]]:
        """The layers that a node of this role deals with, as an engine takes them."""
        return self._layers(cluster, partitioned() & peers(role))

    def _layers(self, cluster: str, roles: Collection[str]) -> dict[str, tuple[int, int]]:
        counts = {role: self.counts.get(layer(role, cluster), ONE) for role in sorted(roles)}
        return {role: (count.partitions, grown(count)) for role, count in counts.items()}


def _entry(node: Node) -> engine.Node:
    return node.node, node.role, node.host, node.link_port, node.partition, node.state


def _layered() -> frozenset[str]:
    """The roles that have separate partitions in each cluster."""
    return partitioned() & clustered()


ONE: Final = Count(1)


def grown(count: Count) -> int:
    """0 without a growth, 1 while it is prepared, 2 once rooms are spread over twice as many partitions."""
    return GROWN.get(count.growth.step, 0) if count.growth else 0


GROWN: Final[Mapping[Step, int]] = {"prepare": 1, "switched": 2}


# --- paths ----------------------------------------------------------------------------------------------------------


@functools.cache
def layer_pattern() -> str:
    """The pattern of a `layer`'s name."""
    return "|".join(rf"{role}/{NAME}" if role in clustered() else role for role in sorted(partitioned()))


@functools.cache
def _folder() -> re.Pattern[str]:
    plain = "|".join(sorted(kinds().keys() - partitioned()))
    return re.compile(rf"(?P<role>{plain})|(?P<layer>{layer_pattern()})/partition(?P<partition>0|[1-9][0-9]{{0,2}})")


_NO_PLACE: Final = ("", "", 0)


@functools.lru_cache(maxsize=4_096)
def _place(above: str) -> tuple[str, str, int]:
    """The role, the layer and the partition of the nodes below this path; without a role for none."""
    match = _folder().fullmatch(above)
    if match is None:
        return _NO_PLACE
    if match["role"]:
        return match["role"], "", 0
    return match["layer"].partition("/")[0], match["layer"], int(match["partition"])


def layer(role: str, cluster: str = MAIN) -> str:
    """The path of a partitioned role's count, below the root."""
    return f"{role}/{cluster}" if role in clustered() else role


def layers_of(clusters: Iterable[str]) -> list[str]:
    """All layers; for roles with clusters, those of these clusters."""
    found: list[str] = []
    for role in sorted(partitioned()):
        found += [layer(role, cluster) for cluster in clusters] if role in clustered() else [role]
    return found


def concerns(of: str, role: str, cluster: str) -> bool:
    """Whether nodes of this role and cluster use this layer, and so must follow its growth."""
    layered, _, name = of.partition("/")
    if system_of(layered) != system_of(role):
        return False
    return not name or role not in clustered() or name == cluster


def folder(root: str, node: Node) -> str:
    """The path below which a node registers."""
    if node.role not in partitioned():
        return f"{root}/{node.role}"
    return f"{root}/{layer(node.role, node.cluster)}/partition{node.partition}"


# --- values ---------------------------------------------------------------------------------------------------------

_NODE: Final = msgspec.json.Decoder(Node)
_COUNT: Final = msgspec.json.Decoder(Count)
_IDENTITY: Final = msgspec.json.Decoder(Identity)
VALUE_MAX: Final = 4 << 10


def encode(value: Node | Count | Identity) -> bytes:
    """The value as bytes in the tree."""
    return msgspec.json.encode(value)


def read_count(data: bytes, before: Count | None = None) -> Count:
    """Decode a layer's count, which never falls below `before`. Raises `Wrong`."""
    count = _decoded(_COUNT, data)
    if count.partitions & (count.partitions - 1):
        raise Wrong(f"invalid number of partitions {count.partitions} (expected a power of two)")
    if count.growth is not None:
        _check_growth(count, count.growth)
    if before is not None and count != before:
        _check_follows(count, before)
    return count


def is_behind(data: bytes, known: Count) -> bool:
    """Whether this is an earlier step than the known one. The known one may be forged if too many steps lie between."""
    try:
        return 0 < known.serial - _decoded(_COUNT, data).serial <= STEPS_MAX
    except Wrong:
        return False


def may_follow(data: bytes, known: Count) -> bool:
    """Whether this may be a coordinator's step after the known one: by its serial number, and if no number falls."""
    try:
        count = read_count(data)
        _check_no_fall(count, known)
    except Wrong:
        return False
    return count.serial > known.serial


def _check_growth(count: Count, growth: Growth) -> None:
    doubled = count.partitions if growth.step == "final" else 2 * count.partitions
    if growth.to != doubled:
        raise Wrong(f"{growth.step} of {growth.to} partitions with {count.partitions}: a growth must double")
    if growth.goal & (growth.goal - 1) or growth.goal < growth.to:
        raise Wrong(f"the growth to {growth.to} partitions has the goal {growth.goal}")
    if not count.serial:
        raise Wrong("the growth has no serial number")


def _check_no_fall(count: Count, before: Count) -> None:
    """Check that the number of partitions does not fall over any number of steps. Raises `Wrong`."""
    if count.partitions < before.partitions:
        raise Wrong(f"{count.partitions} partitions after {before.partitions}: the number must not fall")
    if before.growth is not None and before.growth.step != "prepare" and count.wide < before.growth.to:
        raise Wrong(f"{count.wide} partitions after the switch to {before.growth.to}")


def _check_follows(count: Count, before: Count) -> None:
    _check_no_fall(count, before)
    steps = count.serial - before.serial
    if not (0 < steps <= STEPS_MAX or count.serial == 0 == steps):
        raise Wrong(f"serial number {count.serial} after {before.serial}")
    if grown(before) == GROWN["switched"] and grown(count) == GROWN["prepare"] and count.wide == before.wide:
        raise Wrong(f"the growth to {before.wide} partitions has already taken effect")


def read_identity(data: bytes) -> Identity:
    """Read the entry of a stable name. Raises `Wrong`."""
    return _decoded(_IDENTITY, data)


def read_node(path: str, data: bytes, counts: Mapping[str, Count]) -> Node:
    """Read a node and check its path, which is below the root. Raises `Wrong`."""
    above, slash, _ = path.rpartition("/")
    role, of, partition = _place(above) if slash else _NO_PLACE
    if not role and any(re.fullmatch(f"{role}/{NAME}", path) for role in _layered()):
        raise Wrong(f"too many clusters (limit {CLUSTERS_MAX})")
    if not role:
        raise Wrong("unexpected node at this path")
    node = _decoded(_NODE, data)
    for host in {node.host, *(address[0] for address in (node.client, node.admin) if address)}:
        _check_host(host)
    if node.role != role:
        raise Wrong(f"has the role {node.role}")
    if role in linked() and not node.link_port:
        raise Wrong("has no port for links")
    if not of:
        return node
    if layer(role, node.cluster) != of or node.partition != partition:
        raise Wrong(f"has partition {node.partition} of {layer(node.role, node.cluster)}")
    check_partition(node, counts)
    return node


def check_partition(node: Node, counts: Mapping[str, Count]) -> None:
    """Check that its partition exists. Raises `Wrong`."""
    if node.role in partitioned():
        count = counts.get(layer(node.role, node.cluster))
        partitions = 0 if count is None else count.wide
        if node.partition >= partitions:
            raise Wrong(f"partition {node.partition} of {partitions}")


def _decoded(decoder: msgspec.json.Decoder[T], data: bytes) -> T:
    if len(data) > VALUE_MAX:
        raise Wrong(f"too long: {len(data)} bytes (limit {VALUE_MAX})")
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Wrong(str(error)) from None


def _check_host(host: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # quick: a start reads thousands
        first = socket.inet_pton(socket.AF_INET, host)[0]
        if 0 < first < 224:  # neither unspecified nor multicast
            return
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise Wrong(f"invalid address {host!a}") from None
    if address.is_unspecified or address.is_multicast or getattr(address, "scope_id", None):
        raise Wrong(f"{host} cannot be the address of a process")
