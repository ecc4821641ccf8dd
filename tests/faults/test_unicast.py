"""Presence and unicast at real processes: a session is online at every site, a message reaches each device once."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import muster
from tests.faults.conftest import Make
from tests.faults.instance import APART, Instance
from tests.waiting import PATIENT_S, until_asked

SITES = 2


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """One instance with presence for all tests that kill nothing."""
    text = "[database]\nurl = 'none'\n[probes]\nevery_ms = 0\n[up]\ngateways = 2\n[presence]\ngrace_ms = 200\n"
    text += "[users.staff]\nfirst = 1000\nlast = 1999\ndevices = 'one'\nsend = '10*'\n"
    text += "[users.guests]\nfirst = 2000\nlast = 2999\ndevices = 'one per kind'\n"
    instance = Instance(tmp_path_factory.mktemp("unicast"), text)
    with instance.running("--with", "presence"):
        yield instance


async def token(
    instance: Instance, user: int | str, device: str | None = None, rights: str = "read", *more: str
) -> str:
    """The output of `muster token`."""
    words = ["token", str(user), "--rights", rights, *([] if device is None else ["--device", device]), *more]
    done = await asyncio.to_thread(instance.ran, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().strip()


def who(instance: Instance, user: int, site: int) -> dict[str, Any]:
    """The answer of a site's reader for a user."""
    done = instance.ran("presence", "who", str(user), "--site", str(site), "--json", seconds=PATIENT_S)
    if done.returncode != 0:
        return {"online": None, "devices": [], "why": done.stderr.decode()}
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def devices(instance: Instance, user: int) -> list[list[str]]:
    """The names of a user's devices at each site."""
    found = [who(instance, user, site) for site in range(1, SITES + 1)]
    return [[each["device"] for each in said["devices"]] for said in found]


async def seen(instance: Instance, user: int, *names: str) -> None:
    """Return once every site knows exactly these devices."""
    wanted = [sorted(names)] * SITES
    await until_asked(lambda: devices(instance, user) == wanted, PATIENT_S)


@contextlib.asynccontextmanager
async def device(instance: Instance, user: int, name: str, at: int | None = None) -> AsyncIterator[muster.Client]:
    """A client of this user, at any gateway or at one."""
    ends = instance.record().gateways
    gateways = None if at is None else [(ends[at].host, ends[at].port, ends[at].public_key)]
    credential = await token(instance, user, name)
    async with muster.connect(instance.folder.path, gateways=gateways, proxies=[], token=credential) as client:
        yield client


async def got(client: muster.Client, count: int) -> list[bytes]:
    """The data of the next messages to a client's user."""
    found: list[bytes] = []
    async with asyncio.timeout(PATIENT_S):
        async for message in client.direct():
            found.append(message.data)
            if len(found) == count:
                break
    return found


async def send(instance: Instance, user: int | str, text: str, *words: str) -> tuple[int, str]:
    """The output of `muster send`, and its exit code."""
    done = await asyncio.to_thread(instance.ran, "send", str(user), *words, stdin=text.encode() + b"\n")
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout.decode().strip()


async def test_a_session_is_online_at_every_site_until_it_ends(shared: Instance) -> None:
    await seen(shared, 7)
    async with device(shared, 7, "phone"):
        await seen(shared, 7, "phone")
        async with device(shared, 7, "laptop"):
            await seen(shared, 7, "phone", "laptop")
    await seen(shared, 7)
    said = await asyncio.to_thread(who, shared, 7, 1)
    assert (said["online"], said["last_seen"] is not None) == (False, True)


async def test_a_message_reaches_each_device_once_and_its_sender_hears_of_each(shared: Instance) -> None:
    async with device(shared, 8, "phone", at=0) as phone, device(shared, 8, "laptop", at=1) as laptop:
        await seen(shared, 8, "phone", "laptop")
        assert await send(shared, 8, "hello") == (0, "delivered: laptop, phone")
        assert await send(shared, 8, "only you", "--device", "phone") == (0, "delivered: phone")
        assert await got(phone, 2) == [b"hello", b"only you"]
        assert await got(laptop, 1) == [b"hello"]
        assert await send(shared, 8, "nobody", "--device", "watch") == (1, "not online")
        async with muster.connect(shared.folder.path, gateways=[]) as backend:
            every = await asyncio.gather(*(backend.send(8, b"%d" % number) for number in range(200)))
        wanted = [muster.DeviceResult("laptop", "delivered"), muster.DeviceResult("phone", "delivered")]
        assert [sorted(results) for results in every] == [wanted] * 200
        for client in (phone, laptop):
            assert await got(client, 200) == [b"%d" % number for number in range(200)]
    assert await send(shared, 9, "nobody there") == (1, "not online")


