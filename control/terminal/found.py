"""The nodes that a command asks: those of the local `muster up`, or all nodes of a registry.

A registry knows a node's address and state; the node itself reports the rest at its admin address.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

import msgspec

import muster
from muster.instance import read_token
from muster.url import FORM, is_url, parse, server
from muster_server.control.cluster import instance, sdk, specs
from muster_server.control.cluster.backends import Servers
from muster_server.control.cluster.fixed import Fixed
from muster_server.control.cluster.instance import Endpoint, Folder, Process, Record
from muster_server.control.cluster.specs import absolute
from muster_server.control.config import load as config
from muster_server.control.config.options import Config
from muster_server.control.errors import TRY_LATER, UNAVAILABLE, USAGE, ConfigError, NotRunning, UserError
from muster_server.control.host.addresses import NO_ADDRESS, address_text, split_address
from muster_server.control.node.enrolment import judge, tree
from muster_server.control.registry import reach
from muster_server.control.registry.directory import Directory
from muster_server.control.registry.places import Node, Snapshot
from muster_server.control.registry.tree import Refused, Tree, TreeError, Unavailable
from muster_server.control.terminal import common
from muster_server.control.terminal import kept as maps
from muster_server.control.terminal.words import say
from muster_server.plane.kinds import kind, kinds
from muster_server.plane.spec import Registration, SpecError

REGISTRY_S: Final = 3.0
"""Limit of the wait for the registry at the start, in seconds; the user can try again."""
UNCERTIFIED: Final = (
    "cluster.token_file or cluster.signing_keys: missing; clients of these nodes need a credential, and the keys that"
    " certify the servers that receive it"
)


@dataclass(frozen=True, slots=True)
class End:
    """The options of an end client: its first gateways or edges, and its credential."""

    url: str | None = None
    gateways: Sequence[str] = ()
    token: str | None = None
    token_file: Path | None = None
    edges: Sequence[str] = ()
    """URLs of edges, for a client by WebSocket."""

    @property
    def is_user(self) -> bool:
        """Whether the options name a credential."""
        return self.url is not None or self.token is not None or self.token_file is not None

    def gateway(self) -> muster.Address | None:
        """Its gateways and its credential; None if no gateway is named. Raises `UserError`."""
        if self.url is None and not self.gateways:
            return None
        if self.url is not None and self.gateways:
            raise UserError("--gateway excludes --url, which names the gateway", USAGE)
        own = self.credential()
        with sdk.in_one_line():
            if self.url is None:
                named = muster.Address(tuple(map(server, self.gateways)), (), b"")
            elif is_url(self.url):
                named = parse(self.url)
            else:
                raise muster.Invalid(f"--url: invalid URL (expected {FORM}; muster url prints it)")
        token = named.token if own is None else own
        if not token:
            raise UserError("missing token; give --token-file or --token", USAGE)
        return replace(named, token=token)

    def credential(self) -> bytes | None:
        """Its own credential, if one is named besides the URL. Raises `UserError`."""
        if self.token is None:
            return None if self.token_file is None else _token_of(self.token_file)
        if self.token_file is not None:
            raise UserError("--token excludes --token-file", USAGE)
        return self.token.encode(errors="surrogateescape")


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a command: a configuration file, a registry that overrides it, and for clients the options of the
    connection."""

    file: Path | None = None
    registry: str | None = None
    end: End = End()
    node: str | None = None
    """The admin address of a node whose map is used instead of a registry's."""

    def config(self) -> Config:
        """The configuration with the file and the registry applied."""
        flags = {} if self.registry is None else {"registry.url": (self.registry, "--registry")}
        return config.load(self.file, flags=flags).config


class Nodes(Protocol):
    """The nodes, looked up repeatedly."""

    async def record(self) -> Record:
        """The current record. Raises `UserError`."""


class LocalNodes:
    """The instance of a folder."""

    def __init__(self, place: Folder) -> None:
        self._place = place

    async def record(self) -> Record:
        """The record that its supervisor writes."""
        return instance.find(self._place)


