"""The authority of a fleet's own mosquitto: a certificate for each client, and the list of those that are revoked.

Owns the keys, the record of what was issued, and the files that mosquitto reads. It must not know a broker's
configuration, nor a connection. A single process at a time changes them; each file is replaced as a whole.
"""

import contextlib
import fcntl
import socket
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from muster.clock import now_ms
from muster_server.plane.files import write_atomically
from muster_server.systems.fleet.schema import NAME as CLIENT

CA_CERT: Final = "ca.pem"
CA_KEY: Final = "ca.key"
SERVER_CERT: Final = "server.pem"
SERVER_KEY: Final = "server.key"
REVOKED: Final = "crl.pem"
RECORDS: Final = "certificates.json"
CA_DAYS: Final = 3_650
SERVER_DAYS: Final = 397
RENEW_DAYS: Final = 60
"""The broker's own certificate is made again at a start within this many days before its end."""
DAYS_MAX: Final = 3_650
RECORDS_MAX: Final = 200_000
"""Limit of certificates that have not ended: 20 MB of records."""
AGO: Final = timedelta(minutes=5)
"""Certificates are valid from this much earlier: clocks of clients differ."""
REQUEST_BYTES_MAX: Final = 16_384


class AuthorityError(Exception):
    """A certificate cannot be issued or revoked. The text is one line."""


class Record(msgspec.Struct, frozen=True):
    """A certificate that was issued. Times are in ms since 1970."""

    serial: str
    """In hexadecimal digits."""
    client: str
    from_ms: int
    until_ms: int
    revoked_ms: int = 0
    """0: it is not revoked."""


class Issued(msgspec.Struct, frozen=True):
    """A new certificate, and its key, which is kept nowhere."""

    record: Record
    certificate: str
    """In PEM."""
    key: str
    """In PEM; empty: the client made it."""


class Authority:
    """The files in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def made(self) -> bool:
        """True: the authority exists."""
        return (self.folder / CA_CERT).exists()

    def prepare(self, names: Sequence[str]) -> None:
        """Make what is missing or about to end: the authority, the broker's certificate for these names, the list."""
        with self._changing() as records:
            if not self.made:
                self._make()
            if not self._serves(names):
                self._serve(names)
            if not self._listed(records):
                self._list(records)

    def issue(self, client: str, days: int, request: bytes = b"") -> Issued:
        """Issue a certificate. `request`: a signing request in PEM, of which the key alone counts; without one a key is
        made. Raises `AuthorityError`."""
        if not CLIENT.fullmatch(client):
            raise AuthorityError(f"invalid client name {client[:80]!r} (expected 1 to 64 letters, digits, '_' and '-')")
        if not 1 <= days <= DAYS_MAX:
            raise AuthorityError(f"invalid number of days {days} (expected 1 to {DAYS_MAX})")
        public, key = _asked(request) if request else _own_key()
        with self._changing() as records:
            self._check()
            if len(records) >= RECORDS_MAX:
                raise AuthorityError(f"too many certificates that have not ended (limit {RECORDS_MAX:,})")
            now = datetime.now(UTC)
            begin, end = now - AGO, min(now + timedelta(days=days), self._authority()[0].not_valid_after_utc)
            usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
            made = self._signed(client, public, begin, end, usage)
            record = Record(f"{made.serial_number:x}", client, _ms(begin), _ms(end))
            records.append(record)
        return Issued(record, made.public_bytes(Encoding.PEM).decode(), key)

    def revoke(self, which: str) -> list[Record]:
        """Revoke all certificates of a client, or the one with this serial number. Returns those that were not revoked
        before. Raises `AuthorityError`."""
        with self._changing() as records:
            self._check()
            found = [each for each in records if which in {each.client, each.serial}]
            if not found:
                raise AuthorityError(f"no certificate of {which[:80]!r} has been issued, or all have ended")
            now = now_ms()
            done = [msgspec.structs.replace(each, revoked_ms=now) for each in found if not each.revoked_ms]
            by = {each.serial: each for each in done}
            records[:] = [by.get(each.serial, each) for each in records]
            self._keep(records)  # before the list, which is made of them
            self._list(records)
        return done

    def records(self) -> list[Record]:
        """The certificates that have not ended, by client."""
        return sorted(_read(self.folder / RECORDS), key=lambda each: (each.client, each.from_ms))

    def banned(self) -> set[str]:
        """The clients all of whose certificates are revoked."""
        known = self.records()
        return {each.client for each in known} - {each.client for each in known if not each.revoked_ms}

    # --- inside -------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _changing(self) -> Iterator[list[Record]]:
        """The records, written back at the end unless it fails; one writer at a time, over all processes."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self.folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            records = _read(self.folder / RECORDS)
            before = list(records)
            yield records
            if records != before:
                self._keep(records)

    def _keep(self, records: Sequence[Record]) -> None:
        write_atomically(self.folder / RECORDS, msgspec.json.encode(records))

    def _check(self) -> None:
        if not self.made:
            raise AuthorityError(
                "no authority yet; set fleet.tls_bind and start mosquitto once: muster up --with fleet"
            )

    def _make(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name(
            [x509.NameAttribute(NameOID.COMMON_NAME, f"Muster fleet {x509.random_serial_number():x}"[:64])]
        )
        now = datetime.now(UTC)
        made = _builder(name, name, key.public_key(), key.public_key(), now - AGO, now + timedelta(days=CA_DAYS))
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        made = made.add_extension(_usage(authority=True), critical=True)
        write_atomically(self.folder / CA_KEY, _pem(key))
        write_atomically(self.folder / CA_CERT, made.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))

    def _authority(self) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        certificate = x509.load_pem_x509_certificate((self.folder / CA_CERT).read_bytes())
        key = load_pem_private_key((self.folder / CA_KEY).read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey), "made by `_make`"
        return certificate, key

    def _signed(
        self, name: str, public: Any, begin: datetime, end: datetime, *extensions: x509.ExtensionType
    ) -> x509.Certificate:
        issuer, key = self._authority()
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = _builder(subject, issuer.subject, public, issuer.public_key(), begin, end)
        made = made.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        made = made.add_extension(_usage(authority=False), critical=True)
        for each in extensions:
            made = made.add_extension(each, critical=False)
        return made.sign(key, hashes.SHA256())

    def _serves(self, names: Sequence[str]) -> bool:
        """True: the broker's certificate is there, has these names, and does not end soon."""
        try:
            made = x509.load_pem_x509_certificate((self.folder / SERVER_CERT).read_bytes())
            has = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except (OSError, ValueError, x509.ExtensionNotFound):
            return False
        soon = datetime.now(UTC) + timedelta(days=RENEW_DAYS)
        return (
            made.not_valid_after_utc > soon and set(has) == set(_names(names)) and (self.folder / SERVER_KEY).exists()
        )

    def _serve(self, names: Sequence[str]) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        end = min(now + timedelta(days=SERVER_DAYS), self._authority()[0].not_valid_after_utc)
        also = x509.SubjectAlternativeName(_names(names))
        made = self._signed("mosquitto", key.public_key(), now - AGO, end, usage, also)
        write_atomically(self.folder / SERVER_KEY, _pem(key))
        write_atomically(self.folder / SERVER_CERT, made.public_bytes(Encoding.PEM))

    def _listed(self, records: Sequence[Record]) -> bool:
        """True: the list has all that is revoked; after a crash in between it has not."""
        try:
            made = x509.load_pem_x509_crl((self.folder / REVOKED).read_bytes())
        except (OSError, ValueError):
            return False
        return {each.serial_number for each in made} == {int(each.serial, 16) for each in records if each.revoked_ms}

    def _list(self, records: Sequence[Record]) -> None:
        """Write the list of revoked certificates. It is newer than the former one by a second at least: of two lists of
        one second a reader keeps the first."""
        issuer, key = self._authority()
        now = datetime.now(UTC).replace(microsecond=0)
        file = self.folder / REVOKED
        if file.exists():
            before = x509.load_pem_x509_crl(file.read_bytes()).last_update_utc
            if now <= before < now + timedelta(seconds=5):
                time.sleep((before + timedelta(seconds=1.01) - datetime.now(UTC)).total_seconds())
                now = datetime.now(UTC).replace(microsecond=0)
        made = x509.CertificateRevocationListBuilder().issuer_name(issuer.subject).last_update(now)
        made = made.next_update(issuer.not_valid_after_utc)
        known = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
        made = made.add_extension(known, critical=False)
        for each in records:
            if each.revoked_ms:
                revoked = x509.RevokedCertificateBuilder().serial_number(int(each.serial, 16))
                at = datetime.fromtimestamp(each.revoked_ms // 1000, UTC)
                made = made.add_revoked_certificate(revoked.revocation_date(at).build())
        write_atomically(file, made.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))