async def test_a_client_sends_to_the_users_that_its_token_names_and_to_no_others(shared: Instance) -> None:
    async with device(shared, 12, "phone") as phone:
        await seen(shared, 12, "phone")
        cases: tuple[tuple[int, tuple[str, ...], bool], ...] = (
            (30, (), False),
            (30, ("--send", "12"), True),
            (30, ("--send", "1*"), True),
            (30, ("--send", "13"), False),
            (30, ("--send", "alice"), False),
            (1_030, (), False),
        )
        for user, more, may in cases:
            credential = await token(shared, user, None, "publish", *more)
            async with muster.connect(shared.folder.path, gateways=[], token=credential) as client:
                if may:
                    assert await client.send(12, b"hello") == [muster.DeviceResult("phone", "delivered")]
                    continue
                with pytest.raises(muster.Refused) as told:
                    await client.send(12, b"hello")
                assert told.value.code == "not_allowed"
        credential = await token(shared, 1_030, None, "publish")  # its range may send to 10…
        async with muster.connect(shared.folder.path, gateways=[], token=credential) as client:
            assert [each.outcome for each in await client.send(1_099, b"hello")] == ["not_online"]
        credential = await token(shared, 30, None, "read", "--send", "12")  # it sends, and publishes nowhere
        async with muster.connect(shared.folder.path, gateways=[], token=credential) as client:
            assert await client.send(12, b"hello") == [muster.DeviceResult("phone", "delivered")]
        assert await got(phone, 3) == [b"hello"] * 3


async def test_a_newer_session_ends_older_ones_by_the_policy_of_its_users(shared: Instance) -> None:
    for user, ends in ((1_500, True), (2_500, False)):
        async with device(shared, user, "phone", at=0) as older:
            await seen(shared, user, "phone")
            async with device(shared, user, "laptop", at=1):
                if not ends:
                    await seen(shared, user, "phone", "laptop")
                    continue
                await seen(shared, user, "laptop")
                with pytest.raises(muster.Refused) as told:
                    await got(older, 1)
                assert told.value.code == "replaced"
                ends_of = shared.record().gateways
                servers = [(each.host, each.port, each.public_key) for each in ends_of]
                other = (await token(shared, user, "phone")).encode()
                older.redirect(muster.Address(tuple(servers), (), other))
                await asyncio.sleep(0.5)  # a client that fought back would be there again
                await seen(shared, user, "laptop")
                with pytest.raises(muster.Refused) as told:
                    await got(older, 1)
                assert told.value.code == "replaced", "neither another token nor another server brings it back"


async def end(instance: Instance, user: int, *words: str) -> tuple[int, str]:
    """The output of `muster presence end`, and its exit code."""
    done = await asyncio.to_thread(instance.ran, "presence", "end", str(user), *words)
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout.decode().strip()


async def test_an_operator_ends_one_device_of_a_user_or_all_and_their_clients_stay_away(shared: Instance) -> None:
    assert await end(shared, 40) == (1, "not online")
    async with (
        device(shared, 40, "phone", at=0) as phone,
        device(shared, 40, "laptop", at=1) as laptop,
        device(shared, 41, "phone", at=0) as stranger,
    ):
        await seen(shared, 40, "phone", "laptop")
        await seen(shared, 41, "phone")
        assert await end(shared, 40, "--device", "phone") == (0, "ended: phone")
        with pytest.raises(muster.Refused) as told:
            await got(phone, 1)
        assert told.value.code == "ended"
        await seen(shared, 40, "laptop")
        assert await send(shared, 40, "hello") == (0, "delivered: laptop")
        assert await got(laptop, 1) == [b"hello"]
        ends = [(each.host, each.port, each.public_key) for each in shared.record().gateways]
        phone.redirect(muster.Address(tuple(ends), (), (await token(shared, 40, "phone")).encode()))
        with pytest.raises(muster.Refused) as told:
            await got(phone, 1)
        assert told.value.code == "ended", "neither another token nor another server brings it back"
        async with device(shared, 40, "phone", at=1):
            await seen(shared, 40, "phone", "laptop")  # a new client may come at once
            assert await end(shared, 40) == (0, "ended: laptop, phone")
        await seen(shared, 40)
        assert await send(shared, 41, "you stay") == (0, "delivered: phone")
        assert await got(stranger, 1) == [b"you stay"]


async def test_only_the_shared_token_ends_sessions(shared: Instance) -> None:
    async with device(shared, 42, "phone"):
        await seen(shared, 42, "phone")
        credential = await token(shared, 43, None, "publish", "--send", "*")
        async with muster.connect(shared.folder.path, gateways=[], token=credential) as client:
            with pytest.raises(muster.Refused) as told:
                await client.end_sessions(42)
            assert told.value.code == "not_allowed"
            assert await client.send(42, b"hello") == [muster.DeviceResult("phone", "delivered")]
        with muster.sync.connect(shared.folder.path, gateways=[]) as backend:
            assert backend.end_sessions(42) == [muster.DeviceResult("phone", "ended")]


