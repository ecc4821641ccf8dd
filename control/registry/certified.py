"""Judges by their certificates which servers of the registry may be shown credentials.

Owns the judgement of one entry. What follows from it is decided in `view.py`; the signed text is in
`plane/certificate.py`.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final

from control.registry.places import Certificate, Node
from plane.certificate import LIFE_S, RENEW_S, Claim, is_genuine, issue
from plane.kinds import kind

NONE: Final = "has no certificate: a stranger registered it, or a node of a version before 0.2"
FALSE: Final = "no key of cluster.signing_keys certified this address and key for clients"
ENDED: Final = "its certificate has ended: the node does not renew it, or a clock is wrong"


def certificate(key: bytes, node: Node, now: float) -> Certificate:
    """Certify an entry that has an address for clients, at `now`, in seconds since 1970."""
    return Certificate(*issue(key, _claim(node), now))


def is_due(node: Node, now: float) -> bool:
    """Whether an entry needs another certificate at `now`, in seconds since 1970."""
    left = 0.0 if node.certificate is None else node.certificate.until - now
    return not RENEW_S < left <= LIFE_S


def _claim(node: Node) -> Claim:
    assert node.client is not None
    return Claim(node.node, node.role, node.cluster, *node.client, node.public_key)


class Certified:
    """Judges by these public keys of the cluster, in hex."""

    def __init__(self, keys: Sequence[str], wall: Callable[[], float] = time.time) -> None:
        self._keys, self._wall = tuple(keys), wall

    def doubt(self, node: Node) -> str:
        """The reason why this entry of a server is not the cluster's; empty if it is, or if nothing is shown to it."""
        if node.client is None or not kind(node.role).certified:
            return ""
        if node.certificate is None:
            return NONE
        if not is_genuine(self._keys, _claim(node), node.certificate.until, node.certificate.signature):
            return FALSE
        return self.end(node)

    def end(self, node: Node) -> str:
        """The reason why an entry that was good is so no more; empty if it still is. Looks at its times alone."""
        ended = node.certificate is not None and node.certificate.until < self._wall()
        return ENDED if ended else ""