class RegisteredNodes:
    """Nodes of `muster serve`, from their registrations."""

    def __init__(self, settings: Config, directory: Directory, keys: Sequence[str]) -> None:
        """`keys`: those that certify its servers; without any, it names no server to clients."""
        self._settings, self._directory, self._certified = settings, directory, bool(keys)
        self._names: Mapping[int, str] = {}

    @property
    def snapshot(self) -> Snapshot:
        """The registry's map."""
        return self._directory.snapshot

    def servers(self, token: bytes, *, publishes: bool, reads: bool) -> Servers:
        """The servers that a client of these nodes should know. Raises `UserError`."""
        if not self._certified:
            raise ConfigError(UNCERTIFIED)
        where, cluster = f"the registry {self._settings.registry.url}", self._settings.serve.cluster
        return Servers(self._directory, where, cluster, token, publishes=publishes, reads=reads)

    async def record(self) -> Record:
        """A record of the current map."""
        nodes = self._directory.snapshot.nodes
        url = self._settings.registry.url
        if not nodes:
            raise NotRunning(
                f"no instance runs here, and the registry {url} has no node; start one: muster up, or muster serve"
            )
        if any(not node.name and node.node not in self._names for node in nodes):
            with contextlib.suppress(Unavailable):  # the last map stays in use: nodes are named by role and number
                self._names = await self._directory.names()
        processes = [self._process(node) for node in nodes]
        made = _record(self._settings, nodes, processes, url, certified=self._certified)
        return msgspec.structs.replace(made, uncovered=self._directory.snapshot.uncovered())

    def _process(self, node: Node) -> Process:
        return instance.registered(node, specs.admin_access(self._settings), self._names.get(node.node, ""))


class AllNodes:
    """The instance of a folder, and the other nodes of its registry."""

    def __init__(self, here: Nodes, others: RegisteredNodes) -> None:
        self._here, self._others = here, others

    async def record(self) -> Record:
        """A record of both."""
        record = await self._here.record()
        try:
            registered = await self._others.record()
        except NotRunning:
            return record
        mine = {process.node for process in record.processes}
        others = {process.node: process for process in registered.processes if process.node not in mine}
        both = msgspec.structs.replace(
            record, processes=[*record.processes, *others.values()], uncovered=registered.uncovered
        )
        ends = registered.endpoints
        return both.with_endpoints((others[end.node].role, end) for end in ends if end.node in others)


def _endpoint(node: Node) -> Endpoint:
    host, port = node.client or ("", 0)
    return Endpoint(node=node.node, host=host, port=port, public_key=node.public_key)


class KnownNodes:
    """Nodes that were not read from a registry: from a node's own map, or from a stored map."""

    def __init__(self, record: Record) -> None:
        self._record = record

    async def record(self) -> Record:
        """The same record each time."""
        return self._record


def _of_node(admin: str, settings: Config) -> KnownNodes:
    """The map of the node at this admin address; without a registry, only that node. Raises `UserError`."""
    try:
        address = split_address(admin)
    except ValueError:
        raise UserError(f"--node: {admin!r} {NO_ADDRESS}; give a node's admin address", USAGE) from None
    asked = instance.at(address, specs.admin_access(settings), f"the node at {address_text(*address)}")
    _, said = common.get(asked, "/api/v1/status")
    try:
        host, port = (said.get("addresses") or [address])[-1]
        nodes = [Node(max(1, said["node"]), said["role"], host, port, admin=address, version=said["version"])]
        if "registry" in said:
            _, placement = common.get(asked, "/api/v1/placement")
            nodes = msgspec.convert(placement["nodes"], list[Node])
    except (LookupError, TypeError, AttributeError, ValueError, msgspec.ValidationError):
        raise UserError(f"--node: {address_text(*address)} is not a Muster node", USAGE) from None
    if unknown := sorted({node.role for node in nodes} - kinds().keys()):
        raise UserError(
            f"--node: {address_text(*address)} has a node of the role {unknown[0]}, which this version does not know"
        )
    processes = [instance.registered(node, asked.access) for node in nodes]
    said_by = f"as {address_text(*address)} knows it"
    return KnownNodes(_record(settings, nodes, processes, said_by, certified=False))


def _record(
    settings: Config, nodes: Sequence[Node], processes: list[Process], registry: str, *, certified: bool
) -> Record:
    """`certified`: whether a client may present its credential to these nodes; otherwise the record names no server."""
    made = Record(
        name=settings.instance.name,
        version=", ".join(sorted({node.version for node in nodes})),
        pid=0,
        started=0,
        token_file=absolute(settings.cluster.token_file) if certified else "",
        processes=processes,
        faults=False,
        registry=registry,
    )
    listed = [node for node in nodes if certified and kind(node.role).listed]
    return made.with_endpoints((node.role, _endpoint(node)) for node in listed)


