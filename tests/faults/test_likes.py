"""Likes beside a real instance: real Redis clients, the words of the command, kill -9 under load, a full disk."""

import asyncio
import contextlib
import json
import shutil
import signal
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

import muster
from tests.faults.conftest import Make
from tests.faults.instance import Instance, configuration
from tests.kafka import Kafka
from tests.likes.crowd import Crowd
from tests.likes.load import Load
from tests.likes.test_mirror import Server
from tests.redis_server import client_of
from tests.waiting import PATIENT_S, until_asked

SNOWFLAKE = 1_790_123_456_789_012_345


@pytest.fixture
def with_likes(make: Make) -> Make:
    """As `make`, with likes."""

    def made(**sections: dict[str, Any]) -> Instance:
        return make(**{"systems": {"enabled": "likes"}, "likes": {"segment_mib": 8}} | sections)

    return made


def address(instance: Instance) -> tuple[str, int]:
    """Where its node of likes listens."""
    bind = instance.process("likes").bind
    assert isinstance(bind, tuple)
    return bind


def client(instance: Instance, **options: Any) -> Redis:
    """A client that tries nothing twice."""
    host, port = address(instance)
    return client_of(port, host=host, **options)


def said(instance: Instance, *words: str) -> Any:
    """What a command says in JSON."""
    done = instance.ran(*words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def cli(instance: Instance, *words: str) -> list[str]:
    """What redis-cli says, line by line."""
    host, port = address(instance)
    command = ["redis-cli", "-h", host, "-p", str(port), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENT_S, check=True).stdout.split("\n")[
        :-1
    ]


@pytest.mark.skipif(not shutil.which("redis-cli"), reason="needs redis-cli; scripts/setup.sh --tests gets it")
def test_redis_cli_does_what_the_documentation_says(with_likes: Make) -> None:
    instance = with_likes()
    with instance.running():
        where = said(instance, "status")["systems"]["likes"]
        assert (where["host"], where["port"]) == address(instance)
        assert where["url"] == f"redis://{where['host']}:{where['port']}"
        assert cli(instance, "SETBIT", "share:1000", "2017", "1") == ["0"]
        assert cli(instance, "SETBIT", "share:1000", str(SNOWFLAKE), "1") == ["0"]
        assert cli(instance, "SETBIT", "share:1001", "2017", "1") == ["0"]
        assert cli(instance, "BITCOUNT", "share:1000") == ["2"]
        assert cli(instance, "GETBIT", "share:1000", "2017") == ["1"]
        assert cli(instance, "BITOP", "AND", "both", "share:1000", "share:1001") != ["0"]
        assert cli(instance, "GETBIT", "both", "2017") == ["1"]
        assert cli(instance, "GETBIT", "both", str(SNOWFLAKE)) == ["0"]
        assert cli(instance, "LIKE.FIELDS", "share:1000", "agriculture") == ["OK"]
        assert cli(instance, "ZREVRANGE", "rank:agriculture", "0", "99", "WITHSCORES") == ["share:1000", "2"]
        assert cli(instance, "ZREVRANK", "rank:agriculture", "share:1000") == ["0"]
        status = instance.status("likes")
        assert (status["items"], status["users"], status["likes"]) == (3, 2, 3)
        assert instance.metrics("likes")["likes_held"] == 3
        assert instance.get("likes", "/readyz")


def test_words_of_the_command_like_show_and_rank(with_likes: Make) -> None:
    instance = with_likes()
    with instance.running():
        assert said(instance, "like", "share:1000", "2017") == {
            "item": "share:1000",
            "user": "2017",
            "likes": True,
            "before": False,
            "count": 1,
        }
        assert said(instance, "like", "share:1000", "2017")["before"] is True
        assert said(instance, "like", "share:1000", str(SNOWFLAKE))["count"] == 2
        assert said(instance, "like", "share:1001", "2017")["count"] == 1
        shown = said(instance, "likes", "show", "share:1000")
        assert (shown["count"], shown["newest"]) == (2, [str(SNOWFLAKE), "2017"])
        assert shown["ranks"] == [{"field": "", "rank": 0, "of": 2}, {"field": "share", "rank": 0, "of": 2}]
        assert set(shown["windows"]) == {"1h", "24h", "7d"}
        assert said(instance, "likes", "both", "share:1000", "share:1001")["users"] == ["2017"]
        assert said(instance, "likes", "feed", "share:1001", "share:9", "--viewer", "2017", "--newest", "1") == {
            "viewer": "2017",
            "items": [
                {"item": "share:1001", "count": 1, "likes": True, "newest": ["2017"]},
                {"item": "share:9", "count": 0, "likes": False, "newest": []},
            ],
        }
        assert (
            instance.ran("likes", "feed", "share:1001").stdout.split() == b"item likes newest share:1001 1 2017".split()
        )
        assert instance.metrics("likes")["likes_feed_items"] == 3
        liked = said(instance, "likes", "of", "2017")
        assert liked["items"] == ["share:1001", "share:1000"]
        times = instance.ran("likes", "of", "2017", "--times").stdout.decode().splitlines()
        shown = [datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") for at in liked["at"]]
        assert times == [f"{at}  {item}" for at, item in zip(shown, liked["items"], strict=True)]
        assert [each["item"] for each in said(instance, "rank", "share", "--top", "1")["top"]] == ["share:1000"]
        assert said(instance, "rank", "--window", "24h")["top"][0]["item"] == "share:1000"
        assert instance.ran("likes", "both", "share:1000", "share:1001", "--user", "7").returncode == 1
        assert said(instance, "unlike", "share:1000", "2017") | {"item": ""} == {
            "item": "",
            "user": "2017",
            "likes": False,
            "before": True,
            "count": 1,
        }
        for words, code in (
            (("like", "share:1", "-5"), 2),
            (("like", "share:1", str(1 << 64)), 2),
            (("likes", "both", "share:1"), 2),
            (("likes", "feed", *(f"share:{number}" for number in range(1_001))), 2),
            (("rank", "--window", "2h"), 2),
            (("like", "rank:share", "1"), 1),
        ):
            done = instance.ran(*words)
            assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (code, b"", 1), (words, done.stderr)
        findings = json.loads(instance.ran("doctor", "--json").stdout)["findings"]
        assert {finding["level"] for finding in findings if finding["check"] == "likes"} <= {"ok", "warn"}
    assert instance.ran("like", "share:1", "5").returncode == 69


def test_words_of_the_command_set_raise_and_show_scores(with_likes: Make) -> None:
    instance = with_likes()
    with instance.running():

        def board(*words: str) -> Any:
            return said(instance, "likes", "leaderboard", *words)

        assert board("put", "game:7", "alice", "120")["changed"] is True
        assert board("put", "game:7", "alice", "100", "--only", "greater")["changed"] is False
        assert board("add", "game:7", "bo", "120") == {"leaderboard": "game:7", "member": "bo", "score": 120.0}
        assert board("add", "game:7", "cy", "-1.5")["score"] == -1.5
        assert board("show", "game:7", "alice") | {"leaderboard": ""} == {
            "leaderboard": "",
            "member": "alice",
            "score": 120.0,
            "rank": 1,
            "of": 3,
        }
        board("ties", "game:7", "time")
        assert board("show", "game:7", "alice")["rank"] == 0
        assert [each["member"] for each in board("top", "game:7")["members"]] == ["alice", "bo", "cy"]
        assert [each["member"] for each in board("top", "game:7", "--lowest", "--top", "1")["members"]] == ["cy"]
        assert {each["member"] for each in board("top", "game:7", "--window", "24h")["members"]} == {
            "alice",
            "bo",
            "cy",
        }
        assert instance.ran("likes", "leaderboard", "top", "game:7", "--top", "1").stdout.split() == (
            b"rank member score 0 alice 120".split()
        )
        assert instance.metrics("likes")["likes_members"] == 3
        assert board("rm", "game:7", "alice", "nobody")["removed"] == 1
        assert said(instance, "like", "share:1", "7")["count"] == 1
        for words, code in (
            (("show", "game:7", "alice"), 1),
            (("put", "rank:share", "alice", "1"), 1),
            (("put", "share:1", "alice", "1"), 1),
            (("delete", "share:1"), 1),
            (("put", "game:7", "alice", "nan"), 2),
            (("put", "game:7", "alice", "1", "--only", "often"), 2),
            (("ties", "game:7", "luck"), 2),
            (("top", "game:7", "--window", "2h"), 2),
        ):
            done = instance.ran("likes", "leaderboard", *words)
            assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (code, b"", 1), (words, done.stderr)
        assert said(instance, "likes", "show", "share:1")["count"] == 1
        assert board("delete", "game:7")["deleted"] is True
        assert board("top", "game:7")["members"] == []


async def test_killed_node_comes_back_with_what_it_acknowledged(with_likes: Make) -> None:
    instance = with_likes(likes={"segment_mib": 8, "write_behind_ms": 200, "snapshot_records": 500})
    load = Load(Random(35))
    with instance.running():
        for _ in range(2):
            host, port = address(instance)
            dead: list[int] = []
            await load.until_killed(host, port, lambda: dead.append(instance.kill("likes")))  # noqa: B023 - called here
            await instance.back("likes", dead[0])
            await load.check(*address(instance))


async def test_node_with_its_log_in_kafka_dies_and_another_machine_goes_on(
    with_likes: Make, kafka: Kafka, tmp_path: Path
) -> None:
    options = {"log": kafka.url, "database": f"sqlite:///{tmp_path}/shared.db"}
    likes = options | {"segment_mib": 8, "write_behind_ms": 200, "snapshot_records": 500}
    instance = with_likes(likes=likes)
    load, dead = Load(Random(35)), list[int]()
    with instance.running():
        await load.until_killed(*address(instance), lambda: dead.append(instance.kill("likes")))
        await instance.back("likes", dead[0])
        await load.check(*address(instance))
        await load.until_killed(*address(instance), lambda: instance.kill("likes"))
    sections: dict[str, dict[str, Any]] = {"database": {"url": "none"}, "systems": {"enabled": "likes"}, "likes": likes}
    other = Instance(tmp_path / "other", configuration(**sections))
    with other.running():
        await load.check(*address(other))


async def test_three_nodes_share_the_items_though_one_dies_one_comes_and_one_goes(with_likes: Make) -> None:
    instance = with_likes(up={"likes": 3}, likes={"segment_mib": 8, "partitions": 8})
    with instance.running():

        def doors() -> list[tuple[str, int]]:
            return [process.bind for process in instance.record().of("likes") if process.bind]

        crowd = Crowd(doors(), Random(35))
        async with crowd.running():
            await crowd.until(100)
            dead = instance.kill("likes-1")
            await crowd.until(100)
            await instance.back("likes-1", dead)
            added = said(instance, "cluster", "add", "likes")
            crowd.doors = doors()
            await until_asked(lambda: instance.metrics("likes-3")["likes_partitions"] == 2)
            await crowd.until(100)
            done = await asyncio.to_thread(instance.ran, "cluster", "remove", str(instance.process("likes").node))
            assert done.returncode == 0, (added, done.stderr)
            crowd.doors = doors()
            await crowd.until(100)
        await crowd.check()
        (top,) = said(instance, "rank", "share", "--top", "1")["top"]
        shown = said(instance, "likes", "show", top["item"])
        assert (shown["count"], shown["ranks"][1]["rank"]) == (top["score"], 0)
        if shutil.which("redis-cli"):
            host, port = doors()[0]
            command = ["redis-cli", "-c", "-h", host, "-p", str(port), "BITCOUNT", top["item"]]
            answer = await asyncio.to_thread(
                subprocess.run, command, capture_output=True, timeout=PATIENT_S, check=True
            )
            assert int(answer.stdout) == shown["count"]


async def test_bitmaps_of_a_redis_are_imported_by_the_command(with_likes: Make, tmp_path: Path) -> None:
    server = Server()
    await server.start()
    async with Redis.from_url(server.url) as source:
        for user in (1, 2017, 70_000):
            await source.setbit("share:1000", user, 1)
    instance = with_likes()
    with instance.running():
        words = ("likes", "import", server.url, "share:*", "--done", str(tmp_path / "done"))
        assert said(instance, *words) == {"keys": 1, "before": 0, "likes": 3, "new": 3}
        assert said(instance, *words) == {"keys": 0, "before": 1, "likes": 0, "new": 0}
        assert said(instance, "likes", "show", "share:1000")["count"] == 3
        assert instance.ran("likes", "import", "nonsense", "share:*").returncode == 2
        await server.kill()
        assert instance.ran("likes", "import", server.url, "*", "--done", str(tmp_path / "done")).returncode == 69


async def test_users_file_lets_in_those_who_know_a_password(with_likes: Make, tmp_path: Any) -> None:
    users = tmp_path / "users"
    users.write_text("web:s3cret:x\nreader:other\n")
    users.chmod(0o600)
    instance = with_likes(likes={"segment_mib": 8, "users_file": str(users)})
    with instance.running() as running:
        for options in ({}, {"username": "web", "password": "wrong"}, {"username": "x", "password": "s3cret:x"}):
            async with client(instance, **options) as stranger:
                with pytest.raises(RedisError, match=r"already authenticated|[Aa]uthentication|invalid username"):
                    await stranger.setbit("share:1", 1, 1)
        async with client(instance, username="web", password="s3cret:x", protocol=3) as known:
            assert await known.setbit("share:1", 1, 1) == 0
        assert said(instance, "likes", "show", "share:1")["count"] == 1
        users.write_text("web:other\n")
        running.send_signal(signal.SIGHUP)

        async def let_in(password: str) -> bool:
            async with client(instance, username="web", password=password) as redis:
                with contextlib.suppress(RedisError):
                    return bool(await redis.ping())
            return False

        async with asyncio.timeout(PATIENT_S):
            while not await let_in("other"):  # noqa: ASYNC110 - another process reads the file
                await asyncio.sleep(0.05)
        assert not await let_in("s3cret:x")


async def test_count_comes_into_the_room_of_its_item_at_most_ten_times_a_second(with_likes: Make) -> None:
    instance = with_likes()
    with instance.running():
        async with (
            muster.connect(str(instance.folder.path)) as reader,
            reader.join("likes:share:1000") as room,
            client(instance) as redis,
        ):
            began, counts = time.monotonic(), list[int]()
            for user in range(500):
                await redis.setbit("share:1000", user, 1)
            async with asyncio.timeout(PATIENT_S):
                async for message in room:
                    assert isinstance(message, muster.Message)
                    counts.append(int(message.data))
                    if counts[-1] == 500:
                        break
            assert counts == sorted(set(counts))
            assert len(counts) <= 10 * (time.monotonic() - began) + 2
            dead = instance.kill("proxy")
            for user in range(10):
                assert await redis.setbit("share:1000", user, 0) == 1, "likes continue"
            await instance.back("proxy", dead)
            async with asyncio.timeout(PATIENT_S):
                async for message in room:
                    if isinstance(message, muster.Message) and int(message.data) == 490:
                        break
        done = instance.ran("sub", "likes:share:1000", "--history", "1", "--count", "1")
        assert done.stdout.split()[-1] == b"490", done


def test_the_command_exports_and_erases_a_user(with_likes: Make) -> None:
    instance = with_likes()
    with instance.running():
        user = str(SNOWFLAKE)
        for item in ("share:1", "share:2", "dislike:3", "plain"):
            assert said(instance, "like", item, user)["count"] == 1
        assert instance.ran("likes", "leaderboard", "add", "game:7", user, "5").returncode == 0
        lines = [json.loads(line) for line in instance.ran("likes", "export", user).stdout.splitlines()]
        assert sorted((each["kind"], each["item"]) for each in lines[:-1]) == [
            ("", "plain"),
            ("dislike", "dislike:3"),
            ("share", "share:1"),
            ("share", "share:2"),
        ]
        assert all(each["at_s"] for each in lines[:-1])
        assert lines[-1] == {"type": "score", "leaderboard": "game:7", "score": 5.0}
        asked = instance.ran("likes", "erase", user)
        assert (asked.returncode, b"--yes" in asked.stderr) == (2, True), asked.stderr
        assert instance.ran("likes", "erase", "x", "--yes").returncode == 2
        done = instance.ran("likes", "erase", user, "--yes")
        assert done.returncode == 0, done.stderr
        assert b"4 likes (1 of no kind, 1 of dislike, 2 of share), 1 leaderboard score; " in done.stdout
        assert b": files\n" in done.stderr or b": done\n" in done.stderr
        forms = (user.encode(), SNOWFLAKE.to_bytes(8, "little"), SNOWFLAKE.to_bytes(8, "big"))
        kept = [file for file in instance.folder.path.rglob("*") if file.is_file()]
        assert [file for file in kept if any(form in file.read_bytes() for form in forms)] == []
        again = said(instance, "likes", "erase", "4711", "--yes")
        assert (again["user"], again["phase"], again["likes"]) == ("4711", "done", {})
        assert instance.ran("likes", "export", user).stdout == b""
        assert instance.metrics("likes")["likes_erased_users"] == 2
