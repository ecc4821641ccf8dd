"""The address of ZooKeeper: its URL, the user there, and the form of a path in it. Imports nothing of ZooKeeper."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

PATH_MAX: Final = 255
PATH: Final = re.compile(r"/|(?:/(?!\.{1,2}(?:/|\Z))[A-Za-z0-9._-]+)+", re.ASCII)
SESSION_S: Final = 10.0
URL: Final = re.compile(r"zk://(?P<hosts>[A-Za-z0-9_.:\[\],-]+)(?P<chroot>/.*)?")


@dataclass(frozen=True, slots=True)
class Servers:
    """The address of ZooKeeper, and the user there. With `digest` or `sasl`, only this user may use nodes that it
    creates."""

    hosts: str
    chroot: str = ""
    session_s: float = SESSION_S
    digest: str = field(default="", repr=False)
    """`user:password`, which is sent in the clear."""
    sasl: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """In kazoo's form: `mechanism`, `username`, `password`, …"""
    ca: str = ""
    """The file of the authority that signed the servers' certificates; empty: no TLS."""
    certificate: str = ""
    key: str = ""
    """The files of this client's certificate, if the servers require one."""


def servers(url: str, **more: Any) -> Servers:
    """Parse `zk://host:port,host:port/chroot`. Raises `ValueError` with the mistake."""
    match = URL.fullmatch(url)
    if match is None:
        raise ValueError(f"invalid address {url!r} (expected zk://HOST:PORT,HOST:PORT/PATH)")
    for each in match["hosts"].split(","):
        host, _, port = each.rpartition(":")
        if not (_is_host(host) and port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
            raise ValueError(f"invalid server {each!r} in {url!r} (expected HOST:PORT)")
    chroot = (match["chroot"] or "").rstrip("/")
    if chroot:
        check_path(chroot)
    return Servers(match["hosts"], chroot, **more)


def _is_host(host: str) -> bool:
    """Whether a resolver can look the name up at all; for some names it raises another error than `OSError`."""
    try:
        return bool(host.encode("idna"))
    except UnicodeError:
        return False


def check_path(path: str, *, prefix: bool = False) -> None:
    """Raise `ValueError` for an invalid path; a `prefix` gets ten digits appended."""
    if len(path) + 10 * prefix > PATH_MAX or not PATH.fullmatch(path):
        raise ValueError(f"invalid path of a node: {path[:PATH_MAX]!r}")
