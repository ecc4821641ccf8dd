"""Certificates of servers: a key of the cluster certifies a node's address and key for clients (Ed25519, RFC 8032).

Owns the signed text and the life of a certificate. The registry carries certificates and never sees the key. It must
not know the registry: see `control/registry/certified.py`.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

LIFE_S: Final = 12 * 3_600
"""Validity of a certificate, in seconds: a stolen server key is useless this long after its node was last certified."""
RENEW_S: Final = 8 * 3_600
"""A certificate with less than this left, in seconds, is replaced: every 4 hours, so that 1,000 servers write once in
14 s. Clocks may differ by as much."""


class Claim(NamedTuple):
    """What a certificate states about a server."""

    node: int
    role: str
    cluster: str
    host: str
    port: int
    public_key: str
    """The key by which clients know the server, in hex; empty for a face."""


def public_half(key: bytes) -> str:
    """The public half of a private key, in hex."""
    return Ed25519PrivateKey.from_private_bytes(key).public_key().public_bytes_raw().hex()


def issue(key: bytes, claim: Claim, now: float, life_s: int = LIFE_S) -> tuple[int, str]:
    """Sign a claim at `now`, in seconds since 1970. Returns its end, and the signature: 64 bytes in hex."""
    until = int(now) + life_s
    return until, Ed25519PrivateKey.from_private_bytes(key).sign(_text(claim, until)).hex()


def is_due(until: int | None, now: float) -> bool:
    """Whether a certificate that ends at `until` must be replaced at `now`, both in seconds since 1970. None: there is
    no certificate."""
    return until is None or not RENEW_S < until - now <= LIFE_S


def is_genuine(keys: Sequence[str], claim: Claim, until: int, signature: str) -> bool:
    """Whether one of these public keys, in hex, signed the claim with this end."""
    text = _text(claim, until)
    for key in keys:
        try:
            Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(bytes.fromhex(signature), text)
        except (InvalidSignature, ValueError):
            continue
        return True
    return False


def _text(claim: Claim, until: int) -> bytes:
    """The signed text. No field contains a line feed: each is a name, a number, an address or hex
    (`control/registry/places.py`)."""
    return "\n".join(["muster server", *map(str, claim), str(until)]).encode()
