"""The spec of one node's process, for one start: a file of JSON, written for each start.

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
"""Direction ("in" or "out"), peer (None: every client), chances of loss, duplicate, corrupt and reorder, then reorder
hold, delay and jitter in ms; the mean length of a burst of losses, in datagrams."""


class SpecError(Exception):
    """The spec, or a file that it names, cannot be used. One line."""


def password(file: str) -> str:
    """The password in a file; empty without one. Raises `SpecError`."""
    if not file:
        return ""
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{file}: cannot be read: {error}") from None


class AdminAccess(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """How admin ports are entered. Empty names: without a token, without TLS."""

    token_file: str = ""
    """The file with the token that opens all pages but those of probes."""
    cert_file: str = ""
    """The certificate that a node shows, and that its askers trust at any address (PEM)."""
    key_file: str = ""


class Registration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The registration of the process; for the control plane."""

    url: str
    """`embedded`, or `zk://…`."""
    folder: str
    """The folder of the embedded registry."""
    name: str
    """The stable name to which the node's number belongs."""
    partition: int
    cluster: str = "main"
    """The cluster of a broker or a proxy."""
    client: tuple[str, int] | None
    """The address of the role for clients, and its public key in hex."""
    public_key: str
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
    """The private key that certifies this server's entry, where it may hold that."""
    certificate_file: str = ""
    """Else the file of its certificate, which the holder of the key renews; without both clients show it no credential."""
    signing_keys: list[str] = []
    """The public keys, in hex, of which one certifies each server; empty: this process shows servers no credential."""
    cut_off_ms: int = 0
    """A gateway or proxy that is cut off for this long sends its clients to others; 0: it keeps them."""
    grown: bool = False
    """The layer may have another number of partitions by now than the spec says."""
    fellows: list[int] = []
    """Nodes that start together with this one: it is ready when its map says that all of them serve."""


class Spec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One node, for one start: the common fields, and the settings of its role. Addresses are (host, port)."""

    instance: str
    role: str
    node: int
    """0: the registry gives the number."""
    epoch: int
    """Grows strictly with each start of this node (I-1)."""
    bind: tuple[str, int] | None
    """For clients; None if no client connects to the role."""
    link_bind: tuple[str, int] | None
    """For links; None if the role has none."""
    admin: tuple[str, int]
    admin_access: AdminAccess = AdminAccess()
    placement_epoch: int
    nodes: list[Node]
    layers: dict[str, tuple[int, int]]
    """By partitioned role: the number of partitions of its layer, and the step of its growth."""
    servers: dict[str, list[Server]] = {}
    """By role, the nodes that clients learn if no registry knows them: host, port and public key in hex."""
    registry: Registration | None = None
    """With it, epoch and placement come from the registry; the values here are the least epoch and the first
    partitions."""
    key_id: int
    cluster_secret_file: str
    other_key_id: int = 0
    other_secret_file: str = ""
    """Also accepted; empty: there is none."""
    identity: Identity = "off"
    """Whether nodes prove their identity on links; the next two are for that."""
    node_key_file: str = ""
    nodes_file: str = ""
    name_key_file: str
    server_key_file: str | None
    """The private key by which clients know the node; None if no client connects to it."""
    reset_secret_file: str | None
    token_file: str | None
    """The shared credential of clients, for a role that checks or shows it."""
    jwt_secret_file: str = ""
    """The secrets that sign users' tokens; empty: there are none."""
    jwks: str = ""
    """The file or the URL of the key set that signs them as well."""
    revoked_file: str = ""
    """The users and tokens that open nothing any more."""
    linger_us: int = 0
    """The longest wait of a brisk turn for the next datagram."""
    recv_buffer: int
    send_buffer: int
    payload_bytes: int
    weight: int | None = None
    """Its share of new clients, for a role that clients learn."""
    reloads: int = 0
    """How often the configuration was read again: files named in the spec may have changed though it is the same."""
    faults: list[Fault] | None
    seed: int
    drain_ms: int
    log_level: Literal["debug", "info", "warning", "error"]
    log_format: Literal["json", "text"]
    settings: Any
    """The settings of this role: a struct of `RoleKind.settings`, or its form in JSON."""


def read(file: Path) -> Spec:
    """Read a spec. Raises `SpecError`."""
    return decoded(file, content(file), Spec)


def content(file: Path) -> bytes:
    """Parse the content of a spec's file. Raises `SpecError`."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise SpecError(f"{file}: cannot be read: {error.strerror}") from None


def decoded(file: Path, content: bytes, kind: type[T]) -> T:
    """Read the spec of this kind from a file. Raises `SpecError`."""
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.MsgspecError as error:
        raise SpecError(f"{file}: {error}") from None


def secret(file: str | None, length: int) -> bytes:
    """Read `length` bytes in hex from a file. Raises `SpecError`."""
    if file is None:
        raise SpecError("this role needs a secret that its spec does not name")
    try:
        raw = bytes.fromhex(Path(file).read_text(encoding="ascii").strip())
    except OSError as error:
        raise SpecError(f"{file}: cannot be read: {error.strerror}") from None
    except ValueError:
        raise SpecError(f"{file}: is not hex") from None
    if len(raw) != length:
        raise SpecError(f"{file}: has {len(raw)} bytes, not {length}")
    return raw