@contextlib.asynccontextmanager
async def found(where: Target, wait_s: float = REGISTRY_S, *, kept: bool = False) -> AsyncIterator[Nodes]:
    """The local instance; if none runs, or a registry is named, the nodes of that registry. Raises `UserError`.

    `kept`: for commands that only show. A node's own map can replace the registry; if the registry does not answer, the
    map that this user read last is used, and a line tells so. No credential may go to such nodes.
    """
    settings = where.config()
    if kept and where.node is not None:
        yield await asyncio.to_thread(_of_node, where.node, settings)
        return
    place = instance.folder(settings)
    if where.registry is None:
        try:
            instance.find(place)
        except NotRunning:
            if not settings.registry.url.startswith("zk://"):  # the embedded registry ended with its instance
                raise
        else:
            yield LocalNodes(place)
            return
    if not settings.registry.url:
        raise NotRunning("--registry none: nodes of muster serve are found only through a registry")
    url = settings.registry.url
    read = specs.reader(settings, url)
    async with contextlib.AsyncExitStack() as stack:
        nodes: Nodes
        try:
            _, directory = await stack.enter_async_context(reading(read, wait_s))
        except UserError as error:
            away = error.exit_code == UNAVAILABLE and not isinstance(error, NotRunning)
            last = maps.last(url) if kept and away and _is_shared(url) else None
            if last is None:
                raise
            say(f"muster: {error}; showing the map of {last.age()} ago")
            nodes = KnownNodes(last.record)
        else:
            nodes = RegisteredNodes(settings, directory, read.signing_keys)
            with contextlib.suppress(NotRunning):
                if kept and _is_shared(url):
                    maps.keep(url, await nodes.record())
        yield nodes


def _is_shared(url: str) -> bool:
    """Whether a registry's URL means the same everywhere: an embedded one belongs to its folder, and ends with its
    instance."""
    return url.startswith("zk://")


@contextlib.asynccontextmanager
async def everybody(where: Target, *, kept: bool = False) -> AsyncIterator[Nodes]:
    """As `found`, with the nodes of `muster serve` in the instance's registry. Raises `UserError`."""
    async with contextlib.AsyncExitStack() as stack:
        nodes = await stack.enter_async_context(found(where, kept=kept))
        record = await nodes.record()
        if record.pid and record.registry:
            settings = where.config()
            try:
                read = _beside(settings, record.registry)
                _, directory = await stack.enter_async_context(reading(read))
                nodes = AllNodes(nodes, RegisteredNodes(settings, directory, read.signing_keys))
            except UserError as error:
                say(f"muster: {error}; showing only the nodes of the instance")
        yield nodes


@contextlib.asynccontextmanager
async def mapped(where: Target) -> AsyncIterator[tuple[Nodes, Callable[[], Snapshot]]]:
    """The nodes, and a function that returns their registry's current map. Raises `UserError`."""
    async with found(where) as nodes:
        if isinstance(nodes, RegisteredNodes):
            yield nodes, lambda: nodes.snapshot
            return
        record = await nodes.record()
        if not record.registry:
            yield nodes, Fixed(record).snapshot
            return
        async with reading(_beside(where.config(), record.registry)) as (_, directory):
            yield nodes, lambda: directory.snapshot


def _beside(settings: Config, url: str) -> Registration:
    """How to read the registry of the local instance, whose folder has the key of its servers. Raises `UserError`."""
    keys = specs.signing_keys(settings, instance.folder(settings))
    return msgspec.structs.replace(specs.reader(settings, url), signing_keys=keys)


def once(where: Target, wait_s: float = REGISTRY_S) -> Record:
    """Look up the nodes once. Raises `UserError`."""

    async def look() -> Record:
        async with found(where, wait_s, kept=True) as nodes:
            return await nodes.record()

    return asyncio.run(look())


def client_of(record: Record) -> muster.Address:
    """The servers and the credential for a client of these nodes. Raises `UserError`."""
    if not record.token_file:
        raise ConfigError(UNCERTIFIED)
    try:
        return muster.Address((), (), read_token(record.token_file))
    except muster.MusterError as error:
        raise UserError(str(error), UNAVAILABLE) from None


