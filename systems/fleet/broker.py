"""mosquitto's files, for an installation without an MQTT broker. `muster up` runs mosquitto beside its nodes.

Owns its configuration. It must not know clients beyond their names and passwords, nor their messages. Each client reads
and writes only its own topics; the plane's users write the clients' down topics and read their up topics. A connection
without a password is refused.
"""

import base64
import fcntl
import hashlib
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from muster_server.control.host.addresses import split_address
from muster_server.plane.files import write_atomically
from muster_server.plane.kind import Launch, Program
from muster_server.systems.fleet.schema import NAME as CLIENT
from muster_server.systems.fleet.schema import PREFIX, UP_BYTES_MAX

NAME: Final = "mosquitto"
SECRET: Final = "plane.secret"
"""Name of the file with the password of the plane's own users."""
USERS: Final = "users"
AUTHORITY: Final = "authority"
"""Name of the folder with the certificates."""
NODES_MAX: Final = 16
"""Number of the plane's users for each role: of the nodes with the same index modulo this, one runs at a time."""
# of PBKDF2 for each connect, as mosquitto's own: passwords are random, and 20,000 clients connect at once
ITERATIONS: Final = 101
# limit of orders for a client that does not read; the broker drops further ones, and they count as missed
QUEUED_MAX: Final = 1_000


class Secure(NamedTuple):
    """Where clients with certificates connect."""

    host: str
    port: int
    names: tuple[str, ...]
    """Further names of this machine, for its certificate."""


class BrokerError(Exception):
    """A client cannot be enrolled. The text is one line."""


def tls(section: Callable[[str], Any]) -> Secure | None:
    """The address for clients with certificates; None: there is none."""
    fleet = section("fleet")
    if fleet is None or not fleet.tls_bind:
        return None
    host, port = split_address(fleet.tls_bind)
    return Secure(host, port, tuple(fleet.tls_names))


def plane_user(role: str, place: int) -> str:
    """The user of a node: unlike a client's name it has a dot, and each user has a connection of its own."""
    return f"plane.{role}.{place % NODES_MAX}"


def prepare(launch: Launch) -> list[str]:
    """Write its configuration, and return its arguments. Enrolled clients stay."""
    folder = launch.folder
    secret = folder / SECRET
    if not secret.exists():
        write_atomically(secret, f"{secrets.token_urlsafe(32)}\n".encode())
    word = secret.read_text(encoding="ascii").strip()
    with users(folder) as lines:
        lines.update({user: _hashed(user, word) for user in _own_users() if user not in lines})
    secure = tls(launch.section)
    banned: set[str] = set()
    if secure is not None:
        from muster_server.systems.fleet.authority import Authority, served_names  # its library takes a while

        authority = Authority(folder / AUTHORITY)
        authority.prepare(served_names(secure.host, secure.names))
        banned = authority.banned()
    write_atomically(folder / "acl", access(banned).encode())
    write_atomically(folder / "mosquitto.conf", configuration(folder, launch.host, launch.port, secure).encode())
    return ["-c", str(folder / "mosquitto.conf")]


