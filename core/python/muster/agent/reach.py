"""The targets that an agent may measure, and their addresses.

Owns the rules of targets. A name is resolved once, and the address that was judged is the one that is contacted: a name
that changes its address meanwhile opens nothing. Addresses that are not public are refused unless a network of
`private` has them.
"""

import asyncio
import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final, NamedTuple

from ..errors import Invalid, MusterError

NAME_MAX: Final = 253
NAT64: Final = IPv6Network("64:ff9b::/96")
FAMILIES: Final = {0: socket.AF_UNSPEC, 4: socket.AF_INET, 6: socket.AF_INET6}
Network = IPv4Network | IPv6Network


class TargetRefused(MusterError):
    """This agent does not measure that target. The text says by which rule."""

    code = "target_refused"


class Unresolved(MusterError):
    """The name of a target has no address of the wanted family, or its name server does not answer."""

    code = "unresolved"
    retry = True


class Address(NamedTuple):
    """An address that may be contacted."""

    host: str
    """The name or the address that was asked for."""
    ip: str
    family: int
    """4 or 6."""

    @property
    def socket_family(self) -> int:
        """The family as `socket.socket` takes it."""
        return FAMILIES[self.family]


class Reach:
    """The rules of one agent."""

    def __init__(self, only: Iterable[str] = (), private: Iterable[str] = ()) -> None:
        """`only`: names (`example.org`), names below one (`*.example.org`) and networks (`203.0.113.0/24`); empty: any
        target. `private`: networks that are not public and may be measured. Raises `Invalid`."""
        self._names: set[str] = set()
        self._below: tuple[str, ...] = ()
        self._networks: list[Network] = []
        self._private: list[Network] = [_network("private", each) for each in private]
        self._any = True
        for each in only:
            self._any = False
            if _looks_like_network(each):
                self._networks.append(_network("only", each))
            elif each.startswith("*."):
                self._below += ("." + _name(each[2:]),)
            else:
                self._names.add(_name(each))

    def named(self, host: str) -> None:
        """Judge a name or address by `only`, without resolving it. Raises `TargetRefused`."""
        if not self._may(_plain(host), None):
            raise TargetRefused(f"{host:.80} is not an allowed target of this agent (--only)")

    async def address(self, host: str, family: int = 0) -> Address:
        """Resolve a name, and judge it with its first address of this family [4, 6; 0: any]. Raises `TargetRefused`,
        `Unresolved`."""
        plain = _plain(host)
        literal = _ip(plain)
        if literal is None and not self._networks and not self._may(plain, None):
            raise TargetRefused(f"{host:.80} is not an allowed target of this agent (--only)")
        if literal is None:
            ip = await _resolved(plain, family)
        else:
            ip = literal
            if family and family != ip.version:
                raise Unresolved(f"{host:.80} is not an IPv{family} address")
        if not self._may(plain, ip):
            raise TargetRefused(f"{host:.80} is not an allowed target of this agent (--only)")
        self._judge(host, ip)
        return Address(plain, str(ip), ip.version)

    def _may(self, plain: str, ip: IPv4Address | IPv6Address | None) -> bool:
        if self._any or plain in self._names or plain.endswith(self._below):
            return True
        ip = ip or _ip(plain)
        return ip is not None and any(_inside(each, network) for network in self._networks for each in _meant(ip))

    def _judge(self, host: str, ip: IPv4Address | IPv6Address) -> None:
        """Refuse an address that is not public, or that leads to one, unless `private` has it."""
        for each in _meant(ip):
            if not _public(each) and not any(_inside(each, network) for network in self._private):
                where = str(ip) if host == str(ip) else f"{host:.80} ({ip})"
                raise TargetRefused(f"{where} is not a public address; to allow its network: --private NETWORK")


def _meant(ip: IPv4Address | IPv6Address) -> list[IPv4Address | IPv6Address]:
    """The addresses to judge: IPv6 forms of an IPv4 address stand for that one."""
    if isinstance(ip, IPv4Address):
        return [ip]
    if ip.ipv4_mapped is not None:
        return [ip.ipv4_mapped]
    if ip in NAT64:
        return [IPv4Address(int(ip) & 0xFFFF_FFFF)]
    if ip.sixtofour is not None:
        return [ip, ip.sixtofour]
    if ip.teredo is not None:
        return [ip, *ip.teredo]
    return [ip]


def _public(ip: IPv4Address | IPv6Address) -> bool:
    local = isinstance(ip, IPv6Address) and ip.is_site_local
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or local)


def _inside(ip: IPv4Address | IPv6Address, network: Network) -> bool:
    return ip.version == network.version and ip in network


def _ip(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _looks_like_network(text: str) -> bool:
    return "/" in text or _ip(text) is not None


def _network(option: str, text: str) -> Network:
    try:
        return ip_network(text)
    except ValueError as error:
        raise Invalid(
            f"--{option}: invalid network {text!r:.80}: {error} (expected CIDR, for example 10.0.0.0/8)"
        ) from None


def _name(text: str) -> str:
    try:
        return _plain(text)
    except TargetRefused:
        raise Invalid(
            f"--only: invalid name {text!r:.80} (expected for example example.org or *.example.org)"
        ) from None


def _plain(host: str) -> str:
    """A host in lower case and ASCII, without the dot at its end. Raises `TargetRefused`."""
    try:
        plain = host.rstrip(".").lower()
        plain = plain if plain.isascii() else plain.encode("idna").decode()
    except UnicodeError:
        plain = ""
    if not 0 < len(plain) <= NAME_MAX or not all(each.isalnum() or each in ".-_:" for each in plain):
        raise TargetRefused(f"invalid name of a host {host!r:.80}")
    return plain


async def _resolved(name: str, family: int) -> IPv4Address | IPv6Address:
    loop = asyncio.get_running_loop()
    wanted = FAMILIES[family]
    try:
        found: list[Any] = await loop.getaddrinfo(name, None, family=wanted, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Unresolved(f"{name}: {getattr(error, 'strerror', None) or error}") from None
    if not found:
        raise Unresolved(f"{name}: no address")
    return ip_address(str(found[0][4][0]).partition("%")[0])
