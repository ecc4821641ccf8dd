"""Judges by their certificates which servers of the registry may receive credentials.

Owns the judgement of one entry, and the sources of a server's own certificate. `view.py` decides what follows from a
judgement; the signed text is in `plane/certificate.py`.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec
import structlog

from muster_server.control.host.addresses import address_text
from muster_server.control.registry.places import Certificate, Node
from muster_server.plane import certificate as certificates
from muster_server.plane.certificate import Claim, is_genuine, issue
from muster_server.plane.kinds import kind

NONE: Final = "no certificate: a stranger registered it, or a node of a version before 0.2"
FALSE: Final = "no key of cluster.signing_keys certified this address and public key"
ENDED: Final = "its certificate has expired: the node does not renew it, or a clock is wrong"


def certificate(key: bytes, node: Node, now: float) -> Certificate:
    """Certify an entry that has an address for clients, at `now`, in seconds since 1970."""
    return Certificate(*issue(key, _claim(node), now))


def is_due(node: Node, now: float) -> bool:
    """Whether an entry needs another certificate at `now`, in seconds since 1970."""
    return certificates.is_due(None if node.certificate is None else node.certificate.until, now)


def _claim(node: Node) -> Claim:
    assert node.client is not None
    return Claim(node.node, node.role, node.cluster, *node.client, node.public_key)


class Certified:
    """Judges by these public keys of the cluster, in hex."""

    def __init__(self, keys: Sequence[str], wall: Callable[[], float] = time.time) -> None:
        self._keys, self._wall = tuple(keys), wall

    def doubt(self, node: Node) -> str:
        """The reason why this entry of a server is not trusted; empty if it is, or if it receives no credential."""
        if node.client is None or not kind(node.role).certified:
            return ""
        if node.certificate is None:
            return NONE
        if not is_genuine(self._keys, _claim(node), node.certificate.until, node.certificate.signature):
            return FALSE
        return self.end(node)

    def end(self, node: Node) -> str:
        """The reason why a trusted entry is not trusted any more; empty if it still is. Checks its times only."""
        ended = node.certificate is not None and node.certificate.until < self._wall()
        return ENDED if ended else ""


class Source(Protocol):
    """The source of a server's certificate."""

    def fresh(self, node: Node, now: float) -> Certificate | None:
        """A new certificate for this server's entry, at `now`, in seconds since 1970; None: the server keeps its
        present one."""


class Signer:
    """A server that has the key certifies itself."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def fresh(self, node: Node, now: float) -> Certificate | None:
        """Make a certificate whenever one is due."""
        return certificate(self._key, node, now) if is_due(node, now) else None


class Delivered:
    """A server without the key: the process that has the key writes its certificates to a file."""

    def __init__(self, file: Path, keys: Sequence[str], log: structlog.typing.FilteringBoundLogger) -> None:
        self._file, self._keys, self._log = file, keys, log
        self._said = ""

    def fresh(self, node: Node, now: float) -> Certificate | None:
        """The certificate in the file, if it is new and valid. A fault is logged once."""
        try:
            found = msgspec.json.decode(self._file.read_bytes(), type=Certificate)
        except OSError as error:
            self._say(node, error.strerror or str(error))
            return None
        except msgspec.MsgspecError:
            self._say(node, "is not a certificate")
            return None
        doubt = Certified(self._keys, lambda: now).doubt(msgspec.structs.replace(node, certificate=found))
        self._say(node, doubt)
        return None if doubt or found == node.certificate else found

    def _say(self, node: Node, why: str) -> None:
        if why and why != self._said:
            assert node.client is not None
            words = (node.role, node.node, address_text(*node.client), *([node.public_key] if node.public_key else []))
            mend = f"muster cluster certify {' '.join(map(str, words))} --cluster {node.cluster} > {self._file}"
            self._log.warning(
                "no valid certificate, so clients will not connect", file=str(self._file), cause=why, mend=mend
            )
        self._said = why
