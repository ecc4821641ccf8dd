"""The address of an instance in one text: `muster://HOST:PORT/KEY?token=TOKEN`.

HOST and PORT are those of a gateway, KEY is its public key in hex. `gateway=HOST:PORT:KEY` names a further gateway, and
may be repeated. An unknown parameter is refused, since it may change how a server is checked. No error shows a token.
"""

from collections.abc import Sequence
from typing import Final
from urllib.parse import SplitResult, parse_qsl, quote, urlsplit

from .errors import Invalid
from .instance import Address, Endpoint

SCHEME: Final = "muster"
FORM: Final = "muster://HOST:PORT/KEY?token=TOKEN"
SERVER: Final = "HOST:PORT:KEY"
KEY_DIGITS: Final = 64
"""Digits of a public key: 32 bytes in hex."""
PARAMETERS: Final = ("token", "gateway")
TOKEN_SAFE: Final = "-._~"


def is_url(text: object) -> bool:
    """Whether the text begins like such a URL."""
    return isinstance(text, str) and text.startswith(f"{SCHEME}://")


def parse(text: str) -> Address:
    """Parse a URL; the token is empty if the URL has none. Raises `Invalid`."""
    try:
        parts = urlsplit(text)
        said = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query), errors="strict")
    except ValueError:
        raise Invalid(f"invalid URL (expected {FORM})") from None
    if parts.scheme != SCHEME or parts.fragment or parts.username is not None:
        raise Invalid(f"invalid URL (expected {FORM})")
    if unknown := sorted({name for name, _ in said} - set(PARAMETERS)):
        raise Invalid(f"unknown parameter {unknown[0]!r:.40} in the URL (this version knows {', '.join(PARAMETERS)})")
    tokens = [value for name, value in said if name == "token"]
    if len(tokens) > 1:
        raise Invalid("the URL has more than one token")
    more = [server(value) for name, value in said if name == "gateway"]
    return Address((_first(parts), *more), (), "".join(tokens).encode())


def server(text: str) -> Endpoint:
    """Parse `HOST:PORT:KEY`; an IPv6 address is in brackets. Raises `Invalid`."""
    place, _, key = text.rpartition(":")
    try:
        parts = urlsplit(f"//{place}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port or place.rpartition("@")[0] or parts.path or parts.query:
        raise Invalid(f"invalid server {text!r:.120} (expected {SERVER}, for example 10.0.0.1:7400:5a…)")
    return host, port, _key(key, f"{host}:{port}")


def text(gateways: Sequence[Endpoint], token: bytes = b"") -> str:
    """Format the URL of these gateways, at least one."""
    (host, port, key), *others = gateways
    words = [f"token={quote(token, safe=TOKEN_SAFE)}"] if token else []
    words += [f"gateway={quote(f'{_bracketed(host)}:{port}:{key}', safe=':[]')}" for host, port, key in others]
    return f"{SCHEME}://{_bracketed(host)}:{port}/{key}" + ("?" + "&".join(words) if words else "")


def _first(parts: SplitResult) -> Endpoint:
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port:
        raise Invalid(f"missing HOST:PORT in the URL (expected {FORM})")
    return host, port, _key(parts.path.removeprefix("/"), f"{host}:{port}")


def _key(text: str, where: str) -> str:
    try:
        whole = len(bytes.fromhex(text)) * 2 == len(text) == KEY_DIGITS
    except ValueError:
        whole = False
    if not whole:
        raise Invalid(
            f"invalid public key {text!r:.80} of {where} (expected {KEY_DIGITS} hex digits; muster url prints it)"
        )
    return text.lower()


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