def served_names(host: str, more: Sequence[str]) -> list[str]:
    """The names and addresses of a broker at this address: those of the machine, and more."""
    own = [] if host in {"0.0.0.0", "::", ""} else [host]
    names = [*own, "localhost", "127.0.0.1", "::1", socket.gethostname(), *more]
    return list(dict.fromkeys(each for each in names if each))


def _read(file: Path) -> list[Record]:
    """The records of certificates that have not ended."""
    try:
        found = msgspec.json.decode(file.read_bytes(), type=list[Record])
    except FileNotFoundError:
        return []
    except msgspec.MsgspecError as error:
        raise AuthorityError(f"{file}: unreadable: {error}") from None
    now = now_ms()
    return [each for each in found if each.until_ms > now]


def _names(names: Sequence[str]) -> list[x509.GeneralName]:
    made: list[x509.GeneralName] = []
    for each in names:
        try:
            made.append(x509.IPAddress(ip_address(each)))
        except ValueError:
            made.append(x509.DNSName(each))
    return made


def _builder(
    subject: x509.Name, issuer: x509.Name, public: Any, signer: Any, begin: datetime, end: datetime
) -> x509.CertificateBuilder:
    made = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public)
    made = made.serial_number(x509.random_serial_number()).not_valid_before(begin).not_valid_after(end)
    made = made.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    return made.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )


def _own_key() -> tuple[Any, str]:
    key = ec.generate_private_key(ec.SECP256R1())
    return key.public_key(), _pem(key).decode()


def _asked(request: bytes) -> tuple[Any, str]:
    """The public key of a signing request. Raises `AuthorityError`."""
    try:
        if len(request) > REQUEST_BYTES_MAX:
            raise ValueError(f"longer than {REQUEST_BYTES_MAX:,} bytes")
        made = x509.load_pem_x509_csr(request)
        if not made.is_signature_valid:
            raise ValueError("its signature is wrong")
        public = made.public_key()
    except Exception as error:  # foreign bytes; the parser raises what its types raise
        raise AuthorityError(f"unreadable signing request: {error}"[:300]) from None
    strong = isinstance(public, ed25519.Ed25519PublicKey) or (
        public.key_size >= (2_048 if isinstance(public, rsa.RSAPublicKey) else 256)
        if isinstance(public, rsa.RSAPublicKey | ec.EllipticCurvePublicKey)
        else False
    )
    if not strong:
        raise AuthorityError(
            "the key of the signing request is too weak (expected EC from 256, RSA from 2048, Ed25519)"
        )
    return public, ""


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)
