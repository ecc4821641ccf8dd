"""Certificates and keys in PEM files, converted to DER for the thread of callbacks.

Owns the reading of the files, and their errors. It must not know TLS.
"""

import base64
import binascii
import re
from pathlib import Path
from typing import Final

CERTIFICATE: Final = "CERTIFICATE"
KEYS: Final = frozenset({"PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY"})
PARTS: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----\s*(.*?)-----END \1-----", re.DOTALL)
FILE_BYTES_MAX: Final = 1 << 20


class CertificateError(ValueError):
    """A file has the wrong content. The text is one line."""


def certificates(file: str) -> list[bytes]:
    """All certificates of a file. Raises `CertificateError`."""
    found = [data for label, data in _parts(file) if label == CERTIFICATE]
    if not found:
        raise CertificateError(f"{file} has no certificate (expected -----BEGIN CERTIFICATE-----)")
    return found


def key(file: str) -> bytes:
    """The private key of a file. Raises `CertificateError`."""
    found = [data for label, data in _parts(file) if label in KEYS]
    if len(found) != 1:
        raise CertificateError(f"{file} has {len(found)} private keys without a passphrase (expected 1)")
    return found[0]


def _parts(file: str) -> list[tuple[str, bytes]]:
    try:
        with Path(file).open("rb") as source:
            text = source.read(FILE_BYTES_MAX).decode("ascii", "replace")
    except OSError as error:
        raise CertificateError(f"{file}: cannot be read: {error.strerror}") from None
    found: list[tuple[str, bytes]] = []
    for label, body in PARTS.findall(text):
        if ":" in body:  # headers of an encrypted key
            continue
        try:
            found.append((label, base64.b64decode("".join(body.split()), validate=True)))
        except binascii.Error:
            raise CertificateError(f"{file}: its {label.lower()} is not base64") from None
    return found