def enroll(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Make new passwords for these clients; mosquitto uses them after a SIGHUP. Raises `BrokerError` for a bad name."""
    words = {name: secrets.token_urlsafe(18) for name in names}
    made = {name: password_line(name, word) for name, word in words.items()}
    with users(folder) as lines:
        lines.update(made)
    return words


def ban(folder: Path) -> None:
    """Write the list of access again: clients all of whose certificates are revoked have no topic. mosquitto uses it
    after a SIGHUP, for connections that are open too."""
    from muster_server.systems.fleet.authority import Authority

    write_atomically(folder / "acl", access(Authority(folder / AUTHORITY).banned()).encode())


def configuration(folder: Path, host: str, port: int, secure: Secure | None = None) -> str:
    """The content of mosquitto.conf. Without the three limits mosquitto's defaults silently lose orders in a burst."""
    lines = [
        f"listener {port} {host}",
        "protocol mqtt",
        "allow_anonymous false",
        f"password_file {folder / USERS}",
        f"acl_file {folder / 'acl'}",
        "persistence false",
        "max_inflight_messages 0",
        f"max_queued_messages {QUEUED_MAX}",
        f"message_size_limit {UP_BYTES_MAX}",
        f"max_packet_size {UP_BYTES_MAX + 1024}",
        "max_keepalive 600",
        "set_tcp_nodelay true",
        "allow_zero_length_clientid false",
        "use_username_as_clientid true",
        "sys_interval 0",
        "connection_messages false",
        "log_dest stderr",
        "log_type error",
        "log_type warning",
    ]
    if secure is not None:
        from muster_server.systems.fleet.authority import CA_CERT, REVOKED, SERVER_CERT, SERVER_KEY

        files = folder / AUTHORITY
        lines += [
            f"listener {secure.port} {secure.host}",
            "protocol mqtt",
            "use_username_as_clientid true",
            f"cafile {files / CA_CERT}",
            f"certfile {files / SERVER_CERT}",
            f"keyfile {files / SERVER_KEY}",
            f"crlfile {files / REVOKED}",
            "require_certificate true",
            "use_identity_as_username true",
            "tls_version tlsv1.2",
        ]
    if os.geteuid() == 0:
        lines.append("user root")  # otherwise mosquitto changes to a user that may not enter the private folder
    return "\n".join(lines) + "\n"


def access(banned: Iterable[str] = ()) -> str:
    """The access list: `%u` is the authenticated name of a client. `banned`: clients without any topic."""
    lines: list[str] = []
    for client in sorted(banned):
        lines += [f"user {client}", "topic deny #", ""]
    for user in _own_users():
        # The plane writes up topics only to clear messages that the broker retained for clients that are gone.
        lines += [f"user {user}", f"topic readwrite {PREFIX}/+/up/+", f"topic write {PREFIX}/+/down/+", ""]
    lines += [f"pattern write {PREFIX}/%u/up/+", f"pattern read {PREFIX}/%u/down/+", ""]
    return "\n".join(lines)


def password_line(name: str, word: str) -> str:
    """A line of mosquitto's password file (PBKDF2 with SHA-512). Raises `BrokerError` for a bad name."""
    if not CLIENT.fullmatch(name):
        raise BrokerError(f"invalid client name {name[:80]!r} (expected 1 to 64 letters, digits, '_' and '-')")
    return _hashed(name, word)


def _hashed(name: str, word: str) -> str:
    salt = os.urandom(12)
    digest = hashlib.pbkdf2_hmac("sha512", word.encode(), salt, ITERATIONS, 64)
    return f"{name}:$7${ITERATIONS}${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}\n"


def _own_users() -> list[str]:
    return [plane_user(role, place) for role in ("index", "scheduler") for place in range(NODES_MAX)]


@contextmanager
def users(folder: Path) -> Iterator[dict[str, str]]:
    """The lines of the password file by user, written back at the end; one writer at a time, over all processes."""
    file = folder / USERS
    with (folder / ".users.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = file.read_text(encoding="ascii").splitlines(keepends=True) if file.exists() else []
        lines = {line.partition(":")[0]: line for line in known}
        yield lines
        write_atomically(file, "".join(lines.values()).encode())


def _wanted(section: Any) -> bool:
    return not section("fleet").mqtt


def _bind(section: Any) -> str:
    bind: str = section("fleet").bind
    return bind


PROGRAM: Final = Program(
    name=NAME,
    about="clients of the fleet connect to it",
    binary="mosquitto",
    mend="to mend: apt-get install mosquitto, or name another MQTT broker: fleet.mqtt = mqtt://USER@HOST:PORT",
    wanted=_wanted,
    bind=_bind,
    prepare="muster_server.systems.fleet.broker:prepare",
)
