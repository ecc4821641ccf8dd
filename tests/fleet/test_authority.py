"""Certificates of clients: issued, revoked, and what a real mosquitto makes of each; hostile requests; crashes."""

import asyncio
import contextlib
import os
import signal
import ssl
import subprocess
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from cryptography import x509

from muster.fleet import Agent, BrokerRefused
from muster_server.systems.fleet import authority as module
from muster_server.systems.fleet import schema
from muster_server.systems.fleet.authority import Authority, AuthorityError, Issued, served_names
from muster_server.systems.fleet.broker import AUTHORITY, USERS, access, ban
from muster_server.systems.fleet.expel import expel
from muster_server.systems.fleet.options import Fleet
from muster_server.systems.fleet.schema import Order
from muster_server.systems.fleet.selector import parse
from tests.fleet.mosquitto import Mosquitto, needs_mosquitto
from tests.fleet.test_broker import MINUTE, Plane
from tests.fleet.test_brokers import _free_ports
from tests.waiting import PATIENT_S, until


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority(tmp_path / "authority")
    made.prepare(["127.0.0.1", "localhost"])
    return made


def openssl(*words: str | Path) -> tuple[int, str]:
    done = subprocess.run(["openssl", *map(str, words)], capture_output=True, text=True, timeout=PATIENT_S, check=False)
    return done.returncode, done.stdout + done.stderr


def verified(authority: Authority, issued: Issued) -> tuple[int, str]:
    file = authority.folder / "of-a-test.pem"
    file.write_text(issued.certificate)
    ca, crl = authority.folder / "ca.pem", authority.folder / "crl.pem"
    words = ("-x509_strict", "-purpose", "sslclient", "-crl_check", "-CAfile", ca, "-CRLfile", crl, file)
    return openssl("verify", *words)


def test_a_certificate_is_valid_until_it_is_revoked(authority: Authority) -> None:
    first, other = authority.issue("probe-7", 10), authority.issue("probe-8", 10)
    assert verified(authority, first)[0] == verified(authority, other)[0] == 0
    assert [each.client for each in authority.revoke("probe-7")] == ["probe-7"]
    code, said = verified(authority, first)
    assert (code, "certificate revoked" in said) == (2, True)
    assert verified(authority, other)[0] == 0
    assert authority.revoke("probe-7") == []
    assert authority.banned() == {"probe-7"}
    again = authority.issue("probe-7", 10)
    assert authority.banned() == set()
    assert verified(authority, again)[0] == 0
    assert verified(authority, first)[0] == 2
    assert [each.serial for each in authority.revoke(again.record.serial)] == [again.record.serial]
    assert [(each.client, bool(each.revoked_ms)) for each in authority.records()] == [
        ("probe-7", True),
        ("probe-7", True),
        ("probe-8", False),
    ]


