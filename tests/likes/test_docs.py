"""The examples of `docs/likes.md` that show a page of a feed, when a user liked, and a leaderboard."""

import asyncio
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import msgspec

from muster_server.systems.likes.client import Likes
from muster_server.systems.likes.options import LikesOptions, groups
from muster_server.systems.likes.reach import Reach
from tests.documents import ROOT, fenced
from tests.likes.conftest import Face, Node
from tests.likes.test_service import running
from tests.waiting import PATIENT_S

PAGE: Final = (ROOT / "docs" / "likes.md").read_text()
LIKES: Final = [(b"share:1000", 2017), (b"share:1000", 2018), (b"share:1001", 2018)]


async def run(example: str, port: int) -> list[str]:
    """The lines that a program prints."""
    program = example.replace("PORT", str(port))
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENT_S, check=True
    )
    return done.stdout.splitlines()


async def test_a_page_of_a_feed_is_shown_by_any_redis_client(node: Node, likes: Likes) -> None:
    await likes.put_all([(item, user, True) for item, user in LIKES])
    example, _, _ = fenced(PAGE, "python")
    assert await run(example, node.port) == ["2 True [2018, 2017]", "1 False [2018]"]


async def test_a_page_of_a_feed_is_shown_over_http(face: Face, likes: Likes) -> None:
    await likes.put_all([(item, user, True) for item, user in LIKES])
    request, answer, *_ = fenced(PAGE, "json")
    async with face.client("likes:*") as client:
        said = await client.post("/api/v1/likes/feed", content=request)
    assert (said.status_code, said.json()) == (200, json.loads(answer))


async def test_a_leaderboard_is_shown_by_any_redis_client_and_over_http(node: Node, face: Face) -> None:
    _, example, _ = fenced(PAGE, "python")
    assert await run(example, node.port) == ["0 bo 125.0", "1 alice 120.0", "1"]
    *_, answer, _ = fenced(PAGE, "json")
    async with face.client("leaderboard:game:*", "leaderboards:game:*") as client:
        assert (await client.get("/api/v1/leaderboards/game:7?limit=10")).json() == json.loads(answer)
        raised = await client.post("/api/v1/leaderboards/game:7/members/bo/raise", json={"by": 30})
    assert raised.json()["score"] == 155.0


async def test_when_a_user_liked_is_shown_over_http(face: Face, likes: Likes) -> None:
    await likes.put_all([(b"share:1000", 2017, True), (b"share:1001", 2017, True)])
    _, _, answer, *_ = map(json.loads, fenced(PAGE, "json"))
    async with face.client("likes:*") as client:
        found = (await client.get("/api/v1/users/2017/likes?limit=20")).json()
    at = [each.at_s for each in await likes.items(2017, 0, 9)]
    assert found == answer | {"at": at}


def test_the_example_of_reactions_is_a_configuration() -> None:
    (example,) = fenced(PAGE, "toml")
    section = tomllib.loads(example)["likes"]
    assert groups(msgspec.convert(section, LikesOptions).one_of) == [["like", "dislike"], ["up", "down"]]


async def test_a_user_is_erased_by_any_redis_client(tmp_path: Path) -> None:
    *_, example = fenced(PAGE, "python")
    async with running(tmp_path) as (_, port), Likes(Reach([("127.0.0.1", port)])) as likes:
        await likes.put_all([(item, user, True) for item, user in [*LIKES, (b"plain", 2017)]])
        assert await run(example, port) == ["['', 1, 'share', 1]"]
        assert await likes.counts([b"share:1000", b"plain"]) == [1, 0]


async def test_what_is_known_of_a_user_is_exported_over_http(face: Face, likes: Likes) -> None:
    *_, answer = map(json.loads, fenced(PAGE, "json"))
    await likes.put(b"share:1000", 2017, True)
    await likes.leaderboards.put(b"game:7", [(b"2017", 120.0)])
    async with face.client("likes:*", "leaderboards:*") as client:
        found = (await client.get("/api/v1/users/2017/likes/export?limit=1000")).json()
        if found["next"]:  # the likes, and then the scores
            rest = (await client.get("/api/v1/users/2017/likes/export", params={"after": found["next"]})).json()
            found = rest | {"entries": found["entries"] + rest["entries"]}
    found["entries"][0]["at_s"] = answer["entries"][0]["at_s"]
    assert found == answer
