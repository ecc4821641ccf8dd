"""Finds out why servers give a client no session: it sends datagrams of its own once the client has waited in vain.

A server answers a hello without a cookie with a cookie, whatever key the client has, and only if the datagram's version
is its own (docs/protocol.md, Datagrams). So a cookie proves that a server is there, and its datagram version; a refused
port proves that nothing listens. The handshake chooses the version of the payload; the engine reports its refusal.
Knows no engine and no session. Needs `add_reader` of the loop, as the client does.
"""

import asyncio
import secrets
import socket
import struct
from collections.abc import Sequence
from typing import Final, Literal

from ._core import PROTOCOLS
from ._core import version as release
from .errors import NothingListens, OtherVersion, TimedOut, WrongKey

DATAGRAMS: Final = 1
"""The version of the datagrams themselves, in which each handshake begins."""
ANSWER_S: Final = 0.3
"""Seconds to wait for the answer to one hello."""
ASKED_MAX: Final = 4
"""Limit of probed servers of one kind."""
VERSIONS: Final = 16
"""Number of versions: the field has four bits."""
_HEADER: Final = struct.Struct("<BBBBQIQI")
_MAGIC, _HELLO, _COOKIE, _HELLO_BYTES = 0x4D, 1, 2, 1_200

Found = Literal["silent", "nothing listens", "no muster"] | int
"""The state of an address; a number is the version of the server there."""


async def explained(what: str, role: str, servers: Sequence[tuple[str, int]]) -> TimedOut | None:
    """The error for these servers (IP address, port), none of which gave a session; None if none of them answers."""
    asked = servers[:ASKED_MAX]
    found = await asyncio.gather(*(find_out(host, port) for host, port in asked))
    lines = [_line(*server, role, each) for server, each in zip(asked, found, strict=True) if each != "silent"]
    if not lines:
        return None
    kinds = {_error(each) for each in found}
    error = kinds.pop() if len(kinds) == 1 else TimedOut
    return error(f"{what}: {'; '.join(lines)}")


def _error(found: Found) -> type[TimedOut]:
    if found == "nothing listens":
        return NothingListens
    if isinstance(found, int):
        return WrongKey if found == DATAGRAMS else OtherVersion
    return TimedOut


def _line(host: str, port: int, role: str, found: Found) -> str:
    where = _where(host, port)
    if found == "nothing listens":
        return f"nothing listens at {where}, the address of the {role}; start it there, or correct host and port"
    if found == "no muster":
        return f"{where} is not a Muster server; correct host and port of the {role}"
    if found == "silent":
        return f"{where} does not answer"
    if found == DATAGRAMS:
        return (
            f"the server at {where} does not have this public key; use the {role}'s own key, which muster url there "
            "prints"
        )
    return (
        f"the server at {where} speaks version {found} of the protocol, and this library version {DATAGRAMS}; "
        "install the library of the server's release"
    )


def differing(
    role: str, host: str, port: int, theirs: tuple[int, int], of: str, ours: tuple[int, int] = PROTOCOLS
) -> str:
    """The error for a server without a common protocol version, with the remedy. `of`: its release, empty if unknown."""
    server = f"the {role} at {_where(host, port)}"
    said = f"{server} speaks {span(theirs)} of the protocol, and this library ({release()}) {span(ours)}"
    if theirs[0] > ours[1]:
        return f"{said}; update the library to {of or 'the release of the server'} or later"
    return f"{said}; update the server, or use a library of its release"


def span(versions: tuple[int, int]) -> str:
    """A range of versions in words."""
    lowest, highest = versions
    return f"version {lowest}" if lowest == highest else f"versions {lowest} to {highest}"


def _where(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def find_out(host: str, port: int) -> Found:
    """Probe an address, for at most twice `ANSWER_S`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as asking:
        asking.setblocking(False)
        try:
            asking.connect((host, port))
        except OSError:
            return "silent"
        others = [version for version in range(VERSIONS) if version != DATAGRAMS]
        for versions in ([DATAGRAMS], others):
            found = await _answered(asking, secrets.randbits(64), versions)
            if found != "silent":
                return found
    return "silent"


async def _answered(asking: socket.socket, connection: int, versions: Sequence[int]) -> Found:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Found] = loop.create_future()

    def read() -> None:
        try:
            datagram = asking.recv(_HELLO_BYTES)
        except BlockingIOError:
            return
        except ConnectionRefusedError:
            found: Found = "nothing listens"
        except OSError:
            found = "silent"
        else:
            found = _judged(datagram, connection)
        if not answer.done():
            answer.set_result(found)

    loop.add_reader(asking, read)
    try:
        for version in versions:
            asking.send(_hello(version, connection))
        async with asyncio.timeout(ANSWER_S):
            await answer
        return answer.result()
    except ConnectionRefusedError:
        return "nothing listens"
    except (OSError, TimeoutError):
        return "silent"
    finally:
        loop.remove_reader(asking)


def _hello(version: int, connection: int) -> bytes:
    """A hello without a cookie and without a key."""
    return _HEADER.pack(_MAGIC, version << 4 | _HELLO, 0, 0, connection, 0, 0, 0).ljust(_HELLO_BYTES, b"\0")


def _judged(datagram: bytes, connection: int) -> Found:
    if len(datagram) < _HEADER.size:
        return "no muster"
    magic, kind, _, _, named, *_ = _HEADER.unpack_from(datagram)
    if magic != _MAGIC or kind & 0x0F != _COOKIE or named != connection:
        return "no muster"
    return int(kind >> 4)
