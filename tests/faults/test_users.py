"""Users at real processes: rights by a token that a backend signed, limits, and a replaced secret."""

import asyncio
import contextlib
import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest

import muster
from muster_server.plane.users import HASHED
from tests.faults.conftest import Make
from tests.faults.hosts import Hosts
from tests.faults.instance import Instance
from tests.faults.test_serve import reloaded
from tests.waiting import PATIENT_S, until, until_asked

ROOM = "live:final"
OTHER = "o" * 32


@contextlib.contextmanager
def hung_up() -> Iterator[None]:
    """A child must not ignore SIGHUP, though this process may."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


async def token(instance: Instance, *words: str) -> str:
    """The output of `muster token`."""
    done = await asyncio.to_thread(instance.ran, "token", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().strip()


async def refused(instance: Instance, token: str, **sides: Any) -> str:
    """The code with which a token opens no session."""
    with pytest.raises(muster.Refused) as told:
        await muster.connect(instance.folder.path, token=token, **sides)
    return told.value.code


async def refused_in_time(client: muster.Client) -> None:
    """Publish until that is refused."""
    async with asyncio.timeout(PATIENT_S):
        while True:
            await client.publish(ROOM, b"still")


def lines(instance: Instance, event: str, *roles: str) -> list[dict[str, Any]]:
    """The instance's log lines of an event, of nodes of these roles."""
    every = [json.loads(line) for line in instance.log.read_text().splitlines() if line.startswith("{")]
    return [line for line in every if line["event"] == event and line.get("role") in roles]


async def test_a_user_may_do_what_the_token_says_and_who_is_there_is_listed(make: Make) -> None:
    instance = make()
    with instance.running():
        reads, both = await token(instance, "7"), await token(instance, "8", "--rights", "read,publish")
        publishes = await token(instance, "9", "--rights", "publish")
        assert await refused(instance, reads) == await refused(instance, reads, gateways=[]) == "not_allowed"
        assert await refused(instance, publishes, proxies=[]) == "not_allowed"
        assert await refused(instance, reads[:-2], proxies=[]) == "bad_credential"
        async with contextlib.AsyncExitStack() as stack:
            members = []
            for shown, proxies in ((reads, []), (reads, []), (both, None), (None, None)):
                opened = muster.connect(instance.folder.path, token=shown, proxies=proxies)
                client = await stack.enter_async_context(opened)
                members.append(await stack.enter_async_context(client.join(ROOM)))
            assert await client.members(ROOM, ids=True) == muster.Members(4, (1, 7, 8), False, False)
            backend = await stack.enter_async_context(
                muster.connect(instance.folder.path, token=publishes, gateways=[])
            )
            assert await backend.command(ROOM, b"now") == muster.Delivered(4)
            await backend.publish(ROOM, b"go")
            for member in members:
                for item, data in ((await anext(member), b"now"), (await anext(member), b"go")):
                    assert not isinstance(item, muster.Gap)
                    assert (item.data, item.sender) == (data, 9)
            with pytest.raises(muster.Refused) as told:
                await backend.command(ROOM, b"again")
            assert told.value.retry_after is not None
            await asyncio.sleep(told.value.retry_after)
            assert await backend.command(ROOM, b"again") == muster.Delivered(4)
        named = await token(instance, "ann@example.org")
        async with muster.connect(instance.folder.path, token=named, proxies=[]) as client, client.join("named"):
            done = await asyncio.to_thread(instance.ran, "members", "named", "--ids", "--json")
            found = json.loads(done.stdout)
            (user,) = found["ids"]
            assert user >= HASHED
            assert found["texts"] == {str(user): "ann@example.org"}
        await _senders_are_shown_by_name(instance)
        counted = instance.metrics("gateway")
        assert (counted["refused_right"], counted["refused_credential"]) == (1, 1)
    log = instance.log.read_text()
    assert not any(part in log for shown in (reads, both, publishes) for part in shown.split(".")[1:])


