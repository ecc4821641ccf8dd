"""Topics of real processes: what one target does to the others, settings that change, letters that stay dead, rights."""

import base64
import functools
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.faults.hooks import Handler, Hooks, hooks
from tests.faults.instance import Instance, configuration
from tests.faults.test_http import client, make_key, ready
from tests.waiting import PATIENT_S, until

ANSWERS: Final[dict[str, tuple[int, dict[str, str]]]] = {
    "/bad": (500, {}),
    "/dead": (500, {}),
    "/busy": (429, {"retry_after": "86400"}),
}


def by_path(handler: Handler) -> None:
    status, headers = ANSWERS.get(handler.path, (200, {}))
    handler.say(status, b"", **headers)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Instance, Hooks]]:
    """An instance, and one server that answers by path."""
    path: Path = tmp_path_factory.mktemp("topics")
    sections: dict[str, Any] = {"systems": {"enabled": "messages,http"}, "probes": {"every_ms": 0}}
    instance = Instance(path, configuration(database={"url": "none"}, **sections))
    with hooks(by_path) as server, instance.running():
        yield instance, server


def said(instance: Instance, *words: str, code: int = 0) -> Any:
    done = instance.ran(*words, "--json")
    assert done.returncode == code, (words, done.returncode, done.stderr.decode())
    return json.loads(done.stdout)


def make(instance: Instance, name: str, callback: str, *more: str) -> str:
    secret: str = said(instance, "topic", "create", name, "--callback", callback, *more)["secrets"][0]
    return secret


def _more(server: Hooks, calls: int) -> bool:
    return len(server.calls) > calls


def signed_by(secret: str, call: Any) -> bool:
    key = base64.b64decode(secret.removeprefix("whsec_"))
    wanted = hmac.digest(key, f"{call.id}.{call.timestamp}.".encode() + call.body, hashlib.sha256)
    return f"v1,{base64.b64encode(wanted).decode()}" in call.signature.split(" ")


async def test_a_url_that_fails_holds_up_no_other_topic_at_its_server_and_is_shown(
    served: tuple[Instance, Hooks],
) -> None:
    instance, server = served
    for name in ("good", "bad", "busy"):
        make(instance, name, f"{server.url}/{name}")
    async with client(instance, **{"x-api-key": make_key(instance)}) as asking:
        await ready(asking)
        await asking.post("/api/v1/topics/busy/messages", json={"data": 1, "id": "busy"})
        batch = [{"data": number, "id": f"bad-{number}"} for number in range(400)]  # more than places
        assert (await asking.post("/api/v1/topics/bad/messages", json=batch)).status_code == 200

        def held(name: str) -> Any:
            return said(instance, "topic", "show", name)["held"]

        await until(lambda: [each["why"] for each in held("bad")] == ["failing"], 60)
        await until(lambda: [each["why"] for each in held("busy")] == ["paused"], 60)
        (pause,) = held("busy")
        assert pause["until"] - 1_000 * time.time() <= 600_000, "not the day that it asked for"
        assert held("good") == []
        # At the same server, while the others are held.
        assert (await asking.post("/api/v1/topics/good/messages", json={"data": 1, "id": "good"})).status_code == 200
        await until(lambda: server.of("good"), 60)
        assert held("busy") == [pause]
        await until(lambda: said(instance, "topic", "stats", "bad")["overdue"] >= 100, 60)
        shown = (await asking.get("/api/v1/topics/bad")).json()
        assert shown["overdue_ms"] > 1_000
        assert "whsec_" not in json.dumps(shown)
        doctor = instance.ran("doctor").stdout.decode()
        assert "nothing goes to" in doctor, doctor


async def test_a_topic_is_changed_while_its_messages_wait_and_both_secrets_sign(served: tuple[Instance, Hooks]) -> None:
    instance, server = served
    first = make(instance, "orders", f"{server.url}/bad")
    said(instance, "delay", "send", "orders", "x", "--id", "waits", "--in", "1h")
    changed = said(instance, "topic", "change", "orders", "--callback", f"{server.url}/hook", "--rotate")
    second = changed["secrets"][0]
    said(instance, "delay", "advance", "waits", "--topic", "orders", "--to", "now")
    # A worker that has not read the change yet calls the former target, which fails: the retry goes to the new one.
    await until(lambda: any(call.path == "/hook" for call in server.of("waits")), PATIENT_S)
    (call,) = (call for call in server.of("waits") if call.path == "/hook")
    assert [signed_by(secret, call) for secret in (first, second)] == [True, True]
    said(instance, "topic", "change", "orders", "--overlap", "0s")
    said(instance, "delay", "send", "orders", "x", "--id", "later")
    await until(lambda: server.of("later"), 60)
    # The worker looks at the topics four times a second, so the first ones may still have both.
    for number in range(100):
        if not signed_by(first, server.calls[-1]):
            break
        calls = len(server.calls)
        said(instance, "delay", "send", "orders", "x", "--id", f"later-{number}")
        await until(functools.partial(_more, server, calls), 60)
    assert [signed_by(secret, server.calls[-1]) for secret in (first, second)] == [False, True]
    assert instance.ran("topic", "change", "orders").returncode == 2
    assert instance.ran("topic", "change", "nosuch", "--workers", "1").returncode == 1


