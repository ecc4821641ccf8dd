"""The archive by the real command and real processes: commands, kill -9 under load, and what is missing is said."""

import asyncio
import itertools
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

import muster
from tests.faults.conftest import Make
from tests.faults.instance import APART, Instance
from tests.rooms.archive.test_docs import example
from tests.waiting import PATIENT_S, until_asked

ROOM = "kept:room"
ROUNDS = 4


def history(instance: Instance, *words: str) -> list[dict[str, Any]]:
    """The lines of `muster rooms history --json`."""
    done = instance.ran("rooms", "history", *words, "--json")
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.splitlines()]


def stored(instance: Instance) -> list[dict[str, Any]]:
    """The messages and gaps of the archive alone, oldest first."""
    lines = history(instance, ROOM, "--limit", "1000000", "--since", "2026-01-01T00:00:00+00:00")
    return [line for line in lines if "gap" in line or "time" in line]


async def keeps(instance: Instance) -> None:
    """The archive serves: `muster up` is ready before it is."""
    await until_asked(lambda: any(each.role == "archive" and each.ready for each in instance.record().processes))


class Load:
    """Publishes numbered messages until `stop`, and keeps the positions that were acknowledged."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.acknowledged: dict[str, int] = {}
        self.stop = asyncio.Event()

    async def run(self) -> None:
        async with muster.connect(self.instance.folder.path, gateways=[], timeout=PATIENT_S) as client:
            for number in itertools.count():
                if self.stop.is_set():
                    return
                try:
                    position = await client.publish(ROOM, b"%d" % number)
                except muster.TimedOut:
                    continue
                self.acknowledged[f"{position.stream}:{position.offset}"] = number
                await asyncio.sleep(0.002)


def judged(items: list[dict[str, Any]], acknowledged: dict[str, int]) -> int:
    """Nothing comes twice, nothing is missing in silence, and each message is the one of its position. Returns the number of
    messages."""
    seen = [item["position"] for item in items if "position" in item]
    assert len(seen) == len(set(seen))
    for item in items:
        if "position" in item and item["position"] in acknowledged:
            assert int(item["data"]) == acknowledged[item["position"]]
    covered = set(seen)
    for item in items:
        if gap := item.get("gap"):
            last = gap["first"] + 1_000_000 if gap["last"] is None else gap["last"]
            covered |= {
                position
                for position in acknowledged
                if position.rpartition(":")[0] == gap["stream"]
                and gap["first"] <= int(position.rpartition(":")[2]) <= last
            }
    missing = acknowledged.keys() - covered
    assert not missing, sorted(missing)[:5]
    return len(seen)


@pytest.mark.parametrize("victim", ["archive", "gateway", "broker"])
async def test_a_node_that_is_killed_costs_no_message_in_silence(make: Make, victim: str) -> None:
    instance = make(up=APART, archive={"rooms": f"{ROOM},other:*"})
    with instance.running():
        await keeps(instance)
        await until_asked(lambda: instance.metrics("archive")["archive_rooms"] == 1)
        load = Load(instance)
        running = asyncio.create_task(load.run())
        for _ in range(ROUNDS):
            count = len(load.acknowledged)
            await until_asked(lambda count=count: len(load.acknowledged) > count + 50)  # type: ignore[misc]
            await instance.renew(victim)
        count = len(load.acknowledged)
        await until_asked(lambda: len(load.acknowledged) > count + 50)
        load.stop.set()
        await running
        last = list(load.acknowledged)[-1]
        await until_asked(lambda: any(item.get("position") == last for item in stored(instance)))
        items = stored(instance)
        found = judged(items, load.acknowledged)
        if victim == "archive":  # its broker had what came meanwhile
            assert found >= len(load.acknowledged)
            assert not any("gap" in item for item in items)


async def test_the_commands_of_the_page_run_as_printed(make: Make) -> None:
    instance = make(archive={"rooms": "sports:*,chat:lobby"})
    with instance.running():
        await keeps(instance)
        lines = [line for line in example("commands").splitlines() if line]
        for line in lines[:1]:
            assert instance.ran(*words(line)).returncode == 0
        await until_asked(lambda: instance.metrics("archive")["archive_messages"] == 5)
        said = [instance.ran(*words(line)) for line in lines[1:]]
        assert [done.returncode for done in said] == [0, 0, 0], said
        assert said[0].stdout == b"hello 3\nhello 4\nhello 5\n"
        assert [json.loads(line)["data"] for line in said[1].stdout.splitlines()] == ["hello 5", "hello 4", "hello 3"]
        assert said[2].stdout == b"".join(b"hello %d\n" % at for at in range(1, 6))
        for wrong in ("--since yesterday", "--since 1.2.3:x", "--limit 0", "--since 2026-01-01T00:00:00"):
            done = instance.ran("rooms", "history", "chat:lobby", *wrong.split())
            assert (done.returncode, len(done.stderr.splitlines()) <= 8) == (2, True), wrong
        done = instance.ran("rooms", "history", "unknown", "--since", "2026-01-01T00:00:00+00:00")
        assert done.returncode == 2
        assert b"archive.rooms" in done.stderr


async def test_the_commands_of_keys_run_as_printed(make: Make) -> None:
    instance = make(archive={"rooms": "prices"})
    with instance.running():
        await keeps(instance)
        lines = [line for line in example("latest in a shell").splitlines() if line]
        for line in lines[:-1]:
            assert instance.ran(*words(line)).returncode == 0
        await until_asked(lambda: instance.metrics("archive")["archive_messages"] == 3)
        done = instance.ran(*words(lines[-1]))
        assert done.returncode == 0, done.stderr
        found = [json.loads(line) for line in done.stdout.splitlines()]
        assert [(each["headers"]["key"], each["data"]) for each in found] == [("GBP", "0.85"), ("EUR", "1.09")]
        done = instance.ran("rooms", "latest", "elsewhere")
        assert done.returncode == 69
        assert b"archive.rooms" in done.stderr


@pytest.mark.parametrize("victim", ["archive", "gateway", "broker"])
async def test_a_node_that_is_killed_makes_no_key_old_in_silence(make: Make, victim: str) -> None:
    instance = make(up=APART, archive={"rooms": ROOM})
    with instance.running():
        await keeps(instance)
        await until_asked(lambda: instance.metrics("archive")["archive_rooms"] == 1)
        newest: dict[str, int] = {}
        async with muster.connect(instance.folder.path, gateways=[], timeout=PATIENT_S) as client:
            for number in range(120):
                if number % 40 == 20:
                    await instance.renew(victim)
                key = f"k{number % 10}"
                while True:
                    try:
                        await client.publish(ROOM, b"%d" % number, headers={"key": key})
                    except muster.TimedOut:
                        continue
                    break
                newest[key] = number

        def latest() -> tuple[dict[str, int], bool]:
            done = instance.ran("rooms", "latest", ROOM, "--json")
            found = [json.loads(line) for line in done.stdout.splitlines()]
            return {each["headers"]["key"]: int(each["data"]) for each in found}, b"archive.keys_max" not in done.stderr

        def right() -> bool:
            found, whole = latest()
            return found == newest or not whole

        await until_asked(right)
        found, _ = latest()
        assert found.items() <= {(key, number) for key in newest for number in range(120) if key == f"k{number % 10}"}


async def test_a_room_without_an_archive_has_the_history_of_memory(make: Make) -> None:
    instance = make()
    with instance.running():
        assert "archive" not in instance.names()
        assert instance.ran("pub", "news", "a{n}", "--count", "3").returncode == 0
        done = instance.ran("rooms", "history", "news", "--limit", "2")
        assert (done.returncode, done.stdout) == (0, b"a2\na3\n")


async def test_a_pattern_finds_rooms_with_members_and_the_file_is_checked(make: Make) -> None:
    instance = make(archive={"rooms": "sports:*", "look_ms": 100})
    with instance.running():
        await keeps(instance)
        async with muster.connect(instance.folder.path) as client, client.join("sports:final"):
            for number in range(20):
                await client.publish("sports:final", b"%d" % number)
            await until_asked(lambda: instance.metrics("archive")["archive_messages"] == 20)
    assert (instance.folder.path / "archive.db").exists()
    done = instance.ran("check")
    assert done.returncode == 0, done.stderr
    assert b"archive" in done.stdout


def words(line: str) -> list[str]:
    """The words of a line of the page, without `muster` and its comment."""
    return shlex.split(line, comments=True)[1:]


def test_wrong_keys_are_named(tmp_path: Path) -> None:
    for number, rooms in enumerate(("a*b", "a,,b", "x" * 300)):
        instance = Instance(tmp_path / str(number), f"[archive]\nrooms = {json.dumps(rooms)}\n")
        done = instance.ran("config", "check")
        assert done.returncode == 78
        assert b"archive.rooms" in done.stderr
