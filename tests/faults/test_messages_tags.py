"""Tags of messages by the real command and real processes: the words of the page, over HTTP, and while nodes die."""

import asyncio
import json
import time
from pathlib import Path

from muster.messages import AsyncMessages, Messages, message
from tests.faults.conftest import Make
from tests.faults.hooks import hooks
from tests.faults.test_http import client, make_key, ready
from tests.faults.test_messages import said, with_messages
from tests.waiting import until_asked

__all__ = ["with_messages"]
COUNT = 3_000


async def test_the_words_of_tags_list_count_move_and_cancel(with_messages: Make) -> None:
    instance = with_messages()
    with instance.running(), hooks() as server:
        said(instance, "topic", "create", "orders", "--callback", f"{server.url}/")
        for number in range(6):
            tags = ("--tag", "summer", "--tag", f"shop:{number % 2}")
            said(instance, "delay", "send", "orders", "x", "--in", "1h", "--id", f"o-{number}", *tags)
        said(instance, "delay", "send", "orders", "x", "--in", "1h", "--id", "plain")
        shown = said(instance, "delay", "show", "o-1", "--topic", "orders")
        assert shown["tags"] == ["summer", "shop:1"]
        listed = said(instance, "delay", "ls", "orders", "--tag", "shop:1")
        assert {each["id"] for each in listed["messages"]} == {"o-1", "o-3", "o-5"}
        assert said(instance, "delay", "tag", "count", "orders", "summer") == {"looked": 7, "matching": 6}
        done = instance.ran("delay", "tag", "count", "orders", "shop:0")
        assert (done.returncode, done.stdout) == (0, b"3\n")
        counts = {"looked": 7, "matching": 3, "done": 3, "late": 0}
        assert said(instance, "delay", "tag", "cancel", "orders", "shop:0") == counts
        moved = said(instance, "delay", "tag", "move", "orders", "summer", "--to", "now")
        assert (moved["matching"], moved["done"]) == (3, 3)
        await until_asked(lambda: set(server.ids()) == {"o-1", "o-3", "o-5"})
        assert said(instance, "topic", "show", "orders")["pending"] == 1
        mistakes = (
            ("count", "orders", "a b"),
            ("move", "orders", "summer", "--to", "soon"),
            ("move", "orders", "summer"),
        )
        for words in mistakes:
            assert instance.ran("delay", "tag", *words).returncode == 2, words
        assert instance.ran("delay", "send", "orders", "x", "--tag", "").returncode == 2
        assert instance.ran("delay", "send", "orders", "x", *["--tag", "a"] * 9).returncode == 2
        assert instance.ran("delay", "tag", "count", "nothing", "summer").returncode == 1
        assert b"messages_by_tag_total" in instance.get("messages-admin", "/metrics").encode()


async def test_a_job_over_http_goes_on_where_it_was_broken_off_by_a_kill(with_messages: Make, tmp_path: Path) -> None:
    instance = with_messages(systems={"enabled": "messages,http"})
    with instance.running():
        said(instance, "topic", "create", "orders", "--callback", "http://127.0.0.1:9/")
        key = make_key(instance)
        async with client(instance, **{"x-api-key": key}) as asking:
            await ready(asking)
            url = str(asking.base_url).rstrip("/")
            async with AsyncMessages(url, key=key) as messages:
                for begin in range(0, COUNT, 1_000):
                    some = [
                        message(n, id=f"m-{n}", in_s=3_600, tags=["odd"] * (n % 2) + ["all"])
                        for n in range(begin, begin + 1_000)
                    ]
                    assert len(await messages.send_many("orders", some)) == 1_000
                counts = [each async for each in messages.count_tagged("orders", "odd")]
                assert (counts[-1].looked, counts[-1].matching) == (COUNT, COUNT // 2)
                path = "/api/v1/topics/orders/tags/odd/cancel"
                first = (await asking.post(path)).json()
                assert (first["looked"], first["done"]) == (1_000, first["matching"])
                for role in ("center", "messages-admin"):
                    await instance.back(role, instance.kill(role))
                total = first["done"]

                async def rest() -> bool:
                    nonlocal first, total
                    answer = await asking.post(path, params={"until": first["until"], "after": first["next"]})
                    if answer.status_code != 200:
                        return False
                    first = answer.json()
                    total += first["done"]
                    return first["next"] is None

                while not await rest():  # noqa: ASYNC110 - the nodes start again
                    await asyncio.sleep(0.2)
                assert total == COUNT // 2
                counts = [each async for each in messages.count_tagged("orders", "all")]
                assert counts[-1].matching == COUNT // 2

            def threads() -> int:
                with Messages(url, key=key) as sync:
                    *_, last = sync.move_tagged("orders", "all", to=time.time() + 7_200)
                    return last.done

            wrong = await asking.post("/api/v1/topics/orders/tags/all/move", json={"to": 1})
            assert wrong.status_code == 400
            assert (await asking.get("/api/v1/topics/orders/tags/a%20b")).status_code == 400
            assert (await asking.post("/api/v1/topics/orders/tags/all/drop")).status_code == 400
            posted = await asking.post(
                "/api/v1/topics/orders/messages?tags=a,b&id=plain&in_ms=3600000",
                content=b"x",
                headers={"content-type": "text/plain"},
            )
            assert posted.status_code == 200, posted.text
            assert (await asking.get("/api/v1/topics/orders/messages/plain")).json()["tags"] == ["a", "b"]
            listed = (await asking.get("/api/v1/topics/orders/messages", params={"tag": "a"})).json()
            assert [each["id"] for each in listed["messages"]] == ["plain"]
            assert await asyncio.to_thread(threads) == COUNT // 2
        assert json.loads(instance.ran("delay", "ls", "orders", "--tag", "b", "--json").stdout)["matching"] == 1