async def test_letters_that_die_again_are_replayed_once_and_keep_their_topic(served: tuple[Instance, Hooks]) -> None:
    instance, server = served
    make(instance, "letters", f"{server.url}/dead", "--retries", "none")
    async with client(instance, **{"x-api-key": make_key(instance, "send:letters", "show:letters")}) as asking:
        await ready(asking)
        path = "/api/v1/topics/letters"
        batch = [{"data": number, "id": f"letter-{number}"} for number in range(4)]
        await asking.post(f"{path}/messages", json=batch)

        def dead() -> list[str]:
            return [each["id"] for each in said(instance, "delay", "dead", "ls", "letters")]

        await until(lambda: len(dead()) == 4, 60)
        ids: list[str] = []
        after: str | None = ""
        while after is not None:
            page = (await asking.get(f"{path}/dead", params={"limit": 3, "after": after})).json()
            ids += [each["message"]["id"] for each in page["letters"]]
            after = page["next"]
        assert sorted(ids) == sorted(dead())
        listed = (await asking.get(f"{path}/messages", params={"states": "dead", "limit": 1})).json()
        onward = {"states": "dead", "limit": 3, "after": listed["next"]}
        others = (await asking.get(f"{path}/messages", params=onward)).json()
        assert {each["id"] for each in (*listed["messages"], *others["messages"])} == set(ids)
        assert (await asking.get(f"{path}/messages", params={"after": "nonsense"})).status_code == 400
    replayed = said(instance, "delay", "dead", "replay", "--all", "--topic", "letters")
    assert [each["outcome"] for each in replayed] == ["done"] * 4
    await until(lambda: len(dead()) == 4, 60)
    assert all(len(server.of(id)) == 2 for id in ids)
    refused = instance.ran("topic", "rm", "letters")
    assert refused.returncode == 1
    assert b"4 dead letters" in refused.stderr
    async with client(
        instance, **{"x-api-key": make_key(instance, "change:letters", "show:letters", "send:letters")}
    ) as asking:
        await ready(asking)
        path = "/api/v1/topics/letters"
        one = await asking.post(f"{path}/dead/letter-0/drop")
        assert (one.json()["outcome"], one.json()["state"]) == ("done", "cancelled")
        assert (await asking.post(f"{path}/dead/letter-0/drop")).json()["outcome"] == "already fired"
        assert (await asking.get(f"{path}/messages/letter-0")).json()["state"] == "cancelled"
        assert said(instance, "delay", "dead", "drop", "letter-1", "--topic", "letters")[0]["outcome"] == "done"
        again = (await asking.post(f"{path}/dead/replay")).json()
        assert (again["changed"], again["next"]) == (2, None)
        await until(lambda: sorted(dead()) == ["letter-2", "letter-3"], 60)
        rest = (await asking.post(f"{path}/dead/drop")).json()
        assert (rest["changed"], rest["next"]) == (2, None)
        assert (dead(), said(instance, "topic", "show", "letters")["dead"]) == ([], 0)
        assert said(instance, "delay", "dead", "drop", "--all", "--topic", "letters") == []
    assert instance.ran("topic", "rm", "letters").returncode == 0


async def test_a_target_needs_the_scope_of_the_direct_way(served: tuple[Instance, Hooks]) -> None:
    instance, server = served
    make(instance, "plain", f"{server.url}/hook")
    path = "/api/v1/topics/plain"
    scopes = ["send:plain", "manage:plain", "publish:mine", "target:https://shop.example/*"]
    async with client(instance, **{"x-api-key": make_key(instance, *scopes)}) as asking:
        await ready(asking)
        later = {"data": 1, "in_ms": 3_600_000}
        for target in ("room:other", "user:7", "kafka:orders", "https://evil.example/", f"{server.url}/hook"):
            one = await asking.post(f"{path}/messages", json={**later, "target": target})
            assert (one.status_code, one.json()["code"]) == (403, "not_allowed"), target
            raw = await asking.post(f"{path}/messages", params={"target": target, "in_ms": 3_600_000}, content=b"x")
            assert raw.status_code == 403, target
            batch = await asking.post(f"{path}/messages", json=[later, {**later, "target": target}])
            assert batch.status_code == 403, target
            changed = await asking.patch(path, json={"callback": target})
            assert changed.status_code == 403, target
        assert (await asking.post(f"{path}/messages", json={**later, "for_topic": "good"})).status_code == 403
        for target in ("room:mine", "https://shop.example/hook"):
            one = await asking.post(f"{path}/messages", json={**later, "target": target})
            assert one.status_code == 200, one.text
        changed = await asking.patch(path, json={"callback": "room:mine", "secret": "", "retries_ms": [1_000]})
        assert changed.status_code == 200, changed.text
        assert changed.json()["secret"].startswith("whsec_")
        assert (changed.json()["callback"], changed.json()["secrets"]) == ("room:mine", 2)
        assert (await asking.patch(path, json={"surprise": 1})).status_code == 400
        assert (await asking.patch("/api/v1/topics/good", json={"workers": 1})).status_code == 403
    async with client(instance, **{"x-api-key": make_key(instance, "send:plain")}) as asking:
        # The topic's own target is the operator's word.
        assert (await asking.post(f"{path}/messages", json=later)).status_code == 200


async def test_several_topics_are_created_at_once_until_one_is_refused(served: tuple[Instance, Hooks]) -> None:
    instance, _ = served
    made = said(instance, "topic", "create", "pull-a", "pull-b", "--callback", "pull:", "--retries", "1s,10s")
    assert [(topic["name"], topic["callback"]) for topic in made] == [("pull-a", "pull:"), ("pull-b", "pull:")]
    # The second one is there already, with other settings.
    done = instance.ran("topic", "create", "pull-c", "pull-b", "pull-d", "--callback", "pull:", "--retries", "5s")
    assert done.returncode != 0
    assert b"created topic pull-c" in done.stderr
    assert b"pull-b" in done.stderr.splitlines()[-1]
    names = {topic["name"] for topic in said(instance, "topic", "ls")}
    assert "pull-c" in names
    assert "pull-d" not in names
