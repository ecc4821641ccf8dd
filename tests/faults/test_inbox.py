"""Inboxes by the real command and real processes: commands, targets of messages, hints to devices, mails, and kills."""

import asyncio
import json
import os
import random
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from muster.errors import MusterError
from muster.inbox import AsyncInbox, entry
from muster.messages import AsyncMessages
from tests.faults.conftest import Make
from tests.faults.instance import APART, Instance
from tests.faults.test_messages import said
from tests.faults.test_unicast import device, got, seen
from tests.waiting import PATIENT_S, until_asked

TEXT = """
[probes]
every_ms = 0
[presence]
grace_ms = 200
[inbox]
mail_topic = "mail"
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """An instance with all that inboxes use."""
    instance = Instance(tmp_path_factory.mktemp("inbox"), TEXT)
    with instance.running("--with", "inbox,presence,messages"):
        said(instance, "topic", "create", "notices", "--callback", "inbox:7", "--retries", "none")
        said(instance, "topic", "create", "mail", "--callback", "pull:")
        yield instance


async def ask(instance: Instance, *words: str, code: int = 0) -> Any:
    """As `said`, beside sessions of this process."""
    return await asyncio.to_thread(said, instance, *words, code=code)


async def test_the_commands_put_in_list_count_and_mark(shared: Instance) -> None:
    assert await ask(shared, "inbox", "notify", "21", "hello", "--id", "x") == {"seq": 1, "outcome": "new"}
    assert await ask(shared, "inbox", "notify", "21", "hello", "--id", "x") == {"seq": 1, "outcome": "same"}
    await ask(shared, "inbox", "notify", "21", "other", "--id", "x", code=1)
    await ask(shared, "inbox", "notify", "21", '{"song": 3}', "--kind", "like", "--data-json", "--group", "song:3")
    assert await ask(shared, "inbox", "follow", "corn", "21", "22") == {"changed": 2}
    said_ = await ask(shared, "inbox", "broadcast", "corn", "rain", "--kind", "news", "--until", "7d")
    assert said_["outcome"] == "new"
    assert (await ask(shared, "inbox", "unread", "21"))["unread"] == {"message": 1, "like": 1, "news": 1}
    assert (await ask(shared, "inbox", "read", "21", "--kind", "news"))["unread"] == {"message": 1, "like": 1}
    assert await ask(shared, "inbox", "unfollow", "corn", "22") == {"changed": 1}
    choice = await ask(shared, "inbox", "settings", "21", "like", "--inbox", "no", "--mail", "daily")
    assert choice == {"like": {"inbox": False, "mail": "daily"}}
    await ask(shared, "inbox", "notify", "21", "x", "--kind", "like", code=1)
    totals = await ask(shared, "inbox", "stats")
    assert totals["entries"] >= 2
    await ask(shared, "inbox", "ls", "21", "--after", "x", code=2)
    await ask(shared, "inbox", "notify", "21", "x", "--kind", "Bad Kind", code=2)
    await ask(shared, "inbox", "broadcast", "all", "x", "--until", "never", code=2)
    listed = await asyncio.to_thread(shared.said, "inbox", "ls", "21", "--json")
    assert [json.loads(line)["id"] for line in listed.splitlines()][-1] == "1"


async def test_a_delayed_message_to_an_inbox_is_an_entry_once(shared: Instance) -> None:
    body = json.dumps(entry("order", {"order": 7}))
    words = ("delay", "send", "notices", body, "--type", "application/json", "--in", "100ms", "--id", "o7")
    for _ in range(2):
        await ask(shared, *words)
    await until_asked(lambda: said(shared, "delay", "show", "o7", "--topic", "notices")["state"] == "done", PATIENT_S)
    await ask(shared, "delay", "send", "notices", "plain", "--target", "inbox:23", "--id", "p")
    await until_asked(lambda: said(shared, "inbox", "unread", "23")["unread"] == {"message": 1}, PATIENT_S)
    assert (await ask(shared, "inbox", "unread", "7"))["unread"] == {"order": 1}
    bad = ("delay", "send", "notices", "{}", "--type", "application/json", "--id", "bad")
    await ask(shared, *bad)
    await until_asked(lambda: said(shared, "delay", "show", "bad", "--topic", "notices")["state"] == "dead", PATIENT_S)
    await ask(shared, "delay", "send", "notices", "x", "--target", "inbox:ann", code=2)


async def test_a_device_is_told_of_an_entry_unless_its_user_wants_no_push(shared: Instance) -> None:
    async with device(shared, 31, "phone") as phone:
        await seen(shared, 31, "phone")
        await ask(shared, "inbox", "settings", "31", "quiet", "--push", "no")
        await ask(shared, "inbox", "notify", "31", "x", "--kind", "quiet")
        await ask(shared, "inbox", "notify", "31", "hello", "--kind", "like")
        (hint,) = await got(phone, 1)
    assert json.loads(hint) == {"inbox": {"seq": 2, "kind": "like", "begin": '"hello"'}}


async def test_a_mail_goes_to_its_topic_once_and_not_for_what_was_read(shared: Instance) -> None:
    await ask(shared, "inbox", "settings", "41", "order", "--mail", "at_once")
    await ask(shared, "inbox", "notify", "41", "paid", "--kind", "order")
    await ask(shared, "inbox", "notify", "41", "x", "--kind", "like")

    def mailed() -> bool:
        return said(shared, "delay", "ls", "--topic", "mail")["matching"] == 1

    await until_asked(mailed, PATIENT_S)
    shown = await ask(shared, "delay", "show", "mail:41:1", "--topic", "mail")
    assert shown["type"] == "application/json"


async def kill_and_recount(make: Make, kills: int, count: int) -> None:
    """Programs put entries in while the node is killed; each answered one is there once, and no other but once."""
    instance = make("[probes]\nevery_ms = 0\n[database]\nurl = 'none'\n")
    dice = random.Random(7)
    with instance.running("--with", "inbox,http", processes="apart"):
        key = said(instance, "key", "create", "p", "--scope", "notify:*", "--scope", "inbox:*")["secret"]
        url = said(instance, "status")["systems"]["http"]["url"]
        over = asyncio.Event()
        answered: list[int] = []

        async def produce(program: AsyncInbox, first: int) -> None:
            for number in range(first, count, 8):
                while True:
                    try:
                        await program.notify([1, 2], "like", number, id=f"e{number}")
                        break
                    except MusterError:
                        await asyncio.sleep(0.05)
                answered.append(number)
                await asyncio.sleep(0)

        async def strike() -> None:
            for _ in range(kills):
                await asyncio.sleep(dice.uniform(0.05, 0.5))
                process = await asyncio.to_thread(instance.node, "inbox")
                os.kill(process.pid, signal.SIGKILL)
                await asyncio.to_thread(instance.until_back, "inbox", process.pid)
            over.set()

        async with AsyncInbox(url, key=key, connections=8) as program:
            await asyncio.gather(strike(), *(produce(program, first) for first in range(8)))
            await over.wait()
            for user in (1, 2):
                found: list[int] = []
                after = "0"
                while True:
                    page = await program.page(user, after=after, limit=200)
                    found += [each.data for each in page.entries]
                    after = page.after
                    if page.next is None:
                        break
                assert sorted(found) == list(range(count)), "lost or twice"
                assert (await program.counts(user)).unread == {"like": min(count, 99)}