def _token_of(file: Path) -> bytes:
    """Raises `UserError`."""
    try:
        return read_token(str(file))
    except muster.MusterError as error:
        raise UserError(str(error), USAGE) from None


@contextlib.asynccontextmanager
async def connected(
    where: Target, *, publishes: bool = True, reads: bool = True, ages: bool = False
) -> AsyncIterator[sdk.Client]:
    """A client of the gateways that `where` names; else of the local instance; if none runs, or a registry is named, of
    the nodes of that registry. Raises `UserError`.
    """
    if (gateway := where.end.gateway()) is not None:
        if where.registry is not None:
            raise UserError("--registry excludes --url and --gateway: an end client uses no registry", USAGE)
        async with sdk.end_client(gateway, publishes=publishes, ages=ages) as opened:
            yield opened
        return
    settings, own = where.config(), where.end.credential()
    async with found(where) as nodes:
        if not isinstance(nodes, RegisteredNodes):
            place = instance.folder(settings)
            async with sdk.connect(place, publishes=publishes, reads=reads, token=own, ages=ages) as opened:
                yield opened
            return
        token = client_of(await nodes.record()).token if own is None else own
        servers = nodes.servers(token, publishes=publishes, reads=reads)
        with sdk.in_one_line():
            async with servers.client(ages=ages) as opened:
                yield opened


@contextlib.asynccontextmanager
async def reading(where: Registration, wait_s: float = REGISTRY_S) -> AsyncIterator[tuple[Tree, Directory]]:
    """A read-only registry client. Raises `UserError` if the registry does not answer, now or inside the block."""
    until = asyncio.get_running_loop().time() + wait_s
    try:
        chosen, tried = await _answering(where)
        opened, judging = tree(chosen), judge(chosen)
    except SpecError as error:
        raise UserError(str(error)) from None
    async with Directory(opened, common.errors_alone(), judge=judging) as directory:
        try:
            async with asyncio.timeout_at(until):
                await directory.known()
        except TimeoutError:
            if isinstance(directory.trouble, Refused):
                raise ConfigError(_refused(where, directory.trouble)) from None
            raise UserError(_away(where, tried, wait_s), UNAVAILABLE) from None
        if tried:
            _know_all(opened, where)
        try:
            yield opened, directory
        except Refused as refused:
            raise ConfigError(_refused(where, refused)) from None
        except TreeError as error:
            raise UserError(f"the registry {where.url} stopped answering: {error}; try again", TRY_LATER) from None


async def _answering(where: Registration) -> tuple[Registration, Mapping[str, str]]:
    """Remove servers that accept no connection, which kazoo would retry for long. Returns the reason of each."""
    if not where.url.startswith("zk://"):
        return where, {}
    from muster_server.control.config.zookeeper import servers  # imports kazoo, only here

    hosts = servers(where.url).hosts
    tried = await asyncio.to_thread(reach.tried, hosts, one=True)
    answering = ",".join(server for server, cause in tried.items() if not cause)
    chosen = msgspec.structs.replace(where, url=where.url.replace(hosts, answering or hosts, 1))
    return chosen, tried


def _know_all(opened: Tree, where: Registration) -> None:
    """Let it also use servers that accepted no connection at first, for when the others fail."""
    from muster_server.control.config.zookeeper import servers
    from muster_server.control.registry.zookeeper import ZooKeeperTree

    assert isinstance(opened, ZooKeeperTree)
    opened.know(servers(where.url).hosts)


def _refused(where: Registration, cause: Refused) -> str:
    keys = "check registry.auth, registry.user and registry.password_file"
    return f"the registry {where.url} refuses this client: {cause}; {keys}"


def _away(where: Registration, tried: Mapping[str, str], wait_s: float) -> str:
    late = f"the registry {where.url} does not answer within {wait_s:g} s"
    if not tried:
        return (
            f"{late}; the muster up in {where.folder} serves it: see its log; it must have the release of this program"
        )
    causes = (f"{server}: {cause or 'accepts connections but gives no session'}" for server, cause in tried.items())
    way = "check ZooKeeper, and the network to it"
    if where.auth == "sasl" and "" in tried.values():  # ZooKeeper stops answering unknown users
        way += ", and at registry.user, registry.password_file"
    if where.tls_ca_file and "" in tried.values():
        way += ", and at registry.tls_ca_file: the servers' names must be in certificates of that authority"
    return f"{late} ({', '.join(causes)}); {way}"
