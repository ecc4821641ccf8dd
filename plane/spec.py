"""The spec of one node's process, for one start: a JSON file, written for each start.

Secrets are named by file, never written here.
"""

from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from muster_server.plane.engine import Node

Server = tuple[str, int, str]
T = TypeVar("T", bound=msgspec.Struct)

Identity = Literal["off", "accepted", "offered", "required"]
Fault = tuple[str, tuple[str, int] | None, float, float, float, float, int, int, int, float]
"""Injected fault: direction ("in" or "out"), peer (None: every client), chances of loss, duplicate, corrupt and
reorder, then reorder hold, delay and jitter in ms; the mean length of a burst of losses, in datagrams."""


class SpecError(Exception):
    """The spec, or a file that it names, cannot be used. The text is one line."""


def password(file: str) -> str:
    """Read the password in a file; empty without a file. Raises `SpecError`."""
    if not file:
        return ""
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{file}: cannot be read: {error}") from None


class AdminAccess(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Access to administration ports. Empty file names: without a token, without TLS."""

    token_file: str = ""
    """The file with the token for all pages except probes."""
    cert_file: str = ""
    """The certificate of a node's administration, which its clients trust at any address (PEM)."""
    key_file: str = ""


class Registration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The registration of the process; used by the control plane."""

    url: str
    """`embedded`, or `zk://…`."""
    folder: str
    """The folder of the embedded registry."""
    name: str
    """The stable name that owns the node's number."""
    partition: int
    cluster: str = "main"
    """The cluster of a broker or a proxy."""
    client: tuple[str, int] | None
    """The address of the role for clients, and its public key in hex."""
    public_key: str
    secure: bool = False
    """Clients connect to that address by TLS."""
    session_ms: int
    auth: Literal["none", "digest", "sasl"]
    user: str
    password_file: str
    tls_ca_file: str = ""
    tls_cert_file: str = ""
    tls_key_file: str = ""
    number_file: str = ""
    """The file in which the process keeps its number and epoch; empty: its parent keeps them."""
    signing_key_file: str = ""
    """The private key that certifies this server's entry, if the process may have it."""
    certificate_file: str = ""
    """Otherwise the file of its certificate, which the holder of the key renews; without either, clients present no
    credential to it."""
    signing_keys: list[str] = []
    """The public keys, in hex, one of which must certify each server; empty: this process presents no credential to
    servers."""
    cut_off_ms: int = 0
    """A gateway or proxy that is cut off for this long sends its clients to other servers; 0: it keeps them."""
    grown: bool = False
    """True: the layer may have a different number of partitions by now than the spec has."""
    fellows: list[int] = []
    """Nodes that start together with this one: it is ready when all of them serve according to its map."""


class Spec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One node, for one start: the common fields, and the settings of its role. Addresses are (host, port)."""

    instance: str
    role: str
    node: int
    """0: the registry assigns the number."""
    epoch: int
    """Grows strictly with each start of this node (I-1)."""
    bind: tuple[str, int] | None
    """Address for clients; None if no client connects to the role."""
    link_bind: tuple[str, int] | None
    """Address for links; None if the role has none."""
    admin: tuple[str, int]
    admin_access: AdminAccess = AdminAccess()
    placement_epoch: int
    nodes: list[Node]
    layers: dict[str, tuple[int, int]]
    """For each partitioned role: the number of partitions of its layer, and the step of its growth."""
    servers: dict[str, list[Server]] = {}
    """For each role, the nodes that clients learn if there is no registry: host, port and public key in hex."""
    registry: Registration | None = None
    """If set, epoch and placement come from the registry; the values here are the lowest epoch and the initial
    partitions."""
    key_id: int
    cluster_secret_file: str
    other_key_id: int = 0
    other_secret_file: str = ""
    """A second accepted secret; empty: none."""
    identity: Identity = "off"
    """Whether nodes prove their identity on links; the next two fields belong to it."""
    node_key_file: str = ""
    nodes_file: str = ""
    name_key_file: str
    server_key_file: str | None
    """The private key by which clients know the node; None if no client connects to it."""
    reset_secret_file: str | None
    token_file: str | None
    """The shared credential of clients, for a role that checks or presents it."""
    jwt_secret_file: str = ""
    """The secrets that sign users' tokens; empty: none."""
    jwks: str = ""
    """The file or the URL of a further key set that verifies them."""
    revoked_file: str = ""
    """The file of revoked users and tokens."""
    linger_us: int = 0
    """Limit of a busy turn's wait for the next datagram, in microseconds."""
    recv_buffer: int
    send_buffer: int
    payload_bytes: int
    weight: int | None = None
    """Its share of new clients, for a role that clients learn."""
    reloads: int = 0
    """Number of configuration reloads: files named in the spec may have changed though the spec is the same."""
    faults: list[Fault] | None
    seed: int
    drain_ms: int
    log_level: Literal["debug", "info", "warning", "error"]
    log_format: Literal["json", "text"]
    settings: Any
    """The settings of this role: a struct of `RoleKind.settings`, or its JSON form."""


def read(file: Path) -> Spec:
    """Read a spec. Raises `SpecError`."""
    return decoded(file, content(file), Spec)


def content(file: Path) -> bytes:
    """Read the content of a spec's file. Raises `SpecError`."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise SpecError(f"{file}: cannot be read: {error.strerror}") from None


def decoded(file: Path, content: bytes, kind: type[T]) -> T:
    """Parse the content of a file as a spec of this type. Raises `SpecError`."""
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.MsgspecError as error:
        raise SpecError(f"{file}: {error}") from None


def secret(file: str | None, length: int) -> bytes:
    """Read `length` bytes in hex from a file. Raises `SpecError`."""
    if file is None:
        raise SpecError("the spec lacks a secret that this role needs")
    try:
        raw = bytes.fromhex(Path(file).read_text(encoding="ascii").strip())
    except OSError as error:
        raise SpecError(f"{file}: cannot be read: {error.strerror}") from None
    except ValueError:
        raise SpecError(f"{file}: is not hex") from None
    if len(raw) != length:
        raise SpecError(f"{file}: invalid length: {len(raw)} bytes (expected {length})")
    return raw
