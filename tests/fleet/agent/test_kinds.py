"""The kinds of the ready agent beside servers that answer, and beside hostile ones: slow, endless, malformed, moved."""

import asyncio
import contextlib
import re
import shutil
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import msgspec
import pytest

from muster.agent import BUILT_IN, BadOption, Failed, Kind, Reach, TargetRefused, named_kinds
from muster.agent import dns as names
from muster.agent import http as web
from muster.errors import Invalid
from muster_server.systems.fleet.records import VALUE_BYTES_MAX
from tests.certificates import certificates
from tests.documents import ROOT, cells, fenced
from tests.waiting import PATIENT_S

PAGE = (ROOT / "docs" / "fleet.md").read_text()
HERE = Reach(private=["127.0.0.0/8", "::1/128"])
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def measure(kind: str, target: str, reach: Reach = HERE, **options: Any) -> dict[str, Any]:
    said: dict[str, Any] = await BUILT_IN[kind](target, options, reach)
    return fits(said)


async def fails(kind: str, target: str, reach: Reach = HERE, **options: Any) -> tuple[str, dict[str, Any]]:
    with pytest.raises(Failed) as caught:
        await measure(kind, target, reach, **options)
    return str(caught.value), fits(caught.value.value)


def fits(said: dict[str, Any]) -> dict[str, Any]:
    """Every value is stored whole."""
    assert len(msgspec.json.encode(said)) <= VALUE_BYTES_MAX
    return said


