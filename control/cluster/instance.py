"""The folder of a running instance: keys, token, and `instance.json`, by which clients and commands find it.

Owns names, modes and lifetime of these files. The supervisor owns the nodes of the instance.
"""

import contextlib
import fcntl
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Self

import msgspec
from msgspec import UNSET, UnsetType

from muster.errors import Unavailable
from muster.instance import FILE, LOCK, check_default, default_folder, lives
from muster_server.control.config.options import Config
from muster_server.control.errors import TRY_LATER, ConfigError, NotRunning, UserError
from muster_server.control.host.addresses import address_text
from muster_server.control.host.files import absolute, create_once, foreign
from muster_server.control.registry.places import Node
from muster_server.plane.files import write_atomically
from muster_server.plane.kinds import kind, kinds, listed
from muster_server.plane.spec import AdminAccess, SpecError, secret
from muster_server.plane.trust import PROBE_TOKEN, probe_token, shared_token, signing_secrets

FORMAT: Final = 1


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a gateway or proxy for clients. `public_key` in hex."""

    node: int
    host: str
    port: int
    public_key: str


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """One node's process. `admin` is the address of its HTTP administration."""

    name: str
    role: str
    node: int
    partition: int
    pid: int
    epoch: int
    restarts: int
    ready: bool
    link: tuple[str, int]
    """Port 0 where the role has no links."""
    admin: tuple[str, int]
    waits: str | UnsetType = UNSET
    """The reason why the node waits at its start."""
    registered: str | UnsetType = UNSET
    """The node's state in the registry, if it was found there."""
    cluster: str = "main"
    """The cluster of a node whose role has clusters."""
    access: AdminAccess = AdminAccess()
    """Access to its admin port."""
    bind: tuple[str, int] | UnsetType = UNSET
    """The address of a face's protocol."""
    secure: bool = False
    """Clients connect to that address by TLS."""

    @property
    def admin_url(self) -> str:
        """URL of its administration."""
        return f"http{'s' if self.access.cert_file else ''}://{address_text(*self.admin)}"


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """A third-party program that runs beside the nodes. `pid` is 0 between two processes."""

    name: str
    pid: int
    restarts: int
    ready: bool
    bind: tuple[str, int]
    waits: str | UnsetType = UNSET
    """The reason why it has not started yet."""


def at(admin: tuple[str, int], access: AdminAccess, name: str, role: str = "") -> Process:
    """A node known by its admin address only."""
    return Process(
        name=name,
        role=role,
        node=0,
        partition=0,
        pid=0,
        epoch=0,
        restarts=0,
        ready=True,
        link=(admin[0], 0),
        admin=admin,
        access=access,
    )


def registered(node: Node, access: AdminAccess, name: str = "") -> Process:
    """A node of a registry, under its stable name if that is known."""
    return Process(
        name=node.name or name or f"{node.role}-{node.node}",
        role=node.role,
        node=node.node,
        partition=node.partition,
        cluster=node.cluster,
        pid=0,
        epoch=node.epoch,
        restarts=0,
        ready=node.state == "running",
        link=(node.host, node.link_port),
        admin=node.admin or ("", 0),
        access=access,
        registered=node.state,
        bind=node.client if node.client is not None and kind(node.role).serves else UNSET,
        secure=node.secure,
    )


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `instance.json`. `pid` and `started` (clock ticks since boot) show whether it is stale.

    `pid` is 0 for nodes of `muster serve`.
    """

    format: int = FORMAT
    name: str
    version: str
    pid: int
    started: int
    pid_namespace: str = ""
    """The PID namespace of `pid`; in another one the lock of the folder shows whether the process lives."""
    token_file: str
    gateways: list[Endpoint] = []
    proxies: list[Endpoint] = []
    """Both lists are those that roles name in their descriptors (`RoleKind.listed`); `with_endpoints` fills them."""
    processes: list[Process]
    faults: bool
    registry: str | UnsetType = UNSET
    """Address of the registry, if there is one."""
    uncovered: dict[str, list[int]] | UnsetType = UNSET
    """For each layer, the partitions without a running replica, if the nodes were found in a registry."""
    programs: list[Beside] | UnsetType = UNSET
    """The programs that run beside the nodes, if there are any."""

    def of(self, role: str) -> list[Process]:
        """The processes with this role."""
        return [process for process in self.processes if process.role == role]

    @property
    def endpoints(self) -> list[Endpoint]:
        """The addresses for clients, of all roles."""
        return [end for of in listed() for end in getattr(self, of.listed)]

    def with_endpoints(self, ends: Iterable[tuple[str, Endpoint]]) -> Self:
        """Add addresses for clients, given with the node's role."""
        lists: dict[str, list[Endpoint]] = {of.listed: [*getattr(self, of.listed)] for of in listed()}
        for role, end in ends:
            lists[kind(role).listed].append(end)
        return msgspec.structs.replace(self, **lists)


