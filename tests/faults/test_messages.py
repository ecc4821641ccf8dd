"""Delayed messages by the real command and real processes: sent, shown, changed, fired, and kept over every death."""

import json
import time
from typing import Any

import pytest

from muster_server import _engines
from tests.faults.conftest import Make
from tests.faults.hooks import Handler, Hooks, hooks
from tests.faults.instance import Instance
from tests.waiting import until

ROLES = ("center", "messages-admin", "receive", "messages-worker")


@pytest.fixture
def with_messages(make: Make) -> Make:
    """As `make`, with delayed messages."""

    def made(**sections: dict[str, Any]) -> Instance:
        return make(**{"systems": {"enabled": "messages"}} | sections)

    return made


def said(instance: Instance, *words: str, code: int = 0) -> Any:
    """What a word says in JSON."""
    done = instance.ran(*words, "--json")
    assert done.returncode == code, (words, done.returncode, done.stderr.decode())
    return json.loads(done.stdout)


def topic(instance: Instance, server: Hooks, *more: str, name: str = "orders") -> str:
    """Make a topic. Gives its secret."""
    made = said(instance, "topic", "create", name, "--callback", f"{server.url}/hook", *more)
    secret: str = made["secrets"][0]
    return secret


def damage(instance: Instance, what: bytes) -> None:
    """Change one byte of a body on the disk."""
    for file in (instance.folder.path / "messages" / "schedule" / "hours").glob("*.bodies"):
        if (at := file.read_bytes().rfind(what)) >= 0:
            with file.open("r+b") as stream:
                stream.seek(at)
                stream.write(b"~")
            return
    raise AssertionError(f"no body has {what!r}")


async def test_a_message_is_called_back_when_due_signed_and_once(with_messages: Make) -> None:
    instance = with_messages()
    with hooks() as server, instance.running():
        assert set(ROLES) <= set(instance.names())
        secret = topic(instance, server)
        sent = said(instance, "delay", "send", "orders", '{"order": 7}', "--in", "1s", "--id", "order-7")
        assert (sent["id"], sent["state"], sent["duplicate"]) == ("order-7", "scheduled", False)
        again = said(instance, "delay", "send", "orders", '{"order": 7}', "--in", "9s", "--id", "order-7")
        assert (again["due_at"], again["duplicate"]) == (sent["due_at"], True)
        await until(lambda: server.ids() == ["order-7"])
        (call,) = server.calls
        assert call.at >= sent["due_at"]
        assert (call.body, call.kind) == (b'{"order": 7}', "application/json")
        assert _engines.webhook_verify(secret, call.id, call.timestamp, call.body, call.signature, int(time.time()))
        await until(lambda: said(instance, "delay", "show", "order-7")["state"] == "done")
        assert said(instance, "delay", "cancel", "order-7", code=5)["outcome"] == "already fired"
        assert len(server.calls) == 1
        (joined,) = [line for line in instance.log.read_text().splitlines() if '"a worker joined"' in line]
        told = json.loads(joined)
        assert (told["name"], told["peer_name"]) == ("muster-center", "muster-messages-worker"), joined


async def test_changes_are_told_truthfully_and_take_place(with_messages: Make) -> None:
    instance = with_messages()
    with hooks() as server, instance.running():
        topic(instance, server)
        for id in ("cancelled", "postponed", "advanced"):
            said(instance, "delay", "send", "orders", id, "--in", "1h", "--id", id)
        assert said(instance, "delay", "cancel", "cancelled")["outcome"] == "done"
        assert said(instance, "delay", "cancel", "cancelled")["outcome"] == "done"
        before = said(instance, "delay", "show", "postponed")["due_at"]
        assert said(instance, "delay", "postpone", "postponed", "--by", "10m")["due_at"] == before + 600_000
        assert said(instance, "delay", "advance", "advanced", "--to", "now")["outcome"] == "done"
        await until(lambda: server.ids() == ["advanced"])
        assert said(instance, "delay", "postpone", "cancelled", "--by", "1s", code=5)["outcome"] == "cancelled"
        assert said(instance, "delay", "show", "nobody", code=6)["state"] == "unknown"
        assert said(instance, "delay", "cancel", "nobody", code=6)["outcome"] == "unknown"
        # The withdrawal overtook its message.
        late = said(instance, "delay", "send", "orders", "late", "--in", "100ms", "--id", "nobody")
        assert late["state"] == "cancelled"
        assert server.ids() == ["advanced"]


