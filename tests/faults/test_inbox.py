"""Inboxes by the real command and real processes: commands, targets of messages, hints to devices, mails, and kills."""

import asyncio
import itertools
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from muster.errors import MusterError
from muster.inbox import AsyncInbox, Entry, entry
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
    listed = shared.ran("inbox", "ls", "21", "--json").stdout.splitlines()
    assert [json.loads(line)["id"] for line in listed] == ["b1", "2", "1"]
    mistakes = (
        ("ls", "21", "--after", "x"),
        ("notify", "21", "x", "--kind", "Bad Kind"),
        ("notify", "21", "{", "--data-json"),
        ("broadcast", "all", "x", "--until", "never"),
        ("settings", "21", "like", "--push", "perhaps"),
        ("unfollow", "all", "21"),
    )
    for words in mistakes:
        done = await asyncio.to_thread(shared.ran, "inbox", *words)
        assert done.returncode == 2, words
        assert len(done.stderr.splitlines()) == 1


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
    wrong = await asyncio.to_thread(shared.ran, "delay", "send", "notices", "x", "--target", "inbox:ann")
    assert wrong.returncode == 2
    assert b"a number from 0" in wrong.stderr


async def test_a_device_is_told_of_an_entry_unless_its_user_wants_no_push(shared: Instance) -> None:
    async with device(shared, 31, "phone") as phone:
        await seen(shared, 31, "phone")
        await ask(shared, "inbox", "settings", "31", "quiet", "--push", "no")
        await ask(shared, "inbox", "notify", "31", "x", "--kind", "quiet")
        await ask(shared, "inbox", "notify", "31", "hello", "--kind", "like")
        (hint,) = await got(phone, 1)
    assert json.loads(hint) == {"inbox": {"seq": 2, "unread": 2, "kind": "like", "begin": '"hello"'}}
    assert sum((await ask(shared, "inbox", "unread", "31"))["unread"].values()) == 2


async def test_a_mail_goes_to_its_topic_once_and_not_for_what_was_read(shared: Instance) -> None:
    await ask(shared, "inbox", "settings", "41", "order", "--mail", "at_once")
    await ask(shared, "inbox", "notify", "41", "paid", "--kind", "order")
    await ask(shared, "inbox", "notify", "41", "x", "--kind", "like")

    def mailed() -> bool:
        return shared.ran("delay", "show", "mail:41:1", "--topic", "mail").returncode == 0

    await until_asked(mailed, PATIENT_S)
    assert (await ask(shared, "topic", "show", "mail"))["pending"] == 1


async def kill_and_recount(make: Make, kills: int, count: int) -> None:
    """Programs put entries in while the node is killed, then each is there once, and the counts are those of a recount."""
    instance = make(systems={"enabled": "inbox,http"}, up=APART)
    dice = random.Random(7)
    with instance.running():
        key = said(instance, "key", "create", "p", "--scope", "notify:*", "--scope", "inbox:*")["key"]
        url = said(instance, "status")["systems"]["http"]["url"]
        struck = asyncio.Event()
        numbers = itertools.count()
        written: list[int] = []

        async def produce(program: AsyncInbox) -> None:
            while not struck.is_set() or len(written) < count:
                some = [next(numbers) for _ in range(10)]
                for number in some:
                    new = {"group": "g"} if number % 5 == 0 else {}
                    while True:
                        try:
                            await program.notify([1, 2], "like" if new else "reply", number, id=f"e{number}", **new)
                            break
                        except MusterError:  # it may be there: the id makes it one
                            await asyncio.sleep(0.02)
                written.extend(some)

        async def strike() -> None:
            for _ in range(kills):
                await asyncio.sleep(dice.uniform(0.0, 0.3))
                await instance.renew("inbox")
            struck.set()

        async with AsyncInbox(url, key=key, connections=8) as program:
            await asyncio.gather(strike(), *(produce(program) for _ in range(8)))
            for user in (1, 2):
                found = await whole(program, user)
                alone = [each.data for each in found if each.kind == "reply"]
                assert sorted(alone) == [each for each in sorted(written) if each % 5], "lost or twice"
                (group,) = [each for each in found if each.kind == "like"]
                assert group.count == sum(not each % 5 for each in written), "a group counts each entry once"
                assert (await program.counts(user)).unread == {"reply": min(len(alone), 99), "like": 1}


async def whole(program: AsyncInbox, user: int) -> list[Entry]:
    """All entries of a user, in order; their numbers are different."""
    found: list[Entry] = []
    after = "0"
    while True:
        page = await program.page(user, after=after, limit=200)
        found += page.entries
        after = page.after
        if page.next is None:
            assert len({each.id for each in found}) == len(found)
            return found


async def test_no_entry_is_lost_or_doubled_by_kills(make: Make) -> None:
    await kill_and_recount(make, 3, 200)


@pytest.mark.soak
async def test_no_entry_is_lost_or_doubled_by_a_hundred_kills(make: Make) -> None:
    await kill_and_recount(make, 100, 5_000)