@dataclass(frozen=True, slots=True)
class Folder:
    """Paths below `instance.dir`. `chosen`: the configuration names the folder; otherwise it must belong to this user."""

    path: Path
    chosen: bool = True

    @property
    def record(self) -> Path:
        """The path of the record while the instance runs."""
        return self.path / FILE

    @property
    def ports(self) -> Path:
        """The ports that the kernel chose for servers of a protocol, so that a restarted instance uses them again."""
        return self.path / "ports.json"

    @property
    def token(self) -> Path:
        """The credential of clients on this machine: one line of text."""
        return self.path / "token"

    @property
    def probe_token(self) -> Path:
        """The prober's own token, derived from the shared one at each start."""
        return self.path / PROBE_TOKEN

    @property
    def jwt_secret(self) -> Path:
        """The secrets that sign users' tokens: one or two lines of text."""
        return self.path / "jwt.secret"

    @property
    def cluster_secret(self) -> Path:
        """The cluster's secret: 32 bytes in hex."""
        return self.path / "cluster.secret"

    @property
    def name_key(self) -> Path:
        """The key of the hash that maps room names to ids: 16 bytes in hex."""
        return self.path / "names.key"

    @property
    def reset_secret(self) -> Path:
        """The reset secret, 32 bytes in hex, kept across restarts, so that a restarted role can reset its former
        sessions."""
        return self.path / "reset.secret"

    @property
    def signing_key(self) -> Path:
        """The private key that certifies the servers in the registry: 32 bytes in hex."""
        return self.path / "signing.key"

    @property
    def epochs(self) -> Path:
        """The folder of the nodes' last epochs."""
        return self.path / "epochs"

    @property
    def memberships(self) -> Path:
        """The database file, if the database is a file here."""
        return self.path / "memberships.db"

    @property
    def logs(self) -> Path:
        """The folder of the nodes' logs, unless they are on stderr."""
        return self.path / "logs"

    @property
    def node_key(self) -> Path:
        """The private key by which a `muster serve` node proves its identity on links: 32 bytes in hex."""
        return self.path / "node.key"

    @property
    def number(self) -> Path:
        """The number and the last epoch of a node of `muster serve`, in JSON."""
        return self.path / "number.json"

    def server_key(self, name: str) -> Path:
        """The private key of a node that clients connect to: 32 bytes in hex."""
        return self.path / f"{name}.key"

    def certificate(self, name: str) -> Path:
        """The certificate of a server, renewed while the instance runs."""
        return self.path / f"{name}.certificate.json"

    def spec(self, name: str) -> Path:
        """The node's spec."""
        return self.path / f"{name}.spec.json"

    def log(self, name: str) -> Path:
        """The log of a node."""
        return self.logs / f"{name}.log"

    def former_log(self, name: str) -> Path:
        """The log of a node in the previous instance."""
        return self.logs / f"{name}.log.1"

    def program(self, name: str) -> Path:
        """The folder of a program that runs beside the nodes."""
        return self.path / name


def folder(config: Config, environment: Mapping[str, str] | None = None) -> Folder:
    """The folder of this configuration's instance; the library defines the default. Raises `ConfigError`."""
    if config.instance.dir:
        return Folder(absolute(config.instance.dir))
    return Folder(default_folder(os.environ if environment is None else environment), chosen=False)


def check(place: Folder) -> None:
    """Check a default folder. Raises `ConfigError` if another user made it, `NotRunning` if it is missing."""
    try:
        if not place.chosen:
            check_default(place.path)
    except FileNotFoundError:
        raise _nothing(place) from None
    except Unavailable as error:
        raise ConfigError(str(error)) from None


def prepare(place: Folder, servers: Iterable[str] = (), token_file: str = "") -> None:
    """Make the folder, its secrets, its token and the keys of these servers, each once. Raises `UserError`.

    The prober's token is derived from the shared one, or from the one in `token_file`.
    """
    with _writing(place, "instance.dir"):
        place.epochs.mkdir(mode=0o700, exist_ok=True)
        create_once(place.cluster_secret, _hex(32))
        create_once(place.name_key, _hex(16))
        create_once(place.token, secrets.token_urlsafe(32).encode() + b"\n")
        create_once(place.jwt_secret, _hex(32))
        create_once(place.signing_key, _hex(32))
        _make_own(place, servers)
    _check_secrets(place)
    try:
        made = probe_token(shared_token(token_file or str(place.token))) + b"\n"
    except SpecError as error:
        raise ConfigError(str(error)) from None
    with _writing(place, "instance.dir"):
        write_atomically(place.probe_token, made)


