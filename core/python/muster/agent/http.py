"""The kind `http`: one request with its phases, and facts of TLS. The target is a URL.

Fields of each request as those of RIPE Atlas's HTTP measurement (`ttr`, `ttc`, `ttfb`, `rt`, `res`, `hsize`, `bsize`,
…), with the same meaning; `ms`, `tls` and `uri` of each are our own. Redirects are followed only if the order asks for
it, and each one is judged as the first target was. The codec is h11's.
"""

import asyncio
import ssl
import time
from typing import Any, Final, NamedTuple
from urllib.parse import urljoin, urlsplit

import h11
from cryptography import x509

from ..errors import MusterError
from ..fleet import Failed
from .connects import connected, reason
from .options import BadOption, Options
from .reach import Address, Reach, TargetRefused, Unresolved

PORTS: Final = {"http": 80, "https": 443}
URL_MAX: Final = 2_048
HEAD_BYTES_MAX: Final = 65_536
BODY_BYTES_MAX: Final = 10 << 20
BODY_BYTES: Final = 1 << 20
READ_BYTES: Final = 65_536
REDIRECTS_MAX: Final = 5
MOVED: Final = frozenset({301, 302, 303, 307, 308})
FAILS_FROM: Final = 400
NAME_CHARS_MAX: Final = 256
AGENT: Final = "muster-agent"


class BadAnswer(MusterError):
    """The server sent something that is no HTTP answer."""

    code = "bad_answer"


class _Place(NamedTuple):
    """A parsed URL."""

    secure: bool
    host: str
    port: int
    path: str
    shown: str
    """The value of the header Host."""


class _Wanted(NamedTuple):
    method: str
    verify: bool
    body_max: int
    family: int


async def http(target: str, options: dict[str, Any], reach: Reach) -> dict[str, Any]:
    """Request a URL. Options: `method` (GET, HEAD), `redirects` [0 to 5], `verify`, `body_max` [bytes], `af`. Raises
    `Failed` for a status from 400 on, a certificate that is not trusted, and anything that ends the request."""
    given = Options(options)
    method = given.one_of("method", "GET", ("GET", "HEAD"))
    redirects = given.whole("redirects", 0, 0, REDIRECTS_MAX)
    verify = given.yes("verify", True)
    body_max = given.whole("body_max", BODY_BYTES, 0, BODY_BYTES_MAX)
    wanted = _Wanted(method, verify, body_max, given.family())
    given.end()
    said: dict[str, Any] = {"uri": target, "ms": None, "result": []}
    url, began = target, time.perf_counter()
    while True:
        one: dict[str, Any] = {"uri": url, "method": method}
        said["result"].append(one)
        try:
            await _request(parsed(url), wanted, reach, one)
        except (TargetRefused, BadOption) as error:
            if len(said["result"]) == 1:
                raise
            raise Failed(f"{type(error).__name__}: redirected: {error}", said) from None
        except (BadAnswer, Unresolved, ssl.SSLError, OSError, EOFError) as error:
            one["err"] = _why(error)
            raise Failed(one["err"], said) from None
        moved = one["res"] in MOVED and one.get("location")
        if not (moved and len(said["result"]) <= redirects):
            break
        url = urljoin(url, one["location"])
    said["ms"] = round((time.perf_counter() - began) * 1000, 3)
    if one["res"] >= FAILS_FROM:
        raise Failed(f"status {one['res']}", said)
    return said


