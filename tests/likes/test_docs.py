"""The examples of `docs/likes.md` that show a page of a feed."""

import asyncio
import json
import subprocess
import sys
from typing import Final

from muster_server.systems.likes.client import Likes
from tests.documents import ROOT, fenced
from tests.likes.conftest import Face, Node
from tests.waiting import PATIENT_S

PAGE: Final = (ROOT / "docs" / "likes.md").read_text()
LIKES: Final = [(b"share:1000", 2017), (b"share:1000", 2018), (b"share:1001", 2018)]


async def test_a_page_of_a_feed_is_shown_by_any_redis_client(node: Node, likes: Likes) -> None:
    await likes.put_all([(item, user, True) for item, user in LIKES])
    (example,) = fenced(PAGE, "python")
    program = example.replace("PORT", str(node.port))
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENT_S, check=True
    )
    assert done.stdout.splitlines() == ["2 True [2018, 2017]", "1 False [2018]"]


async def test_a_page_of_a_feed_is_shown_over_http(face: Face, likes: Likes) -> None:
    await likes.put_all([(item, user, True) for item, user in LIKES])
    request, answer = fenced(PAGE, "json")
    async with face.client("likes:*") as client:
        said = await client.post("/api/v1/likes/feed", content=request)
    assert (said.status_code, said.json()) == (200, json.loads(answer))
