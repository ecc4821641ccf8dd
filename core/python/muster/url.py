"""The address of an instance in one text: `muster://HOST:PORT/KEY?token=TOKEN`.

HOST and PORT are those of a gateway, KEY is its public key in hex. `gateway=HOST:PORT:KEY` names a further one, and may be
repeated. A parameter that this version does not know is refused: it may say how a server is to be checked. No error
shows a token.
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
"""A public key: 32 bytes in hex."""
PARAMETERS: Final = ("token", "gateway")
TOKEN_SAFE: Final = "-._~"


def is_url(text: object) -> bool:
    """Whether this is meant to be such an address."""
    return isinstance(text, str) and text.startswith(f"{SCHEME}://")


def parse(text: str) -> Address:
    """Read an address; its token is empty if it names none. Raises `Invalid`."""
    try:
        parts = urlsplit(text)
        said = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query), errors="strict")
    except ValueError:
        raise Invalid(f"the URL is not {FORM}") from None
    if parts.scheme != SCHEME or parts.fragment or parts.username is not None:
        raise Invalid(f"the URL is not {FORM}")
    if unknown := sorted({name for name, _ in said} - set(PARAMETERS)):
        raise Invalid(
            f"the URL has {unknown[0]!r:.40}, which this version does not know; it knows {', '.join(PARAMETERS)}"
        )
    tokens = [value for name, value in said if name == "token"]
    if len(tokens) > 1:
        raise Invalid("the URL has more than one token")
    more = [server(value) for name, value in said if name == "gateway"]
    return Address((_first(parts), *more), (), "".join(tokens).encode())


def server(text: str) -> Endpoint:
    """Read `HOST:PORT:KEY`; an IPv6 address stands in brackets. Raises `Invalid`."""
    place, _, key = text.rpartition(":")
    try:
        parts = urlsplit(f"//{place}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port or place.rpartition("@")[0] or parts.path or parts.query:
        raise Invalid(f"{text!r:.120} is not {SERVER}, as 10.0.0.1:7400:5a…")
    return host, port, _key(key, f"{host}:{port}")


def text(gateways: Sequence[Endpoint], token: bytes = b"") -> str:
    """The address of these gateways, of which there is at least one."""
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
        raise Invalid(f"the URL has no HOST:PORT; it is {FORM}")
    return host, port, _key(parts.path.removeprefix("/"), f"{host}:{port}")


def _key(text: str, where: str) -> str:
    try:
        whole = len(bytes.fromhex(text)) * 2 == len(text) == KEY_DIGITS
    except ValueError:
        whole = False
    if not whole:
        raise Invalid(
            f"the public key of {where} is {KEY_DIGITS} digits of hex, not {text!r:.80}; muster url prints it"
        )
    return text.lower()


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
