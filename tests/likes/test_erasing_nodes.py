"""Erasing a user over several nodes, as real processes, while partitions move and nodes die."""

import asyncio
from pathlib import Path

from muster_server.systems.likes.client import Likes
from muster_server.systems.likes.reach import Away, Full, Reach
from tests.likes.test_erasing import USER, traces
from tests.likes.test_nodes import nodes
from tests.waiting import PATIENT_S

ITEMS = 4_000


async def test_a_user_is_erased_while_partitions_move_and_a_node_dies(tmp_path: Path) -> None:
    async with nodes(tmp_path, 1, 2, write_behind_ms=100) as made:
        items = [b"share:%d" % item for item in range(ITEMS)]
        async with Likes(Reach(made.doors)) as likes:
            await likes.put_all([(item, USER, True) for item in items])
            await likes.put_all([(item, 5, True) for item in items])
            await likes.leaderboards.put(b"game:7", [(str(USER).encode(), 1.0), (b"alice", 2.0)])
            found = [each.item async for each in likes.erasures.export(USER)]
            assert sorted(found) == sorted([*items, b"game:7"])
            await asyncio.sleep(1.0)  # a pass or two of each partition's write-behind
            assert traces(tmp_path / "likes")
            job = await likes.erasures.begin(USER)
        await made.start(3)
        await made.kill(1)
        async with Likes(Reach(made.doors)) as likes, asyncio.timeout(PATIENT_S):
            while True:
                try:
                    shown = await likes.erasures.show(job)
                except (Full, Away):  # a partition is on its way
                    pass
                else:
                    if shown.done:
                        break
                await asyncio.sleep(0.1)
            assert (shown.likes, shown.scores) == ({"share": ITEMS}, 1)
            assert await likes.counts(items) == [1] * ITEMS
            assert [each async for each in likes.erasures.export(USER)] == []
            assert traces(tmp_path / "likes") == []
            assert await likes.put(items[0], USER, True) is False