@contextlib.asynccontextmanager
async def served(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A server on a port of this machine, until the block ends."""
    running: set[asyncio.Task[Any]] = set()

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await serve(reader, writer)
        writer.transport.abort()

    server = await asyncio.start_server(one, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def says(answer: bytes) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    return serve


# --- ping and tcp --------------------------------------------------------------------------------------------------


async def test_a_port_is_measured_with_the_fields_of_atlas() -> None:
    async with served(says(b"")) as port:
        said = await measure("tcp", f"127.0.0.1:{port}", packets=3, interval_ms=10)
    assert (said["sent"], said["rcvd"], said["proto"], said["af"]) == (3, 3, "TCP", 4)
    assert said["min"] <= said["avg"] <= said["max"]
    assert said["ms"] == said["avg"]
    assert said["src_addr"] == "127.0.0.1"
    assert [list(each) for each in said["result"]] == [["rtt"]] * 3


async def test_a_closed_port_fails_for_tcp_and_answers_for_ping_where_no_icmp_is() -> None:
    async with served(says(b"")) as port:
        pass
    text, said = await fails("tcp", f"127.0.0.1:{port}", packets=2, interval_ms=10)
    assert text == "Connection refused: 0 of 2 answered"
    assert said["result"] == [{"error": "Connection refused"}] * 2
    assert said["ms"] is None
    said = await measure("ping", "127.0.0.1", packets=2, interval_ms=10, port=port)
    assert said["rcvd"] == 2, "a refusal comes from the host, too"


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare with a user namespace")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_ping_is_icmp_where_the_kernel_has_sockets_for_it(host: str) -> None:
    program = (
        "import asyncio, json; from muster.agent import BUILT_IN, Reach\n"
        f"said = asyncio.run(BUILT_IN['ping']({host!r}, dict(packets=3, interval_ms=10, size=100),"
        " Reach(private=['127.0.0.0/8', '::1/128'])))\nprint(json.dumps(said))"
    )
    shell = f"ip link set lo up && sysctl -qw net.ipv4.ping_group_range='0 0' && exec '{sys.executable}' -c \"$0\""
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", shell, program],
        capture_output=True,
        timeout=PATIENT_S,
        check=False,
    )
    if done.returncode and re.search(rb"unshare|sysctl|ip: not found|ip:", done.stderr):
        pytest.skip(f"no namespace of networks here: {done.stderr.decode()[-200:]}")
    assert done.returncode == 0, done.stderr.decode()
    said = msgspec.json.decode(done.stdout)
    assert (said["proto"], said["sent"], said["rcvd"], said["dup"], said["size"]) == ("ICMP", 3, 3, 0, 100)
    assert said["ttl"] == 64
    assert 0 < said["min"] <= said["max"]


@pytest.mark.parametrize(
    ("kind", "target", "options", "text"),
    [
        ("ping", "127.0.0.1", {"packets": 17}, "packets: invalid value 17 (expected a whole number from 1 to 16)"),
        ("ping", "127.0.0.1", {"packets": True}, "packets: invalid value True"),
        ("ping", "127.0.0.1", {"packets": "3"}, "packets: invalid value '3'"),
        ("ping", "127.0.0.1", {"size": 65_000}, "size: invalid value 65000"),
        (
            "ping",
            "127.0.0.1",
            {"flood": 1},
            "unknown option 'flood' (known: af, interval_ms, packets, port, size, wait_ms)",
        ),
        ("ping", "127.0.0.1", {"af": 5}, "af: unknown value 5 (expected 0, 4, 6)"),
        ("tcp", "127.0.0.1", {}, "invalid target '127.0.0.1' (expected HOST:PORT or [IPv6]:PORT)"),
        ("tcp", "127.0.0.1:0", {}, "invalid target"),
        ("tcp", "::1:80", {}, "invalid target"),
        ("tcp", "a:99999", {}, "invalid target"),
        ("dns", "example.org", {"type": "AXFR"}, "type: unknown value 'AXFR'"),
        ("dns", "example.org", {"type": "ANY"}, "type: unknown value 'ANY'"),
        ("dns", f"{'a' * 64}.example", {"server": "127.0.0.1"}, "invalid name"),
        ("http", "ftp://example.org/", {}, "invalid URL"),
        ("http", "http://user@example.org/", {}, "invalid URL"),
        ("http", "http://example.org/a b", {}, "invalid URL"),
        ("http", "http://example.org/\r\nX: y", {}, "invalid URL"),
        ("http", "http://[::1/", {}, "invalid URL"),
        ("http", "http://example.org:99999/", {}, "invalid URL"),
        ("http", "file:///etc/passwd", {}, "invalid URL"),
        ("http", "http://example.org/", {"method": "POST"}, "method: unknown value 'POST'"),
        ("http", "http://example.org/", {"redirects": 6}, "redirects: invalid value 6"),
    ],
)
async def test_a_wrong_option_or_target_says_what_is_right(
    kind: str, target: str, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(BadOption, match=re.escape(text)):
        await BUILT_IN[kind](target, options, HERE)


@pytest.mark.parametrize(
    ("kind", "target", "options"),
    [
        ("ping", "127.0.0.1", {}),
        ("tcp", "[::ffff:127.0.0.1]:80", {}),
        ("dns", "example.org", {"server": "127.0.0.1"}),
        ("http", "http://localhost:80/", {}),
        ("http", "http://169.254.169.254/latest/meta-data/", {}),
        ("http", "http://2130706433/", {}),
    ],
)
async def test_no_kind_reaches_a_private_address(kind: str, target: str, options: dict[str, Any]) -> None:
    with pytest.raises(TargetRefused):
        await BUILT_IN[kind](target, options, Reach())


async def test_a_name_outside_the_allow_list_is_not_asked_for() -> None:
    with pytest.raises(TargetRefused, match="not an allowed target of this agent"):
        await BUILT_IN["dns"]("evil.example", {"server": "127.0.0.1"}, Reach(["example.org"], ["127.0.0.0/8"]))


# --- http ----------------------------------------------------------------------------------------------------------


async def test_http_has_the_phases_and_the_fields_of_atlas() -> None:
    async with served(says(OK)) as port:
        said = await measure("http", f"http://127.0.0.1:{port}/x?y=1")
    (one,) = said["result"]
    assert (one["res"], one["bsize"], one["hsize"], one["ver"], one["method"]) == (200, 2, len(OK) - 2, "1.1", "GET")
    assert {"ttr", "ttc", "ttfb", "rt"} <= one.keys()
    assert one["ttr"] + one["ttc"] + one["ttfb"] <= one["rt"] <= said["ms"]
    assert (one["dst_addr"], one["dst_port"], one["af"], one["src_addr"]) == ("127.0.0.1", port, 4, "127.0.0.1")


async def test_the_request_is_well_formed() -> None:
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        await writer.drain()

    async with served(serve) as port:
        said = await measure("http", f"http://127.0.0.1:{port}/a?b", method="HEAD")
    assert said["result"][0]["res"] == 204
    lines = heard[0].decode().split("\r\n")
    assert lines[0] == "HEAD /a?b HTTP/1.1"
    assert f"Host: 127.0.0.1:{port}" in lines
    assert "Connection: close" in lines


async def test_an_error_status_fails_with_its_value() -> None:
    async with served(says(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n")) as port:
        text, said = await fails("http", f"http://127.0.0.1:{port}/")
    assert (text, said["result"][0]["res"]) == ("status 503", 503)
    assert said["ms"] is not None


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "closed the connection"),
        (b"SSH-2.0-x\r\n", "closed the connection"),
        (b"SSH-2.0-x\r\n\r\n", "malformed answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "malformed answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", "malformed answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhi", "closed the connection"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "malformed answer"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe", "closed the connection"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000 + b"\r\n\r\n", "malformed answer"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 40_000, "malformed answer"),
        (b"HTTP/1.1 999999 OK\r\n\r\n", "malformed answer"),
        (b"\x16\x03\x01\x02\x00" * 100, "malformed answer"),
    ],
)
async def test_a_malformed_answer_is_a_failure_that_says_so(answer: bytes, why: str) -> None:
    async with served(says(answer)) as port:
        text, said = await fails("http", f"http://127.0.0.1:{port}/")
    assert why in text or "reset" in text
    assert said["result"][0]["err"] == text


async def test_an_endless_body_is_cut() -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(bytes(65_536))
            await writer.drain()

    async with served(endless) as port:
        said = await measure("http", f"http://127.0.0.1:{port}/", body_max=100_000)
    assert (said["result"][0]["bsize"], said["result"][0]["truncated"]) == (100_000, True)


@pytest.mark.parametrize("dribble", [b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"H"])
async def test_a_server_that_never_ends_its_answer_ends_with_the_measurement(dribble: bytes) -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(dribble)
            await writer.drain()
            await asyncio.sleep(0.01)

    async with served(slow) as port:
        with pytest.raises((TimeoutError, Failed)):
            async with asyncio.timeout(0.5):
                await measure("http", f"http://127.0.0.1:{port}/")


async def test_redirects_are_followed_only_when_asked_for_and_within_their_number() -> None:
    async with served(says(OK)) as last:
        moved = f"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:{last}/there\r\nContent-Length: 0\r\n\r\n".encode()
        async with served(says(moved)) as port:
            said = await measure("http", f"http://127.0.0.1:{port}/")
            assert [each["res"] for each in said["result"]] == [302]
            said = await measure("http", f"http://127.0.0.1:{port}/", redirects=1)
            assert [each["res"] for each in said["result"]] == [302, 200]
    loop = b"HTTP/1.1 301 Moved\r\nLocation: /\r\nContent-Length: 0\r\n\r\n"
    async with served(says(loop)) as port:
        said = await measure("http", f"http://127.0.0.1:{port}/", redirects=5)
    assert [each["res"] for each in said["result"]] == [301] * 6


@pytest.mark.parametrize(
    "location",
    ["http://10.0.0.1/", "http://[::1]:22/", "file:///etc/passwd", "gopher://127.0.0.1/", "http://169.254.169.254/"],
)
async def test_a_redirect_to_a_private_address_or_another_scheme_is_refused(location: str) -> None:
    moved = f"HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode()
    async with served(says(moved)) as port:
        reach = Reach(private=["127.0.0.0/8"])
        text, said = await fails("http", f"http://127.0.0.1:{port}/", reach, redirects=3)
    assert text.startswith(("TargetRefused: redirected", "BadOption: redirected"))
    assert len(said["result"]) == 2
    assert "ttc" not in said["result"][1], "no connection was made"


async def test_https_has_facts_of_tls_and_a_certificate_that_is_not_trusted_fails_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates(tmp_path)
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    async with served(says(OK), own) as port:
        text, said = await fails("http", f"https://127.0.0.1:{port}/")
        facts = said["result"][0]["tls"]
        assert "certificate" in text
        assert (facts["verified"], facts["issuer"], facts["subject"]) == (False, "CN=ca", "CN=server")
        assert "ttfb" not in said["result"][0], "nothing was sent"
        said = await measure("http", f"https://127.0.0.1:{port}/", verify=False)
        assert said["result"][0]["res"] == 200
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        said = await measure("http", f"https://127.0.0.1:{port}/")
    facts = said["result"][0]["tls"]
    assert (facts["verified"], facts["ver"]) == (True, "TLSv1.3")
    assert facts["server_cipher"].startswith("TLS_")
    assert facts["not_before"] < facts["not_after"]
    assert facts["not_after"].endswith("Z")


async def test_a_port_that_speaks_no_tls_fails_as_such() -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad\r\n\r\n")
        await writer.drain()

    async with served(plain) as port:
        text, said = await fails("http", f"https://127.0.0.1:{port}/")
    assert text.startswith("TLS: ")
    assert "ttc" in said["result"][0]


def test_a_certificate_that_cannot_be_parsed_is_told_beside_the_rest() -> None:
    class Made:
        def cipher(self) -> None:
            return None

        def version(self) -> str:
            return "TLSv1.2"

        def getpeercert(self, binary_form: bool) -> bytes:
            return b"\x30\x82\xff"

    class Writer:
        def get_extra_info(self, _: str) -> Made:
            return Made()

    said = web._facts(Writer())  # type: ignore[arg-type]
    assert said["ver"] == "TLSv1.2"
    assert "cert_err" in said


# --- dns -----------------------------------------------------------------------------------------------------------


class NameServer(asyncio.DatagramProtocol):
    """Answers over UDP what `answer` makes of each query."""

    def __init__(self, answer: Callable[[dns.message.Message], list[bytes]]) -> None:
        self._answer = answer

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        for each in self._answer(dns.message.from_wire(data)):
            self._transport.sendto(each, addr)


@contextlib.asynccontextmanager
async def asked(answer: Callable[[dns.message.Message], list[bytes]]) -> AsyncIterator[dict[str, Any]]:
    """Options of orders that ask this name server, over UDP."""
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(lambda: NameServer(answer), ("127.0.0.1", 0))
    try:
        yield {"server": "127.0.0.1", "port": transport.get_extra_info("sockname")[1], "wait_ms": 10_000}
    finally:
        transport.close()


def right(query: dns.message.Message, code: dns.rcode.Rcode = dns.rcode.NOERROR, count: int = 2) -> bytes:
    made = dns.message.make_response(query)
    made.set_rcode(code)
    if count:
        addresses = [f"192.0.{number // 250}.{number % 250 + 1}" for number in range(count)]
        made.answer.append(dns.rrset.from_text(query.question[0].name, 60, "IN", "A", *addresses))
    return made.to_wire(max_size=65_535)


async def test_dns_has_the_fields_of_atlas() -> None:
    async with asked(lambda query: [right(query)]) as options:
        said = await measure("dns", "www.example.org", **options)
    result = said["result"]
    assert (said["proto"], said["qname"], said["qtype"], said["ignored"]) == ("UDP", "www.example.org.", "A", 0)
    assert (result["RCODE"], result["ANCOUNT"], result["QDCOUNT"], result["NSCOUNT"]) == ("NOERROR", 2, 1, 0)
    assert {each["RDATA"] for each in result["answers"]} == {"192.0.0.1", "192.0.0.2"}
    assert result["answers"][0] | {"RDATA": ""} == {"NAME": "www.example.org.", "TYPE": "A", "TTL": 60, "RDATA": ""}
    assert said["ms"] == result["rt"]
    assert result["abuf"]


async def test_a_name_that_is_not_there_is_an_answer_and_a_server_that_failed_is_a_failure() -> None:
    async with asked(lambda query: [right(query, dns.rcode.NXDOMAIN, 0)]) as options:
        assert (await measure("dns", "no.example.org", **options))["result"]["RCODE"] == "NXDOMAIN"
    async with asked(lambda query: [right(query, dns.rcode.SERVFAIL, 0)]) as options:
        text, said = await fails("dns", "no.example.org", **options)
    assert (text, said["result"]["RCODE"]) == ("SERVFAIL", "SERVFAIL")


async def test_answers_with_another_id_or_question_are_ignored_and_counted() -> None:
    def forged(query: dns.message.Message) -> list[bytes]:
        other = dns.message.make_query("evil.example", "A")
        other.id = query.id
        wrong = bytearray(right(query))
        wrong[0] ^= 1
        return [bytes(wrong), right(other), right(query)]

    async with asked(forged) as options:
        said = await measure("dns", "www.example.org", **options)
    assert said["ignored"] == 2
    assert said["result"]["ANCOUNT"] == 2


def loop_of_names(query: dns.message.Message) -> bytes:
    """A name whose compression points at itself."""
    return (
        right(query, count=0)[:6] + b"\0\1\0\0\0\0" + right(query, count=0)[12:] + b"\xc0\x21\0\1\0\1\0\0\0\0\0\4abcd"
    )


@pytest.mark.parametrize(
    "broken",
    [
        lambda query: b"\0",
        lambda query: query.to_wire(),
        lambda query: right(query)[:-3],
        lambda query: right(query) + b"more",
        lambda query: right(query)[:12],
        lambda query: right(query)[:2] + b"\xff" * 60_000,
        lambda query: right(query)[:2] + b"\x81\x80\xff\xff\xff\xff\xff\xff\xff\xff",
        loop_of_names,
    ],
)
async def test_a_malformed_answer_is_no_answer_and_says_why(
    broken: Callable[[dns.message.Message], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "IGNORED_MAX", 1)
    async with asked(lambda query: [broken(query)]) as options:
        text, said = await fails("dns", "www.example.org", **options)
    assert text.startswith("1 datagrams were no answer; the last: ")
    assert said["ms"] is None


async def test_a_flood_of_datagrams_ends_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "IGNORED_MAX", 50)
    async with asked(lambda query: [b"x" * 20] * 200) as options:
        text, said = await fails("dns", "www.example.org", **options)
    assert text == "50 datagrams were no answer; the last: another id"
    assert said["ignored"] == 50


async def test_a_large_answer_is_cut_to_what_a_result_holds() -> None:
    async with asked(lambda query: [right(query, count=1_000)]) as options:
        said = await measure("dns", "www.example.org", **options)
    assert (said["result"]["ANCOUNT"], len(said["result"]["answers"])) == (1_000, 32)
    assert "abuf" not in said["result"]


@pytest.mark.parametrize("cut", [0, 1, 2, 30])
async def test_dns_over_tcp_answers_and_a_short_answer_fails(cut: int) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        query = dns.message.from_wire(await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big")))
        wire = right(query)
        whole = len(wire).to_bytes(2, "big") + wire
        writer.write(whole[:cut] if cut else whole)
        await writer.drain()
        writer.close()

    async with served(serve) as port:
        options: dict[str, Any] = {"server": "127.0.0.1", "port": port, "protocol": "tcp"}
        if cut:
            text, _ = await fails("dns", "www.example.org", **options)
            assert text == "the name server closed the connection before its answer was complete"
        else:
            assert (await measure("dns", "www.example.org", **options))["proto"] == "TCP"


async def test_a_name_server_that_says_nothing_is_waited_for_until_the_limit() -> None:
    async with asked(lambda query: [b"xx"]) as options:
        text, said = await fails("dns", "www.example.org", **(options | {"wait_ms": 50}))
    assert text.startswith("no answer within 0.05 s")
    assert said["ms"] is None


async def test_nothing_listens_at_the_name_server() -> None:
    async with asked(lambda query: []) as options:
        pass
    text, _ = await fails("dns", "www.example.org", **options)
    assert text == "Connection refused"


# --- kinds of a program's own --------------------------------------------------------------------------------------


def test_kinds_are_named_built_in_or_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fleet_checks.py").write_text("async def lookup(target, options, reach):\n    return 1\n\nother = 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert list(named_kinds()) == ["ping", "tcp", "dns", "http"]
    assert list(named_kinds(["tcp"], ["lookup=fleet_checks:lookup"])) == ["tcp", "lookup"]
    for named, own, text in (
        (["trace"], [], "unknown kind 'trace' (known: ping, tcp, dns, http"),
        ([], ["lookup"], "invalid kind 'lookup'"),
        ([], ["=fleet_checks:lookup"], "invalid kind"),
        ([], ["x=fleet_checks"], "kind x: invalid function 'fleet_checks'"),
        ([], ["x=fleet_checks:other"], "kind x: 'fleet_checks:other' is not a function"),
        ([], ["x=fleet_checks:none"], "is not a function"),
        ([], ["x=fleet_nowhere:f"], "kind x: no module 'fleet_nowhere' here"),
    ):
        with pytest.raises(Invalid, match=re.escape(text)):
            named_kinds(named, own)


async def test_the_kind_of_the_page_is_one() -> None:
    (example,) = [each for each in fenced(PAGE, "python") if "async def lookup" in each]
    names: dict[str, Any] = {}
    exec(compile(example, "docs/fleet.md", "exec"), names)
    assert await names["lookup"]("127.0.0.1", {}, HERE) == {"dst_addr": "127.0.0.1"}
    with pytest.raises(Failed, match="no IPv4 address"):
        await names["lookup"]("::1", {}, HERE)
    with pytest.raises(BadOption, match="unknown option 'x'"):
        await names["lookup"]("127.0.0.1", {"x": 1}, HERE)


def test_kinds_of_installed_packages_come_by_their_entry_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "fleet_more-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fleet-more\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[muster.agent.kinds]\nlookup = fleet_more:lookup\n")
    (tmp_path / "fleet_more.py").write_text("async def lookup(target, options, reach):\n    return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    kinds: dict[str, Kind] = named_kinds()
    assert list(kinds) == ["ping", "tcp", "dns", "http", "lookup"]
    assert "lookup" not in named_kinds(["ping"])


def test_the_page_has_every_kind_and_every_option() -> None:
    rows = {row[0].strip("`"): " ".join(row) for row in cells(PAGE, "kind", "target", "options", "fails")}
    assert rows.keys() == BUILT_IN.keys()
    for name, module in (("ping", "ping"), ("tcp", "ping"), ("dns", "dns"), ("http", "http")):
        source = (ROOT / "core/python/muster/agent" / f"{module}.py").read_text()
        for option in re.findall(r'given\.(?:whole|one_of|text|yes)\("(\w+)"', source):
            if name == "tcp" and option in {"size", "port"}:
                continue
            assert f"`{option}`" in rows[name], (name, option)