@pytest.mark.parametrize("role", ROLES)
async def test_a_killed_node_loses_no_accepted_message(with_messages: Make, role: str) -> None:
    instance = with_messages()
    with hooks() as server, instance.running():
        topic(instance, server)
        due: dict[str, int] = {}
        for number in range(10):
            sent = said(
                instance, "delay", "send", "orders", "x", "--in", f"{500 + 400 * number}ms", "--id", f"m-{number}"
            )
            due[sent["id"]] = sent["due_at"]
        dead = instance.kill(role)
        await instance.back(role, dead)
        await until(lambda: due.keys() <= set(server.ids()))
        assert all(call.at >= due[call.id] for call in server.calls)
        doubles = len(server.calls) - len(due)
        assert doubles <= 1, "only a callback that was under way comes twice"


async def test_all_is_kept_over_a_restart_of_the_instance(with_messages: Make) -> None:
    instance = with_messages()
    with hooks() as server:
        with instance.running():
            secret = topic(instance, server)
            for number in range(3):
                said(instance, "delay", "send", "orders", "x", "--in", "1h", "--id", f"m-{number}")
            said(instance, "delay", "cancel", "m-0")
            said(instance, "delay", "send", "orders", "overdue", "--in", "1ms", "--target", f"{server.url}/other")
            await until(lambda: len(server.calls) == 1)
            assert server.calls[0].path == "/other"
        with instance.running():
            assert topic(instance, server) == secret
            assert said(instance, "delay", "show", "m-0")["state"] == "cancelled"
            assert said(instance, "delay", "advance", "m-1", "--to", "now")["outcome"] == "done"
            await until(lambda: "m-1" in server.ids())
            assert said(instance, "delay", "show", "m-2")["state"] == "scheduled"
            assert said(instance, "delay", "scrub")["fault_count"] == 0
            damage(instance, b"m-2")
            found = said(instance, "delay", "scrub", code=1)
            assert "damaged body" in found["faults"][0]
            assert instance.metrics("center")["messages_scrub_faults"] == found["fault_count"]


async def test_a_target_that_fails_is_called_again_and_then_is_a_dead_letter(with_messages: Make) -> None:
    def bad(handler: Handler) -> None:
        handler.say(500, b"no such order")

    instance = with_messages()
    with hooks(bad) as server, instance.running():
        topic(instance, server, "--retries", "100ms,200ms", "--jitter", "0")
        said(instance, "delay", "send", "orders", "x", "--id", "order-7")
        await until(lambda: said(instance, "delay", "show", "order-7")["state"] == "dead")
        calls = server.of("order-7")
        assert len(calls) == 3
        assert calls[1].at - calls[0].at >= 100
        assert calls[2].at - calls[1].at >= 200
        (letter,) = said(instance, "delay", "dead", "ls", "orders")
        assert (letter["id"], letter["last"], letter["status"], letter["answer"]) == (
            "order-7",
            "refused",
            500,
            "no such order",
        )
        assert said(instance, "delay", "dead", "show", "order-7")["attempts"] == 3
        server.answer = lambda handler: handler.say(200)
        assert said(instance, "delay", "dead", "replay", "order-7")[0]["outcome"] == "done"
        await until(lambda: said(instance, "delay", "show", "order-7")["state"] == "done")
        stats = said(instance, "topic", "stats", "orders")
        assert sum(minute["retries"] for minute in stats["minutes"]) == 2
        assert sum(minute["dead"] for minute in stats["minutes"]) == 1
        assert sum(minute["fired"] for minute in stats["minutes"]) == 1
        assert said(instance, "delay", "ls", "orders", "--state", "done")["matching"] == 1


async def test_a_message_to_a_room_is_published_there(with_messages: Make) -> None:
    instance = with_messages()
    with instance.running():
        said(instance, "topic", "create", "news", "--callback", "room:sports:final")
        said(instance, "delay", "send", "news", "goal", "--in", "300ms")
        done = instance.ran("sub", "sports:final", "--history", "1", "--count", "1")
        assert b"goal" in done.stdout


async def test_a_callback_to_a_private_address_is_refused_unless_allowed(with_messages: Make) -> None:
    instance = with_messages(callbacks={"allowed": ""})
    with hooks() as server, instance.running():
        topic(instance, server)
        said(instance, "delay", "send", "orders", "x", "--id", "order-7")
        await until(lambda: said(instance, "delay", "show", "order-7")["state"] == "dead")
        assert said(instance, "delay", "dead", "show", "order-7")["answer"] == "forbidden_address"
        assert server.calls == []
        # A topic that allows it, beside the one that does not.
        topic(instance, server, "--allow", "127.0.0.0/8", name="inside")
        said(instance, "delay", "send", "inside", "x", "--id", "inside-7")
        await until(lambda: server.ids() == ["inside-7"])
        said(instance, "delay", "send", "orders", "x", "--id", "order-8")
        await until(lambda: said(instance, "delay", "show", "order-8", "--topic", "orders")["state"] == "dead")
        assert server.ids() == ["inside-7"], "a connection that one topic may use is not another's"
