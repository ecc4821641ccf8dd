"""Messages of users who are not online, by real processes: into a topic whose callback pushes to browsers by the example of
`docs/unicast.md`, or into the inbox. Statuses and passing events beside them, by the examples of the pages."""

import asyncio
import base64
import http.server
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import http_ece
import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

import muster
from muster.inbox import AsyncInbox
from muster.presence import Presence
from muster_server.systems.edge.sessions import Server, Session
from muster_server.systems.edge.wire import PATH, frame
from tests.documents import ROOT, fenced
from tests.faults.hooks import Called, hooks
from tests.faults.instance import Instance
from tests.faults.test_messages import said, topic
from tests.faults.test_unicast import device, got, seen, token
from tests.faults.test_unicast_http import face
from tests.sdk.items import next_of
from tests.waiting import PATIENT_S, until_asked

Hook = Callable[[str, Mapping[str, str], bytes, Mapping[str, Sequence[Mapping[str, Any]]], str], int]


def example(page: str, name: str) -> Any:
    """The function of this name in an example of a page."""
    (text,) = [each for each in fenced((ROOT / "docs" / page).read_text(), "python") if f"def {name}(" in each]
    names: dict[str, Any] = {}
    exec(compile(text, page, "exec"), names)
    return names[name]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """One instance whose messages go into inboxes where a request names nothing else."""
    text = "[probes]\nevery_ms = 0\n[presence]\ngrace_ms = 200\nnot_online = 'inbox:message'\n"
    text += "[namespaces.passing]\nhistory_messages = 256\nhistory_s = 5\n"
    instance = Instance(tmp_path_factory.mktemp("not-online"), text)
    with instance.running("--with", "presence,messages,inbox,http,edge"):
        yield instance


def url(instance: Instance) -> str:
    """The face's URL."""
    host, port = face(instance)
    return f"http://{host}:{port}"


def key(instance: Instance, name: str, *scopes: str) -> str:
    """A new API key."""
    words = [word for scope in scopes for word in ("--scope", scope)]
    made: str = said(instance, "key", "create", name, *words)["key"]
    return made


def text(number: bytes) -> str:
    """Base64 as web push writes it."""
    return base64.urlsafe_b64encode(number).rstrip(b"=").decode()


class Browser:
    """A page's subscription at a push service of this process, which may lose it."""

    def __init__(self) -> None:
        self.own, self.auth = ec.generate_private_key(ec.SECP256R1()), b"a" * 16
        self.pushed: list[tuple[str, dict[str, Any]]] = []
        """The text of each push, and what signed it says."""
        self.status = 201

    def subscription(self, endpoint: str) -> dict[str, Any]:
        """As `PushManager.subscribe` gives it to a page."""
        public = self.own.public_key().public_bytes(
            serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
        )
        return {"endpoint": endpoint, "keys": {"p256dh": text(public), "auth": text(self.auth)}}

    def take(self, headers: Mapping[str, str], body: bytes) -> None:
        """A push comes: open it, and look who signed it."""
        words = dict(word.strip().split("=", 1) for word in headers["authorization"].removeprefix("vapid ").split(","))
        point = base64.urlsafe_b64decode(words["k"] + "==")
        signer = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), point)
        claims = jwt.decode(words["t"], signer, algorithms=["ES256"], options={"verify_aud": False})
        opened = http_ece.decrypt(body, private_key=self.own, auth_secret=self.auth, version="aes128gcm")
        self.pushed.append((opened.decode(), claims))


