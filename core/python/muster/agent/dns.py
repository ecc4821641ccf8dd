"""The kind `dns`: one question to one name server, over UDP or TCP. The target is the name that is asked for.

Fields as those of RIPE Atlas's DNS measurement, with the same meaning; `ms`, `RCODE` and the flags are our own, and
`answers` has every type. The codec is dnspython's.
"""

import asyncio
import base64
import functools
import secrets
import socket
import time
from pathlib import Path
from typing import Any, Final

import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdataclass
import dns.rdatatype

from ..errors import MusterError
from ..fleet import Failed
from .connects import connected, reason
from .options import BadOption, Options
from .reach import Address, Reach

TYPES: Final = (
    *("A", "AAAA", "CAA", "CNAME", "DNSKEY", "DS", "HTTPS", "MX", "NS", "PTR", "SOA", "SRV", "SVCB", "TLSA", "TXT"),
)
PORT: Final = 53
UDP_BYTES: Final = 1_232
"""The size of an answer over UDP that is asked for: no network cuts it into fragments."""
ABUF_BYTES_MAX: Final = 4_096
"""A longer answer is left out of the result."""
ANSWERS_MAX: Final = 32
RDATA_CHARS_MAX: Final = 256
IGNORED_MAX: Final = 1_000
"""Datagrams that are no answer to the question: at this number the measurement ends."""
USUAL: Final = (dns.rcode.NOERROR, dns.rcode.NXDOMAIN)
SETTINGS: Final = Path("/etc/resolv.conf")


class BadAnswer(MusterError):
    """The name server sent something that is no DNS message, or no answer to the question."""

    code = "bad_answer"


async def ask(target: str, options: dict[str, Any], reach: Reach) -> dict[str, Any]:
    """Ask for a name. Options: `type` [A], `server` (name or address) [the machine's own], `port`, `protocol` (`udp`,
    `tcp`), `recurse`, `wait_ms`, `af`. Raises `Failed` for a code other than NOERROR and NXDOMAIN."""
    given = Options(options)
    kind = given.one_of("type", "A", TYPES)
    server = given.text("server", "")
    port = given.whole("port", PORT, 1, 65_535)
    protocol = given.one_of("protocol", "udp", ("udp", "tcp"))
    recurse = given.yes("recurse", True)
    wait_s = given.whole("wait_ms", 5_000, 10, 10_000) / 1000
    family = given.family()
    given.end()
    reach.named(target)
    try:
        name = dns.name.from_text(target)
    except (dns.exception.DNSException, UnicodeError) as error:
        raise BadOption(f"invalid name {target!r:.80}: {type(error).__name__}") from None
    address = await reach.address(server, family) if server else _own_server(family)
    query = dns.message.make_query(name, kind, use_edns=0, payload=UDP_BYTES)
    if not recurse:
        query.flags &= ~dns.flags.RD
    query.id = secrets.randbelow(1 << 16)
    said: dict[str, Any] = {
        "dst_name": address.host,
        "dst_addr": address.ip,
        "dst_port": port,
        "af": address.family,
        "proto": protocol.upper(),
        "qname": name.to_text(),
        "qtype": kind,
        "ms": None,
    }
    exchange = _over_udp if protocol == "udp" else _over_tcp
    began = time.perf_counter()
    try:
        async with asyncio.timeout(wait_s):
            answer, wire = await exchange(query, address, port, said)
    except TimeoutError:
        also = f"; {said['ignored']} datagrams were none: {said['ignored_last']}" if said.get("ignored") else ""
        raise Failed(f"no answer within {wait_s:g} s{also}", said) from None
    except OSError as error:
        raise Failed(reason(error), said) from None
    except BadAnswer as error:
        raise Failed(str(error), said) from None
    took = round((time.perf_counter() - began) * 1000, 3)
    said |= {"ms": took, "result": _described(answer, wire, took)}
    if answer.rcode() not in USUAL:
        raise Failed(dns.rcode.to_text(answer.rcode()), said)
    return said


