"""Addresses as text: `host:port`, an IPv6 host in brackets."""

import ipaddress
import re
import socket
from typing import Final

ADDRESS: Final = re.compile(r"(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<v4>[0-9.]+)):(?P<port>[0-9]{1,5})")
NO_ADDRESS: Final = "is not an IP address and port, for example 127.0.0.1:7400 or [::1]:7400"
PORT_MAX: Final = 65_535


def split_address(text: str) -> tuple[str, int]:
    """Parse `host:port` (an IPv6 host in brackets). Raises `ValueError`."""
    match = ADDRESS.fullmatch(text)
    if match is None:
        raise ValueError(text)
    host = ipaddress.IPv6Address(match["v6"]) if match["v6"] else ipaddress.IPv4Address(match["v4"])
    port = int(match["port"])
    if port > PORT_MAX:
        raise ValueError(text)
    return str(getattr(host, "ipv4_mapped", None) or host), port


def outward(bound: str, known: str) -> str:
    """The host by which other machines reach a server that is bound to all addresses; else `known`. Sends nothing."""
    if not ipaddress.ip_address(bound).is_unspecified:
        return known
    family, other = (socket.AF_INET6, "2001:db8::1") if ":" in bound else (socket.AF_INET, "192.0.2.1")
    with socket.socket(family, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect((other, 9))  # only selects a route
        except OSError:
            return known  # no route: only this machine reaches it
        return str(asking.getsockname()[0])


def address_text(host: str, port: int) -> str:
    """Format host and port as text."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