async def test_one_device_has_one_session_wherever_it_comes_from(shared: Instance) -> None:
    async with device(shared, 10, "phone", at=0) as older, device(shared, 10, "phone", at=0) as newer:
        with pytest.raises(muster.Refused) as told:
            await got(older, 1)
        assert told.value.code == "replaced"
        await seen(shared, 10, "phone")
        assert await send(shared, 10, "hello") == (0, "delivered: phone")
        assert await got(newer, 1) == [b"hello"]


async def test_sub_shows_what_is_sent_to_the_user_of_its_token(shared: Instance) -> None:
    file = shared.config.parent / "phone.jwt"
    file.write_text(await token(shared, 11, "phone"))
    process = shared.command("sub", "demo", "--token-file", str(file), stdout=-1, stderr=-1)
    try:
        await seen(shared, 11, "phone")
        assert await send(shared, 11, "hello") == (0, "delivered: phone")
    finally:
        process.send_signal(2)
        _, words = process.communicate(timeout=PATIENT_S)
    assert b"direct sender=1 data=hello" in words


async def test_a_user_of_text_is_shown_by_its_text(shared: Instance) -> None:
    name = "ann@example.org"
    credential = await token(shared, name, "phone")
    async with muster.connect(shared.folder.path, proxies=[], token=credential) as phone:
        await until_asked(lambda: [each["online"] for each in by_name(shared, name)] == [True] * SITES, PATIENT_S)
        said = await asyncio.to_thread(by_name, shared, name)
        assert [each["text"] for each in said] == [name] * SITES
        number = said[0]["user"]
        assert await send(shared, name, "hello", "--json") == (
            0,
            json.dumps(
                {"user": number, "text": name, "devices": [{"device": "phone", "outcome": "delivered"}]},
                separators=(",", ":"),
            ),
        )
        assert await got(phone, 1) == [b"hello"]
        by_number = await asyncio.to_thread(shared.ran, "presence", "who", number)
        assert by_number.stdout.decode().startswith(f"{number} {name}: online: phone at gateway ")
        watching = shared.command("presence", "watch", number, stdout=-1, stderr=-1)
        assert watching.stdout is not None
        await until_asked(lambda: metric(shared, "presence_watches") == 1, PATIENT_S)
    line = await asyncio.to_thread(watching.stdout.readline)  # it goes once its grace time is over
    watching.send_signal(2)
    await asyncio.to_thread(watching.communicate)
    assert line.decode().startswith(f"{number} {name}: phone offline (closed) at gateway ")


def by_name(instance: Instance, name: str) -> list[dict[str, Any]]:
    """The answer of each site for a user of text, as far as they answer."""
    done = [
        instance.ran("presence", "who", name, "--json", "--site", str(site), seconds=PATIENT_S)
        for site in range(1, SITES + 1)
    ]
    assert all(each.returncode in {0, 75} for each in done), done
    return [json.loads(each.stdout) for each in done if each.returncode == 0]


def metric(instance: Instance, name: str) -> float:
    """A figure over all readers."""
    return sum(instance.metrics(each)[name] for each in instance.names("online-reader"))


async def test_a_killed_gateway_loses_its_users_and_a_message_finds_them_elsewhere(make: Make) -> None:
    instance = make(up=APART | {"gateways": 2}, presence={"grace_ms": 200, "lease_ms": 2_000})
    with instance.running("--with", "presence"):
        credential = await token(instance, 7, "phone")
        async with muster.connect(instance.folder.path, proxies=[], token=credential) as phone:
            await seen(instance, 7, "phone")
            async with muster.connect(instance.folder.path, gateways=[]) as backend:
                (at,) = (await asyncio.to_thread(who, instance, 7, 1))["devices"]
                name = next(each.name for each in instance.record().processes if each.node == at["gateway"])
                for victim in (name, "online-proxy", "unicast", "proxy"):
                    dead = instance.kill(victim)
                    for number in range(20):
                        results = await backend.send(7, f"{victim} {number}".encode())
                        assert {each.outcome for each in results} <= {"delivered", "expired", "not_online", "unknown"}
                    await instance.back(victim, dead)
                    async with asyncio.timeout(PATIENT_S):
                        wanted = [muster.DeviceResult("phone", "delivered")]
                        while await backend.send(7, b"last") != wanted:  # noqa: ASYNC110 - in other processes
                            await asyncio.sleep(0.1)  # its session may be on its way to another gateway
                await seen(instance, 7, "phone")
            received: list[bytes] = []
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    async for message in phone.direct():
                        received.append(message.data)  # noqa: PERF401 - what came before the time-out counts
            told = [each for each in received if each != b"last"]
            assert len(told) == len(set(told)), "each message once"
        await seen(instance, 7)