def prepare_node(place: Folder, servers: Sequence[str], proves: bool = False, *, listens: bool = False) -> None:
    """Make the folder of one node of `muster serve`, without shared secrets. Raises `UserError`.

    `proves`: also make the key of its identity on links. `listens`: its clients come over TCP, and it has no key for them.
    """
    with _writing(place, "serve.dir"):
        if proves:
            make_key(place.node_key)
        if servers or listens:
            _make_own(place, servers)
    _check_secrets(place)


def wrong_secrets(place: Folder) -> Iterator[tuple[Path, str]]:
    """The files here that this user can read but no node can start with, each with the reason."""
    hexed = {place.cluster_secret: 32, place.reset_secret: 32, place.name_key: 16, place.signing_key: 32}
    servers = (file for of in kinds().values() if of.door for file in sorted(place.path.glob(f"{of.name}*.key")))
    hexed |= dict.fromkeys((place.node_key, *servers), 32)
    checks: list[tuple[Path, Callable[[], object]]] = [
        *((file, partial(secret, str(file), length)) for file, length in hexed.items()),
        (place.token, partial(shared_token, str(place.token))),
        (place.probe_token, partial(shared_token, str(place.probe_token))),
        (place.jwt_secret, partial(signing_secrets, str(place.jwt_secret))),
    ]
    for file, read in checks:
        if os.access(file, os.R_OK):
            if place.path.stat().st_uid == os.getuid() and (why := foreign(file)):
                yield file, f"{file}: {why}"
                continue
            try:
                read()
            except SpecError as error:
                yield file, str(error)


def _check_secrets(place: Folder) -> None:
    for _, reason in wrong_secrets(place):
        raise ConfigError(f"{reason}; remove it, and the next start makes a new one")


@contextlib.contextmanager
def _writing(place: Folder, key: str) -> Iterator[None]:
    try:
        place.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = place.path.lstat()
        if place.path.is_symlink() or info.st_uid != os.getuid():
            raise ConfigError(f"{place.path}: belongs to another user or is a link; set {key} to a folder of yours")
        place.path.chmod(0o700)
        yield
    except OSError as error:
        raise UserError(f"{error.filename or place.path}: cannot be written: {error.strerror}; set {key}") from None


def make_key(file: Path) -> None:
    """Make a private key, and its folder, if they are missing."""
    file.parent.mkdir(mode=0o700, exist_ok=True)
    create_once(file, _hex(32), 0o400)


def _make_own(place: Folder, servers: Iterable[str]) -> None:
    create_once(place.reset_secret, _hex(32))
    for name in servers:
        create_once(place.server_key(name), _hex(32))


@contextlib.contextmanager
def lock(place: Folder, taken: Callable[[Folder], UserError] | None = None) -> Iterator[None]:
    """Hold the folder for this process. The kernel releases it when the process ends, even after a crash.

    Raises the result of `taken` if another process holds it.
    """
    with (place.path / LOCK).open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise (taken or _taken)(place) from None
        yield


def _taken(place: Folder) -> UserError:
    try:
        running = find(place)
    except UserError:
        return UserError(f"an instance is starting or ending in {place.path}; try again in a moment", TRY_LATER)
    who = f"{running.name}, process {running.pid}, in {place.path}"
    return UserError(f"already running: {who}; stop it, or set instance.dir for a second instance")


def write(place: Folder, record: Record) -> None:
    """Publish the record."""
    write_atomically(place.record, msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")


def find(place: Folder) -> Record:
    """Read the running instance. Raises `NotRunning` if there is none, or only files of a dead one, and other
    `UserError`s."""
    check(place)
    try:
        record = msgspec.json.decode(place.record.read_bytes(), type=Record)
    except FileNotFoundError:
        raise _nothing(place) from None
    except OSError as error:
        raise UserError(f"{place.record}: cannot be read: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise UserError(f"{place.record} was written by another version of muster: {error}") from None
    try:
        alive = lives(place.path, record.pid, record.started, record.pid_namespace)
    except Unavailable as error:
        raise UserError(str(error)) from None
    if not alive:
        raise NotRunning(f"the instance in {place.path} died (process {record.pid} is gone); start one: muster up")
    return record


def _nothing(place: Folder) -> NotRunning:
    return NotRunning(f"no instance runs here ({place.record} is missing); start one: muster up")


def _hex(length: int) -> bytes:
    return secrets.token_hex(length).encode() + b"\n"
