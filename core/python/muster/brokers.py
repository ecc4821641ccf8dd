"""Addresses of MQTT brokers: the URL of one broker, or of the members of a cluster. Knows no connection."""

from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

__all__ = ["Brokers", "brokers", "place"]

PORTS: Final = {"mqtt": 1883, "mqtts": 8883}


class Brokers(NamedTuple):
    """The members of one cluster of brokers; a client may connect to any of them."""

    places: tuple[tuple[str, int], ...]
    """Host and port of each member."""
    tls: bool
    user: str
    """Empty if the URL names no user."""


def brokers(url: str) -> Brokers:
    """Parse `mqtt://USER@HOST:PORT,HOST:PORT` or `mqtts://…`. Raises `ValueError`, whose text never shows a password."""
    scheme, _, rest = url.partition("://")
    user, _, hosts = rest.removesuffix("/").rpartition("@")
    places = [place(each, PORTS.get(scheme, 0)) for each in hosts.split(",")]
    if scheme not in PORTS or ":" in user or None in places:
        shown = f"{scheme}://…" if rest else "this"
        raise ValueError(
            f"invalid broker URL {shown} (expected mqtt://HOST:PORT or mqtts://HOST:PORT; separate several hosts "
            "with commas)"
        )
    return Brokers(tuple(each for each in places if each is not None), scheme == "mqtts", unquote(user))


def place(text: str, port: int) -> tuple[str, int] | None:
    """Parse `HOST:PORT` or `HOST`; return None if the text is neither."""
    try:
        parts = urlsplit(f"//{text}")
        port = parts.port or port
    except ValueError:
        return None
    whole = not (parts.path or parts.query or parts.fragment or any(each.isspace() for each in text))
    return (parts.hostname, port) if whole and parts.hostname and port else None