@contextmanager
def push_service(browser: Browser) -> Iterator[str]:
    """A push service with one subscription: its endpoint."""

    class Push(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if browser.status == 201:
                browser.take({name.lower(): value for name, value in self.headers.items()}, body)
            self.send_response(browser.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Push)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/push/1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def signed(called: Called) -> dict[str, str]:
    """The headers by which a callback is verified."""
    return {
        "webhook-id": called.id,
        "webhook-timestamp": str(called.timestamp),
        "webhook-signature": called.signature,
    }


async def test_a_user_who_is_not_online_gets_a_web_push_and_one_who_is_does_not(
    shared: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    hook: Hook = example("unicast.md", "hook")
    browser, vapid = Browser(), ec.generate_private_key(ec.SECP256R1())
    private = text(vapid.private_numbers().private_value.to_bytes(32))
    with hooks() as server, push_service(browser) as endpoint:
        often = ",".join(["300ms"] * 60)
        secret = await asyncio.to_thread(topic, shared, server, "--retries", often, "--jitter", "0", name="push")
        backend = await asyncio.to_thread(key, shared, "push", "unicast:*", "send:push")
        subscriptions = {"31": [browser.subscription(endpoint)]}
        statuses: list[int] = []

        def answer(handler: Any) -> None:
            called = server.calls[-1]
            statuses.append(hook(secret, signed(called), called.body, subscriptions, private))
            handler.say(statuses[-1])

        server.answer = answer
        async with device(shared, 32, "phone") as phone:
            await seen(shared, 32, "phone")
            with Presence(await asyncio.to_thread(url, shared), key=backend) as presence:
                sent = await asyncio.to_thread(presence.send, [31, 32], "your move", not_online="topic:push")
            assert [(each.user, each.kept, each.error) for each in sent] == [(31, "topic:push", None), (32, None, None)]
            assert await got(phone, 1) == [b"your move"]
        await until_asked(lambda: len(browser.pushed) == 1, PATIENT_S)
        pushed, claims = browser.pushed[0]
        assert (pushed, claims["sub"]) == ("your move", "mailto:admin@example.org")
        body = json.loads(server.calls[0].body)
        assert body.pop("at") > 0
        assert body == {"user": "31", "data": "your move", "encoding": "utf-8", "outcome": "not_online"}
        assert hook("whsec_" + "a" * 32, signed(server.calls[0]), server.calls[0].body, subscriptions, private) == 401
        browser.status = 500  # the push service fails, and then it does not
        with Presence(await asyncio.to_thread(url, shared), key=backend) as presence:
            await asyncio.to_thread(presence.send, [31], "again", not_online="topic:push")
            await until_asked(lambda: 503 in statuses, PATIENT_S)
            browser.status = 201
            await until_asked(lambda: len(browser.pushed) == 2, PATIENT_S)
            browser.status = 410  # it has lost the subscription
            await asyncio.to_thread(presence.send, [31], "lost", not_online="topic:push")
            await until_asked(
                lambda: [json.loads(call.body)["data"] for call in server.calls].count("lost") == 1, PATIENT_S
            )
        assert [pushed for pushed, _ in browser.pushed] == ["your move", "again"]


async def test_without_another_place_the_configuration_says_where_it_goes(shared: Instance) -> None:
    backend = await asyncio.to_thread(key, shared, "inbox", "unicast:*", "inbox:*")
    address = await asyncio.to_thread(url, shared)
    with Presence(address, key=backend) as presence:
        (sent,) = await asyncio.to_thread(presence.send, [41], "your move")
        assert (sent.kept, sent.error) == ("inbox:message", None)
        (sent,) = await asyncio.to_thread(presence.send, [41], "for now alone", not_online="")
        assert (sent.kept, [each.outcome for each in sent.devices]) == (None, ["not_online"])
    async with AsyncInbox(address, key=backend) as inbox:
        page = await inbox.page(41)
        assert [(entry.kind, entry.data) for entry in page.entries] == [("message", {"text": "your move"})]


async def test_messages_of_members_over_udp_and_of_browsers_go_there_too(shared: Instance) -> None:
    backend = await asyncio.to_thread(key, shared, "members", "inbox:*")
    mine = await token(shared, 63, "phone", "read", "--send", "*")
    address = await asyncio.to_thread(url, shared)
    async with device(shared, 65, "phone") as phone:
        await seen(shared, 65, "phone")
        async with muster.connect(shared.folder.path, gateways=[], token=mine) as client:
            assert await client.send(64, b"by UDP") == [muster.DeviceResult(None, "not_online")]
            assert await client.send(65, b"to a phone") == [muster.DeviceResult("phone", "delivered")]
        await asyncio.to_thread(shared.ran, "send", "64", stdin=b"by the shared token\n")
        async with session(shared, mine) as browser:
            call = {"user": "64", "data": {"by": "a browser"}}
            said = {"method": "muster.send", "data": call}
            await browser.ask(lambda number: frame(json.dumps({"id": number, "rpc": said}).encode(), "json"))
        async with AsyncInbox(address, key=backend) as inbox:

            async def both() -> bool:
                return len((await inbox.page(64)).entries) == 2

            async with asyncio.timeout(PATIENT_S):
                while not await both():  # noqa: ASYNC110 - what is asked is a server
                    await asyncio.sleep(0.05)
            page = await inbox.page(64)
            told = {entry.data["text"]: (entry.kind, entry.actor) for entry in page.entries}
            assert told == {"by UDP": ("message", "63"), '{"by": "a browser"}': ("message", "63")}
            assert not (await inbox.page(65)).entries
        assert await got(phone, 1) == [b"to a phone"]


@asynccontextmanager
async def session(instance: Instance, credential: str) -> AsyncIterator[Session]:
    """A client of the edge."""
    bind = instance.process("edge").bind
    assert isinstance(bind, tuple)
    server = Server(bind[0], bind[1], False, PATH)
    loop = asyncio.get_running_loop()
    _, made = await loop.create_connection(lambda: Session("json", lambda: None), server.host, server.port)
    try:
        await made.connect(server, credential)
        yield made
    finally:
        made.close()


async def test_another_place_needs_its_scope_and_has_to_exist(shared: Instance) -> None:
    backend = await asyncio.to_thread(key, shared, "scopes", "unicast:*", "send:gone")
    address = await asyncio.to_thread(url, shared)
    async with httpx2.AsyncClient(base_url=address, headers={"x-api-key": backend}, trust_env=False) as client:
        for where, status in (("topic:other", 403), ("inbox:news", 403), ("room:x", 400), ("topic:", 400)):
            document = {"users": ["51"], "data": "x", "not_online": where}
            answer = await client.post("/api/v1/send", json=document)
            assert answer.status_code == status, where
        answer = await client.post("/api/v1/send", json={"users": ["51"], "data": "x", "not_online": "topic:gone"})
        (user,) = answer.json()["users"]
        assert (user.get("kept"), user["error"]) == (None, "not_allowed"), "there is no such topic"


async def test_an_own_status_and_passing_events_are_as_the_pages_say(shared: Instance) -> None:
    mine = await token(shared, 61, "phone", "read,publish", "--send", "62")
    address = await asyncio.to_thread(url, shared)
    await asyncio.to_thread(example("presence.md", "meet"), address, mine)
    with Presence(address, token=mine) as presence:
        (user,) = await asyncio.to_thread(presence.who, [61])
        assert user.status is None
    done = await asyncio.to_thread(shared.ran, "presence", "status", "61", "--mode", "invisible", "--text", "later")
    assert (done.returncode, done.stdout) == (0, b"61: invisible to others (later)\n")
    shown = await asyncio.to_thread(shared.ran, "presence", "who", "61")
    assert b"invisible to others (later)" in shown.stdout
    done = await asyncio.to_thread(shared.ran, "presence", "status", "61", "--clear", "--json")
    assert json.loads(done.stdout) == {"user": "61", "status": None}
    for words in ([], ["--clear", "--text", "x"], ["--text", "x" * 257]):
        assert (await asyncio.to_thread(shared.ran, "presence", "status", "61", *words)).returncode == 2
    typing = example("unicast.md", "typing")
    async with device(shared, 62, "phone") as friend:
        await seen(shared, 62, "phone")
        async with friend.join("chat:6") as room, muster.connect(shared.folder.path, gateways=[], token=mine) as client:
            await typing(client, 62, "chat:6")
            assert await got(friend, 1) == [b'{"typing": true}']
            async with asyncio.timeout(PATIENT_S):
                async for item in room:
                    if isinstance(item, muster.Command):
                        assert item.data == b'{"typing": true}'
                        break


async def test_passing_events_of_a_room_are_many_and_nobody_reads_them_later(
    shared: Instance, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = []
    for user in ("66", "67"):
        done = await asyncio.to_thread(shared.ran, "token", user, "--cap", "passing:*=read,publish")
        tokens.append(done.stdout.decode().strip())
    point, follow = example("unicast.md", "point"), example("unicast.md", "follow")
    async with (
        muster.connect(shared.folder.path, token=tokens[0]) as client,
        muster.connect(shared.folder.path, proxies=[], token=tokens[1]) as friend,
    ):
        following = asyncio.create_task(follow(friend))
        shown = ""
        async with asyncio.timeout(PATIENT_S):
            while shown.count("66 {") < 20:  # commands are one a second
                await point(client, 1, 2)
                await asyncio.sleep(0.01)
                shown += capsys.readouterr().out
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        with pytest.raises(muster.Refused, match="not_allowed"):
            await client.history("passing:6", 10)
        async with client.join("passing:6") as late:
            await client.publish("passing:6", b"after all these")
            assert (await next_of(late, muster.Message)).data == b"after all these"


def test_the_pages_name_the_limits() -> None:
    page = Path(ROOT / "docs" / "presence.md").read_text()
    for limit in ("256 bytes", "1,000,000 statuses", "366 days", "16 watches"):
        assert limit in page