class _Datagrams(asyncio.DatagramProtocol):
    """Waits for the answer to a query, and counts what else comes: a guessed answer has another id."""

    def __init__(self, query: dns.message.Message, said: dict[str, Any]) -> None:
        self.answered: asyncio.Future[tuple[dns.message.Message, bytes]] = asyncio.get_running_loop().create_future()
        self._query, self._said = query, said
        said["ignored"] = 0

    def datagram_received(self, data: bytes, addr: Any) -> None:
        """Take an answer, or count another datagram."""
        if self.answered.done():
            return
        try:
            if int.from_bytes(data[:2], "big") != self._query.id:
                raise BadAnswer("another id")
            self.answered.set_result((_read(data, self._query), data))
        except BadAnswer as error:
            self._said["ignored"] += 1
            self._said["ignored_last"] = str(error)
            if self._said["ignored"] >= IGNORED_MAX:
                self.answered.set_exception(BadAnswer(f"{IGNORED_MAX} datagrams were no answer; the last: {error}"))

    def error_received(self, exc: Exception) -> None:
        """The kernel reports that nothing listens there."""
        if not self.answered.done():
            self.answered.set_exception(exc)


async def _over_udp(
    query: dns.message.Message, address: Address, port: int, said: dict[str, Any]
) -> tuple[dns.message.Message, bytes]:
    loop = asyncio.get_running_loop()
    made = socket.socket(address.socket_family, socket.SOCK_DGRAM)
    try:
        made.setblocking(False)
        made.connect((address.ip, port))  # answers of other addresses do not come in
        said["src_addr"] = str(made.getsockname()[0])
        protocol = functools.partial(_Datagrams, query, said)
        transport, waiting = await loop.create_datagram_endpoint(protocol, sock=made)
    except BaseException:
        made.close()
        raise
    try:
        transport.sendto(query.to_wire())
        return await waiting.answered
    finally:
        transport.close()


async def _over_tcp(
    query: dns.message.Message, address: Address, port: int, said: dict[str, Any]
) -> tuple[dns.message.Message, bytes]:
    made, _ = await connected(address, port)
    try:
        said["src_addr"] = str(made.getsockname()[0])
        reader, writer = await asyncio.open_connection(sock=made)
    except BaseException:
        made.close()
        raise
    try:
        wire = query.to_wire()
        writer.write(len(wire).to_bytes(2, "big") + wire)
        length = int.from_bytes(await reader.readexactly(2), "big")
        data = await reader.readexactly(length)
        return _read(data, query), data
    except asyncio.IncompleteReadError:
        raise BadAnswer("the name server closed the connection before its answer was complete") from None
    finally:
        writer.transport.abort()


def _read(data: bytes, query: dns.message.Message) -> dns.message.Message:
    """Parse an answer. Raises `BadAnswer`."""
    try:
        answer = dns.message.from_wire(data, ignore_trailing=False)
    except Exception as error:  # hostile bytes; the parser raises what its types raise
        raise BadAnswer(f"malformed answer: {type(error).__name__}: {error}"[:200]) from None
    if not query.is_response(answer):
        raise BadAnswer("the answer belongs to another question")
    return answer


def _described(answer: dns.message.Message, wire: bytes, took: float) -> dict[str, Any]:
    """An answer by the names of RIPE Atlas, cut to what a result may hold."""
    counts = [sum(len(each) for each in section) for section in answer.sections]
    said: dict[str, Any] = {
        "ID": answer.id,
        "RCODE": dns.rcode.to_text(answer.rcode()),
        "flags": dns.flags.to_text(answer.flags).split(),
        "QDCOUNT": len(answer.question),
        "ANCOUNT": counts[1],
        "NSCOUNT": counts[2],
        "ARCOUNT": counts[3],
        "rt": took,
        "size": len(wire),
        "answers": [],
    }
    for each in answer.answer:
        for data in each:
            if len(said["answers"]) >= ANSWERS_MAX:
                break
            kind = dns.rdatatype.to_text(each.rdtype)
            text = data.to_text()[:RDATA_CHARS_MAX]
            said["answers"].append({"NAME": each.name.to_text(), "TYPE": kind, "TTL": each.ttl, "RDATA": text})
    if len(wire) <= ABUF_BYTES_MAX:
        said["abuf"] = base64.b64encode(wire).decode()
    return said


def _own_server(family: int) -> Address:
    """The machine's own name server, whose address needs no permission. Raises `BadOption`."""
    try:
        words = [line.split() for line in SETTINGS.read_text(errors="replace").splitlines()]
    except OSError:
        words = []
    for each in words:
        if len(each) > 1 and each[0] == "nameserver":
            found = 6 if ":" in each[1] else 4
            if family in {0, found}:
                return Address(each[1], each[1].partition("%")[0], found)
    raise BadOption("server: missing, and this machine names none of that family in /etc/resolv.conf")