def test_the_server_s_certificate_has_its_names_and_is_renewed_before_its_end(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = authority.folder / "server.pem"
    before, ca = file.read_bytes(), (authority.folder / "ca.pem").read_bytes()
    authority.prepare(["127.0.0.1", "localhost"])
    assert file.read_bytes() == before
    authority.prepare(["127.0.0.1", "mqtt.example.org"])
    assert file.read_bytes() != before
    assert openssl("x509", "-in", file, "-noout", "-checkhost", "mqtt.example.org")[0] == 0
    monkeypatch.setattr(module, "RENEW_DAYS", 400)
    before = file.read_bytes()
    authority.prepare(["127.0.0.1", "mqtt.example.org"])
    assert file.read_bytes() != before
    assert (authority.folder / "ca.pem").read_bytes() == ca
    assert "mqtt.example.org" in served_names("0.0.0.0", ["mqtt.example.org"])
    assert "0.0.0.0" not in served_names("0.0.0.0", [])


def test_files_are_for_the_owner_alone(authority: Authority) -> None:
    authority.issue("probe-7", 1)
    for file in authority.folder.iterdir():
        if file.suffix != "" and file.name != ".lock":
            assert file.stat().st_mode & 0o077 == 0, file
    assert b"PRIVATE" not in (authority.folder / "certificates.json").read_bytes()


@pytest.mark.parametrize("name", ["", "plane.index.0", "a b", "a/b", "x" * 65, "+", "#", "é"])
def test_no_certificate_has_a_name_that_is_no_client_s(authority: Authority, name: str) -> None:
    with pytest.raises(AuthorityError, match="invalid client name"):
        authority.issue(name, 1)


def test_a_request_gives_its_key_and_nothing_else(authority: Authority, tmp_path: Path) -> None:
    key, csr = tmp_path / "k", tmp_path / "csr"
    new = ("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl(*new, "-keyout", key, "-out", csr, "-subj", "/CN=plane.index.0", "-addext", "basicConstraints=CA:TRUE")
    made = authority.issue("probe-7", 1, csr.read_bytes())
    certificate = x509.load_pem_x509_certificate(made.certificate.encode())
    assert (made.key, certificate.subject.rfc4514_string()) == ("", "CN=probe-7")
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert verified(authority, made)[0] == 0


@pytest.mark.parametrize("what", ["nothing", "cut", "signature", "weak", "long", "certificate"])
def test_a_wrong_request_is_refused(authority: Authority, tmp_path: Path, what: str) -> None:
    csr = tmp_path / "csr"
    bits = "1024" if what == "weak" else "2048"
    openssl("req", "-new", "-newkey", f"rsa:{bits}", "-nodes", "-keyout", tmp_path / "k", "-out", csr, "-subj", "/CN=a")
    request = {
        "nothing": b"hello",
        "cut": csr.read_bytes()[:200],
        "signature": _with_another_signature(csr.read_bytes()),
        "weak": csr.read_bytes(),
        "long": csr.read_bytes() + b"\n" * 20_000,
        "certificate": (authority.folder / "ca.pem").read_bytes(),
    }[what]
    with pytest.raises(AuthorityError, match="signing request"):
        authority.issue("probe-7", 1, request)
    assert authority.records() == []


def _with_another_signature(request: bytes) -> bytes:
    import base64

    lines = request.decode().strip().split("\n")
    der = bytearray(base64.b64decode("".join(lines[1:-1])))
    der[-1] ^= 1
    return f"{lines[0]}\n{base64.encodebytes(bytes(der)).decode()}{lines[-1]}\n".encode()


def test_limits_are_told(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    for days in (0, -1, 3_651):
        with pytest.raises(AuthorityError, match=r"invalid number of days .* \(expected 1 to 3650\)"):
            authority.issue("probe-7", days)
    monkeypatch.setattr(module, "RECORDS_MAX", 1)
    authority.issue("probe-7", 1)
    with pytest.raises(AuthorityError, match=r"too many certificates that have not ended \(limit 1\)"):
        authority.issue("probe-8", 1)
    with pytest.raises(AuthorityError, match="no certificate of 'nobody' has been issued"):
        authority.revoke("nobody")


def test_without_an_authority_nothing_is_issued(tmp_path: Path) -> None:
    with pytest.raises(AuthorityError, match="no authority yet"):
        Authority(tmp_path).issue("probe-7", 1)


def test_a_crash_between_record_and_list_is_mended_by_the_next_start(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    issued = authority.issue("probe-7", 1)
    monkeypatch.setattr(Authority, "_list", _crash)
    with pytest.raises(MemoryError):
        authority.revoke("probe-7")
    monkeypatch.undo()
    assert authority.records()[0].revoked_ms
    assert verified(authority, issued)[0] == 0, "the list does not have it yet"
    authority.prepare(["127.0.0.1", "localhost"])
    assert verified(authority, issued)[0] == 2


def _crash(*_: object) -> None:
    raise MemoryError


def test_certificates_that_have_ended_are_forgotten(authority: Authority) -> None:
    issued = authority.issue("probe-7", 1)
    gone = msgspec.structs.replace(issued.record, until_ms=1)
    (authority.folder / "certificates.json").write_bytes(msgspec.json.encode([gone]))
    assert authority.records() == []
    authority.issue("probe-8", 1)
    assert b"probe-7" not in (authority.folder / "certificates.json").read_bytes()


def test_unreadable_records_are_an_error_and_not_an_empty_list(authority: Authority) -> None:
    (authority.folder / "certificates.json").write_bytes(b"{")
    with pytest.raises(AuthorityError, match=r"certificates\.json: unreadable"):
        authority.issue("probe-7", 1)


def test_processes_issue_beside_each_other(authority: Authority) -> None:
    pids = []
    for number in range(8):
        pid = os.fork()
        if not pid:
            code = 1
            with contextlib.suppress(Exception):
                authority.issue(f"probe-{number}", 1)
                code = 0
            os._exit(code)
        pids.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0] * 8
    assert len(authority.records()) == 8


def test_the_list_has_another_second_each_time(authority: Authority) -> None:
    seen = set()
    for number in range(3):
        authority.issue(f"probe-{number}", 1)
        authority.revoke(f"probe-{number}")
        made = x509.load_pem_x509_crl((authority.folder / "crl.pem").read_bytes())
        seen.add(made.last_update_utc)
        assert made.last_update_utc <= datetime.now(UTC)
        assert len(list(made)) == number + 1
        assert made.next_update_utc is not None
        assert made.next_update_utc > datetime.now(UTC) + timedelta(days=3_000)
    assert len(seen) == 3


def test_a_client_that_is_banned_has_no_topic() -> None:
    assert access({"b", "a"}).startswith("user a\ntopic deny #\n\nuser b\ntopic deny #\n\nuser plane.index.0\n")


# --- at a real mosquitto --------------------------------------------------------------------------------------------


class Secured:
    """A mosquitto with a second listener for certificates, and the plane at its first one."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port
        self.broker = Mosquitto(folder / "broker", ["a1"], Fleet(tls_bind=f"127.0.0.1:{port}"))
        self.authority = Authority(self.broker.folder / AUTHORITY)

    def agent(self, name: str, issued: Issued, says: str = "") -> Agent:
        """A client with this certificate, that says it is `says`."""
        for suffix, text in (("pem", issued.certificate), ("key", issued.key)):
            (self.folder / f"{name}.{suffix}").write_text(text)
        context = ssl.create_default_context(cafile=str(self.authority.folder / "ca.pem"))
        context.load_cert_chain(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        made = Agent(f"mqtts://localhost:{self.port}", says or name, "", {}, tls=context, spread_s=0.1)

        @made.task("*")
        async def answer(target: str, options: object) -> str:
            return name

        return made

    def told(self) -> None:
        ban(self.broker.folder)
        os.kill(self.broker.pid, signal.SIGHUP)


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[Secured]:
    (port,) = await _free_ports(1)
    made = Secured(tmp_path, port)
    await made.broker.start()
    yield made
    await made.broker.stop()


@contextlib.asynccontextmanager
async def planes(secured: Secured) -> AsyncIterator[Plane]:
    made = Plane(secured.broker)
    await made.link.open()
    yield made
    await made.link.close()


@contextlib.asynccontextmanager
async def served(*agents: Agent) -> AsyncIterator[None]:
    running = [asyncio.create_task(each.run()) for each in agents]
    try:
        yield
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


@needs_mosquitto
async def test_a_client_proves_its_name_by_its_certificate_and_answers(secured: Secured) -> None:
    issued = secured.authority.issue("probe-7", 1)
    async with planes(secured) as plane, served(secured.agent("probe-7", issued)):
        await until(lambda: plane.index.online == 1)
        plane.dispatcher.run(0, ("shop", MINUTE), parse(""), 1, 1, kind="any", target="")
        await until(lambda: bool(plane.ended))
    assert plane.ended[0].done == ["probe-7"]


@needs_mosquitto
async def test_a_client_is_whom_its_certificate_names_and_no_other(secured: Secured) -> None:
    good, thief = secured.authority.issue("probe-7", 1), secured.authority.issue("probe-8", 1)
    liar = secured.agent("probe-8", thief, says="probe-7")
    async with planes(secured) as plane, served(secured.agent("probe-7", good)):
        await until(lambda: plane.index.online == 1)
        async with served(liar):
            await until(lambda: liar.connected)
            plane.dispatcher.run(0, ("shop", MINUTE), parse(""), 2, 1, kind="any", target="")
            await until(lambda: bool(plane.answers))
    assert [bytes(each.result.value) for each in plane.answers] == [b'"probe-7"']
    assert plane.index.online == 1


@needs_mosquitto
async def test_clients_without_a_certificate_or_of_another_authority_are_refused(
    secured: Secured, tmp_path: Path
) -> None:
    strange = Authority(tmp_path / "strange")
    strange.prepare(["localhost"])
    alien = secured.agent("probe-7", strange.issue("probe-7", 1))
    context = ssl.create_default_context(cafile=str(secured.authority.folder / "ca.pem"))
    word = secured.broker.words["a1"]
    bare = Agent(f"mqtts://localhost:{secured.port}", "a1", word, {}, tls=context, spread_s=0.1)
    fine = secured.agent("probe-8", secured.authority.issue("probe-8", 1))
    async with planes(secured) as plane, served(alien, bare, fine):
        await until(lambda: plane.index.record("probe-8") is not None)
        await asyncio.sleep(0.5)  # nothing must come
        assert plane.index.online == 1
        assert not alien.connected
        assert not bare.connected


@needs_mosquitto
async def test_a_revoked_client_is_cut_off_at_once_and_a_new_certificate_lets_it_in(secured: Secured) -> None:
    first = secured.authority.issue("probe-7", 1)
    other = secured.authority.issue("probe-8", 1)
    async with planes(secured) as plane, served(secured.agent("probe-8", other)):
        old = secured.agent("probe-7", first)
        async with served(old):
            await until(lambda: plane.index.online == 2)
            secured.authority.revoke("probe-7")
            secured.told()
            await _deaf(plane, "probe-7")
        async with served(secured.agent("probe-7", first)):
            await asyncio.sleep(0.5)  # nothing must come
            await _deaf(plane, "probe-7")
        again = secured.agent("probe-7", secured.authority.issue("probe-7", 1))
        secured.told()
        async with served(again):
            await until(lambda: again.connected)

            def known() -> bool:
                again.change({})  # the broker may not have read yet that it is let in
                record = plane.index.record("probe-7")
                return record is not None and record.epoch == again.epoch

            async with asyncio.timeout(PATIENT_S):
                while not known():  # noqa: ASYNC110 - in another process: no event to wait for
                    await asyncio.sleep(0.1)
            plane.dispatcher.run(plane.now, ("again", MINUTE), parse(""), 2, 1, kind="any", target="")
            await until(lambda: len(plane.answers) == 2)


@needs_mosquitto
async def test_the_open_session_of_a_revoked_client_ends_and_stays_out_with_the_reason(secured: Secured) -> None:
    words = (secured.broker.folder / USERS).read_text()
    first, other = secured.authority.issue("probe-7", 1), secured.authority.issue("probe-8", 1)
    old = secured.agent("probe-7", first)
    running = asyncio.create_task(old.run())
    async with planes(secured) as plane, served(secured.agent("probe-8", other)):
        await until(lambda: plane.index.online == 2)
        secured.authority.revoke("probe-7")
        secured.told()
        bind = secured.broker.host, secured.broker.port
        assert await expel(secured.broker.folder, bind, ["probe-7"], secured.told) == set()
        assert (secured.broker.folder / USERS).read_text() == words
        secured.authority.issue("probe-7", 1)  # which lets its name in again
        secured.told()
        with pytest.raises(BrokerRefused, match=r"refused the connection: .*certificate revoked"):
            async with asyncio.timeout(PATIENT_S):
                await running
        await _deaf(plane, "probe-7")


async def _deaf(plane: Plane, client: str) -> None:
    """Until it does not answer beside another client, which does; the broker takes a moment for a SIGHUP."""
    heard: list[str] = []
    receive = plane.link._receive

    def noted(topic: str, payload: bytes) -> None:
        heard.append(topic)
        receive(topic, payload)

    plane.link._receive = noted
    for number in range(1_000):
        heard.clear()
        for each in (client, "probe-8"):
            order = Order(f"deaf-{id(heard)}-{number}@1", "any", "", 5_000, 30_000, {})
            plane.link.send(schema.down(each, "task"), schema.written(order), 1)
        await until(lambda: "fleet/1/probe-8/up/result" in heard)
        await asyncio.sleep(0.2)
        if f"fleet/1/{client}/up/result" not in heard:
            plane.link._receive = receive
            return
    raise AssertionError(f"{client} still answers")


@needs_mosquitto
async def test_a_revoked_certificate_stays_refused_when_the_broker_dies(secured: Secured) -> None:
    first = secured.authority.issue("probe-7", 1)
    fine = secured.agent("probe-8", secured.authority.issue("probe-8", 1))
    secured.authority.revoke("probe-7")
    bad = secured.agent("probe-7", first)
    async with planes(secured) as plane:
        secured.broker.kill()
        await until(lambda: not plane.link.connected)
        await until(lambda: plane.link.connected)
        async with served(bad, fine):
            await until(lambda: plane.index.record("probe-8") is not None)
            await asyncio.sleep(0.5)  # nothing must come
            assert not bad.connected
