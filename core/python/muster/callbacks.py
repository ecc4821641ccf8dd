"""Verifies callbacks: signatures in the format of Standard Webhooks. Owns no server. Needs nothing besides Python."""

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Mapping
from typing import Final

from .errors import Invalid

PREFIX: Final = "whsec_"
OLD_S: Final = 300
"""Limit of the difference between the signature's time and now; others are refused."""


def verified(secret: str, headers: Mapping[str, str], body: bytes) -> bool:
    """Return whether this secret signed the callback within the last 5 minutes. Names of headers are in lower case.

    Raises `Invalid` for a malformed secret.
    """
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except binascii.Error:
        key = b""
    if not key:
        raise Invalid("invalid secret of a topic (expected whsec_ and Base64, as `muster topic create` prints it)")
    id, timestamp = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not (timestamp.isascii() and timestamp.isdigit()) or abs(time.time() - int(timestamp[:20])) > OLD_S:
        return False
    wanted = b"v1," + base64.b64encode(
        hmac.digest(key, f"{id}.{timestamp}.".encode(errors="replace") + body, hashlib.sha256)
    )
    told = headers.get("webhook-signature", "").encode(errors="replace").split(b" ")
    return any(hmac.compare_digest(wanted, each) for each in told)