async def _senders_are_shown_by_name(instance: Instance) -> None:
    named = await token(instance, "bob@example.org", "--rights", "publish")
    process = instance.command("sub", "named", "--json", "--count", "1", stdout=-1, stderr=-1)
    try:
        assert process.stderr is not None
        assert await asyncio.to_thread(process.stderr.readline) == b"joined named\n"
        async with muster.connect(instance.folder.path, token=named, gateways=[]) as backend:
            assert await backend.command("named", b"now") == muster.Delivered(1)
            await backend.publish("named", b"go")
        said, _ = await asyncio.to_thread(process.communicate, timeout=PATIENT_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    documents = [json.loads(line) for line in said.splitlines()]
    assert [(each["data"], each["sender_text"]) for each in documents] == [
        ("now", "bob@example.org"),
        ("go", "bob@example.org"),
    ]
    assert all(each["sender"] >= HASHED for each in documents)


async def test_sighup_puts_other_secrets_and_limits_in_force_while_clients_stay(make: Make) -> None:
    instance = make()
    with hung_up(), instance.running() as up:
        former = await token(instance, "7", "--rights", "read,publish")
        first = instance.folder.jwt_secret.read_text().strip()
        done = 0

        async def reload(event: str = "reloaded", *roles: str) -> None:
            before = len(lines(instance, event, *roles))
            up.send_signal(signal.SIGHUP)
            await until_asked(lambda: len(lines(instance, event, *roles)) >= before + len(roles))

        async with muster.connect(instance.folder.path, token=former) as client, client.join(ROOM) as room:
            instance.folder.jwt_secret.write_text(f"{OTHER}\n{first}\n")
            with instance.config.open("a") as config:
                config.write("[proxy]\ncommand_burst = 3\n")
            await reload("reloaded", "gateway", "proxy", "supervisor")
            (line,) = lines(instance, "reloaded", "supervisor")
            assert line["in_force"] == {
                "cluster.jwt_secret_file": str(instance.folder.jwt_secret),
                "proxy.command_burst": 3,
            }
            done = sum([await client.command(ROOM, b"x") == muster.Delivered(1) for _ in range(3)])
            assert done == 3
            later = await token(instance, "7", "--rights", "read,publish")
            for good in (former, later):
                async with muster.connect(instance.folder.path, token=good):
                    pass
            instance.folder.jwt_secret.write_text(f"{OTHER}\nshort\n")
            await reload("not reloaded, the old configuration stays", "supervisor")
            instance.folder.jwt_secret.write_text(f"{OTHER}\n")
            await reload("reloaded", "gateway", "proxy", "supervisor")
            assert await refused(instance, former) == "bad_credential"
            async with muster.connect(instance.folder.path, token=later):
                pass
            await client.publish(ROOM, b"still here")
            commands = [await anext(room) for _ in range(done)]
            assert all(isinstance(item, muster.Command) for item in commands)
            message = await anext(room)
            assert isinstance(message, muster.Message)
            assert message.data == b"still here"
    assert OTHER not in instance.log.read_text()
    assert first not in instance.log.read_text()


async def test_a_user_is_in_the_rooms_of_its_token_until_that_is_revoked(make: Make) -> None:
    """Found: a token with the right to read joined another user's private room."""
    instance = make()
    with hung_up(), instance.running() as up:
        ann = await token(instance, "7", "--cap", "live:*=read", "--id", "first")
        bob = await token(instance, "8", "--cap", f"{ROOM}=read,publish")
        async with (
            muster.connect(instance.folder.path, token=ann, proxies=[]) as reader,
            reader.join(ROOM) as room,
            muster.connect(instance.folder.path, token=bob) as both,
        ):
            for refused_call in (reader.join("private:8"), both.join("live:semi"), both.publish("live:semi", b"x")):
                with pytest.raises(muster.Refused, match="not_allowed"):
                    await refused_call
            await both.publish(ROOM, b"go")
            item = await anext(room)
            assert isinstance(item, muster.Message)
            assert item.sender == 8
            revoked = instance.folder.path / "revoked"
            revoked.write_text("# lost its phone\ntoken first\n")
            with instance.config.open("a") as config:
                config.write(f'[cluster]\nrevoked_file = "{revoked}"\n')
            up.send_signal(signal.SIGHUP)
            with pytest.raises(muster.Refused, match="bad_credential"):
                async with asyncio.timeout(PATIENT_S):
                    await anext(room)
            await both.publish(ROOM, b"still")
            revoked.write_text("user 8\n")
            up.send_signal(signal.SIGHUP)
            with pytest.raises(muster.Refused, match="bad_credential"):
                await refused_in_time(both)
            await until_asked(lambda: instance.metrics("gateway")["sessions_revoked"] == 2)
        assert await refused(instance, bob) == "bad_credential"
        async with muster.connect(instance.folder.path, token=ann, proxies=[]):
            pass


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"key_id": 2}, "cluster.key_id: new links use key 1 now; keep it"),
        ({}, "cluster.key_id: key 1 has a different secret now"),
    ],
)
async def test_sighup_to_an_instance_takes_no_secret_that_its_nodes_cannot_follow(
    make: Make, changes: dict[str, int], wrong: str
) -> None:
    """Else a node that died would start with it, and link with nobody."""
    instance = make()
    with hung_up(), instance.running() as up:
        other = instance.folder.path / "next.secret"
        other.write_text("5e" * 32)
        keys = "".join(f"{name} = {value}\n" for name, value in changes.items())
        with instance.config.open("a") as config:
            config.write(f'[cluster]\nsecret_file = "{other}"\n{keys}')
        up.send_signal(signal.SIGHUP)
        stays = "not reloaded, the old configuration stays"
        await until_asked(lambda: bool(lines(instance, stays, "supervisor")))
        (line,) = lines(instance, stays, "supervisor")
        assert wrong in line["error"]
        await instance.renew("broker")
        async with muster.connect(instance.folder.path) as client, client.join(ROOM) as room:
            await client.publish(ROOM, b"once more")
            message = await anext(room)
        assert isinstance(message, muster.Message)
        assert message.data == b"once more"


async def test_a_node_by_itself_reloads_the_secrets_of_users_and_needs_none(hosts: Hosts) -> None:
    file = hosts.path / "users.secret"
    node = hosts.start("gateway", "gateway")
    await until(lambda: node.lines("registered"), PATIENT_S)
    hosts.write(cluster=hosts.sections["cluster"] | {"jwt_secret_file": str(file)})
    line = await reloaded(node, "not reloaded, the old configuration stays")
    assert f"{file}: cannot be read" in line["error"]
    for content in (OTHER, f"{OTHER}\n{'n' * 40}"):
        file.write_text(content)
        assert (await reloaded(node))["in_force"] == {"cluster.jwt_secret_file": str(file)}
    assert (await reloaded(node))["in_force"] == {}
    assert await node.end() == 0