def parsed(url: str) -> _Place:
    """Parse a URL. Raises `BadOption`."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or PORTS.get(parts.scheme, 0)
    except ValueError:
        parts, host, port = urlsplit(""), "", 0
    plain = url.isascii() and url.isprintable() and " " not in url and "\\" not in url and len(url) <= URL_MAX
    if not (plain and host and port and parts.scheme in PORTS and "@" not in parts.netloc):
        raise BadOption(f"invalid URL {url!r:.80} (expected http://HOST/ or https://HOST/, in ASCII, without a user)")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    name = f"[{host}]" if ":" in host else host
    shown = name if port == PORTS[parts.scheme] else f"{name}:{port}"
    return _Place(parts.scheme == "https", host, port, path, shown)


async def _request(place: _Place, wanted: _Wanted, reach: Reach, said: dict[str, Any]) -> None:
    """Make a request; `said` has the phases that it reached, also if it fails."""
    began = time.perf_counter()
    address = await reach.address(place.host, wanted.family)
    said |= {"ttr": _since(began), "dst_addr": address.ip, "dst_port": place.port, "af": address.family}
    made, took = await connected(address, place.port)
    said |= {"ttc": round(took, 3), "src_addr": str(made.getsockname()[0])}
    try:
        if place.secure:
            shook = time.perf_counter()
            trust = _context(wanted.verify)
            reader, writer = await asyncio.open_connection(sock=made, ssl=trust, server_hostname=place.host)
            said["tls"] = {"rt": _since(shook), "verified": wanted.verify} | _facts(writer)
        else:
            reader, writer = await asyncio.open_connection(sock=made)
    except ssl.SSLCertVerificationError:
        said["tls"] = {"verified": False} | await _unverified(address, place)
        raise
    except BaseException:
        made.close()
        raise
    try:
        await _exchange(place, wanted, reader, writer, said)
        said["rt"] = _since(began)
    finally:
        writer.transport.abort()


async def _exchange(
    place: _Place, wanted: _Wanted, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, said: dict[str, Any]
) -> None:
    """Send the request, and read the answer to its end or to `body_max`. Raises `BadAnswer`."""
    codec = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)
    head = [("Host", place.shown), ("User-Agent", AGENT), ("Accept", "*/*"), ("Connection", "close")]
    request = h11.Request(method=wanted.method, target=place.path, headers=head)
    sent = time.perf_counter()
    writer.write((codec.send(request) or b"") + (codec.send(h11.EndOfMessage()) or b""))
    said |= {"bsize": 0, "hsize": 0}
    data = b"-"
    try:
        while True:
            event = codec.next_event()
            if event is h11.NEED_DATA:
                data = await reader.read(READ_BYTES)
                said.setdefault("ttfb", _since(sent))
                if "res" not in said:
                    said["hsize"] += len(data)
                codec.receive_data(data)
            elif isinstance(event, h11.Response):
                said |= {"res": event.status_code, "ver": event.http_version.decode()}
                said["hsize"] -= len(codec.trailing_data[0])
                _note_location(event, said)
            elif isinstance(event, h11.Data):
                said["bsize"] += len(event.data)
                if said["bsize"] > wanted.body_max:
                    said |= {"bsize": wanted.body_max, "truncated": True}
                    return
            elif isinstance(event, h11.EndOfMessage):
                return
    except h11.RemoteProtocolError as error:
        if not data:
            raise BadAnswer("the server closed the connection before its answer was complete") from None
        raise BadAnswer(f"malformed answer: {error}"[:200]) from None


def _note_location(event: h11.Response, said: dict[str, Any]) -> None:
    for name, value in event.headers:
        if name == b"location" and event.status_code in MOVED:
            said["location"] = value.decode("ascii", "replace")[:URL_MAX]


def _context(verify: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


async def _unverified(address: Address, place: _Place) -> dict[str, Any]:
    """The facts of a certificate that is not trusted, by a second handshake; nothing is sent on it."""
    try:
        made, _ = await connected(address, place.port)
        try:
            _, writer = await asyncio.open_connection(sock=made, ssl=_context(False), server_hostname=place.host)
        except BaseException:
            made.close()
            raise
    except OSError:
        return {}
    try:
        return _facts(writer)
    finally:
        writer.transport.abort()


def _facts(writer: asyncio.StreamWriter) -> dict[str, Any]:
    """Version and cipher of a connection, and issuer, subject and times of the server's certificate."""
    made: ssl.SSLObject = writer.get_extra_info("ssl_object")
    cipher = made.cipher()
    said: dict[str, Any] = {"ver": made.version(), "server_cipher": cipher[0] if cipher else None}
    try:
        certificate = x509.load_der_x509_certificate(made.getpeercert(binary_form=True) or b"")
        said |= {
            "issuer": certificate.issuer.rfc4514_string()[:NAME_CHARS_MAX],
            "subject": certificate.subject.rfc4514_string()[:NAME_CHARS_MAX],
            "not_before": f"{certificate.not_valid_before_utc:%Y-%m-%dT%H:%M:%SZ}",
            "not_after": f"{certificate.not_valid_after_utc:%Y-%m-%dT%H:%M:%SZ}",
        }
    except Exception as error:  # hostile bytes; the parser raises what its types raise
        said["cert_err"] = f"{type(error).__name__}: {error}"[:200]
    return said


def _why(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {(error.reason or str(error)).lower().replace('_', ' ')}"
    return (reason(error) if isinstance(error, OSError) else str(error)) or type(error).__name__


def _since(began: float) -> float:
    return round((time.perf_counter() - began) * 1000, 3)
