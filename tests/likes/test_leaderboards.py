"""Leaderboards by way of the binding and of RESP beside a model, by the client of nodes, and over HTTP."""

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from muster_server._engines import LikesEngine
from muster_server.plane.ownership.errors import StoreError
from muster_server.systems.likes.client import Likes
from tests.likes.conftest import Face, problem
from tests.likes.test_feed import command, parsed
from tests.likes.test_http import pages, said
from tests.reference.leaderboard import Leaderboard

NOW_MS = 1_790_000_000_000
BOARDS = (b"game:7", b"game:8")
MEMBERS = (b"alice", b"bo", b"cy", b"", b"\xff")
CONDITIONS = {"": (), "new": (b"NX",), "existing": (b"XX",), "greater": (b"GT",), "less": (b"LT",)}
scores = st.integers(-4, 4).map(lambda number: number / 2)
boards = st.sampled_from(BOARDS)
members = st.sampled_from(MEMBERS)


class Scores(RuleBasedStateMachine):
    """An engine whose log is a list, and the model."""

    def __init__(self) -> None:
        super().__init__()
        self.model = {board: Leaderboard() for board in BOARDS}
        self.log: list[tuple[bytes, int]] = []
        self.parts: list[bytes] | None = None
        """The snapshot in progress, and the members when it began."""
        self.cut: dict[bytes, list[tuple[bytes, float]]] = {}
        self.start(None)

    def start(self, snapshot: bytes | None) -> None:
        self.engine = LikesEngine(folder=None, epoch=1, snapshot=snapshot)
        self.connection = self.engine.connect()
        self.parts = None

    def ask(self, *words: bytes) -> Any:
        self.engine.feed(self.connection, command(*words), NOW_MS)
        while (batch := self.engine.begin_batch()) is not None:
            self.log.append(batch)
            self.engine.batch_is_durable(self.engine.offset(), NOW_MS)
        return parsed(self.engine.take(self.connection, NOW_MS)[0])

    @rule(
        board=boards,
        only=st.sampled_from(list(CONDITIONS)),
        wanted=st.dictionaries(members, scores, min_size=1, max_size=3),
    )
    def put(self, board: bytes, only: str, wanted: dict[bytes, float]) -> None:
        pairs = [word for member, score in wanted.items() for word in (b"%f" % score, member)]
        changed = self.ask(b"ZADD", board, *CONDITIONS[only], b"CH", *pairs)
        # All of one command get their scores at one moment: among them the greater name is above.
        told = [self.model[board].put(member, wanted[member], only) for member in sorted(wanted, reverse=True)]
        assert changed == sum(told)

    @rule(board=boards, member=members, by=scores)
    def add(self, board: bytes, member: bytes, by: float) -> None:
        assert float(self.ask(b"ZINCRBY", board, b"%f" % by, member)) == self.model[board].add(member, by)

    @rule(board=boards, gone=st.lists(members, min_size=1, max_size=3, unique=True))
    def remove(self, board: bytes, gone: list[bytes]) -> None:
        assert self.ask(b"ZREM", board, *gone) == sum(self.model[board].remove(member) for member in gone)

    @rule(board=boards, by_time=st.booleans())
    def ties(self, board: bytes, by_time: bool) -> None:
        assert self.ask(b"LIKE.TIES", board, b"TIME" if by_time else b"NAME") == b"OK"
        self.model[board].by_time = by_time

    @rule(board=boards)
    def delete(self, board: bytes) -> None:
        assert self.ask(b"DEL", board) == bool(self.model[board].scores)
        self.model[board] = Leaderboard()

    @rule()
    def restart(self) -> None:
        """From a snapshot."""
        self.start(self.engine.snapshot())

    @rule()
    def replay(self) -> None:
        """From the log."""
        self.start(None)
        for payload, _count in self.log:
            self.engine.replay(self.engine.offset(), payload)

    @rule()
    def begin_snapshot(self) -> None:
        self.engine.begin_snapshot()
        self.parts, self.cut = [], {board: self.model[board].top() for board in BOARDS}

    @precondition(lambda self: self.parts is not None)
    @rule(size=st.integers(1, 400))
    def take_a_part(self, size: int) -> None:
        """The whole, at its end, has what was there when it began."""
        assert self.parts is not None
        if part := self.engine.snapshot_part(size):
            self.parts.append(part)
            return
        restored = LikesEngine(folder=None, epoch=1, snapshot=b"".join(self.parts))
        for board in BOARDS:
            assert restored.page(board, 0, 100, NOW_MS) == self.cut[board]
        self.parts = None

    @invariant()
    def every_member_has_its_score_and_rank(self) -> None:
        for board in BOARDS:
            wanted = self.model[board].top()
            assert self.engine.page(board, 0, 100, NOW_MS) == wanted
            assert self.ask(b"ZCARD", board) == len(wanted)
            for rank, (member, score) in enumerate(wanted):
                assert self.ask(b"ZREVRANK", board, member) == rank
                assert float(self.ask(b"ZSCORE", board, member)) == score
            lowest = self.ask(b"ZRANGE", board, b"-1", b"1", b"BYSCORE")
            assert lowest == [member for member, score in reversed(wanted) if -1 <= score <= 1]


TestScores = Scores.TestCase


async def test_the_client_sets_raises_and_ranks(likes: Likes) -> None:
    boards, name = likes.leaderboards, b"game:7"
    assert await boards.put(name, [(b"alice", 120), (b"bo", 90.5)]) == 2
    assert await boards.put(name, [(b"alice", 100), (b"bo", 91)], "greater") == 1
    assert await boards.put(name, [(b"cy", 1)], "existing") == 0
    assert await boards.add(name, b"cy", 5) == 5.0
    standing = await boards.standing(name, b"bo")
    assert standing is not None
    assert (standing.score, standing.rank, standing.of) == (91.0, 1, 3)
    lowest = await boards.standing(name, b"bo", lowest=True)
    assert lowest is not None
    assert lowest.rank == 1
    assert await boards.standing(name, b"nobody") is None
    assert await boards.top(name, 1, 9) == [(b"bo", 91.0), (b"cy", 5.0)]
    assert await boards.top(name, 0, 1, lowest=True) == [(b"cy", 5.0)]
    assert [member for member, _ in await boards.top(name, 0, 9, "24h")] == [b"alice", b"bo", b"cy"]
    assert await boards.remove(name, [b"cy", b"nobody"]) == 1
    assert await boards.size(name) == 2
    assert await boards.by_time(name) is False
    await boards.put_ties(name, by_time=True)
    assert await boards.by_time(name) is True
    assert await boards.delete(name) is True
    assert await boards.delete(name) is False
    assert await boards.top(name, 0, 9) == []


async def test_an_item_is_no_leaderboard(likes: Likes) -> None:
    await likes.put(b"share:1", 7, True)
    for call in (
        likes.leaderboards.put(b"share:1", [(b"a", 1)]),
        likes.leaderboards.add(b"share:1", b"a", 1),
        likes.leaderboards.remove(b"share:1", [b"a"]),
        likes.leaderboards.delete(b"share:1"),
        likes.leaderboards.put_ties(b"share:1", by_time=True),
        likes.leaderboards.top(b"share:1", 0, 9),
    ):
        with pytest.raises(StoreError, match="wrong kind"):
            await call
    assert await likes.counts([b"share:1"]) == [1]
    await likes.leaderboards.add(b"game:7", b"a", 1)
    with pytest.raises(StoreError, match="wrong kind"):
        await likes.put(b"game:7", 7, True)
    with pytest.raises(StoreError, match="too many members in a call: 501"):
        await likes.leaderboards.put(b"game:7", [(b"%d" % number, 1) for number in range(501)])
    assert await likes.leaderboards.put(b"game:7", [(b"%d" % number, 1) for number in range(500)]) == 500


async def test_scores_are_set_raised_and_ranked_over_http(face: Face) -> None:
    board = "/api/v1/leaderboards/game:7"
    async with face.client("leaderboard:game:*", "leaderboards:game:*") as client:
        changed = {"leaderboard": "game:7", "changed": 1}
        assert await said(await client.put(f"{board}/members/alice", json={"score": 120})) == changed
        less = {"score": 100, "only": "greater"}
        assert await said(await client.put(f"{board}/members/alice", json=less)) == changed | {"changed": 0}
        raised = await said(await client.post(f"{board}/members/a%2Fb/raise", json={"by": 120}))
        assert raised == {"leaderboard": "game:7", "member": "a/b", "score": 120.0}
        both = {"scores": [{"member": "cy", "score": 1.5}, {"member": "alice", "score": 120}]}
        assert await said(await client.post(board, json=both)) == changed
        shown = {"leaderboard": "game:7", "member": "a/b", "score": 120.0, "rank": 1, "of": 3}
        assert await said(await client.get(f"{board}/members/a%2Fb")) == shown
        assert await said(await client.put(board, json={"ties": "time"})) == {"ties": "time"}
        assert [each["member"] for each in await pages(client, board, "members", 1)] == ["alice", "a/b", "cy"]
        page = await said(await client.get(board, params={"lowest": "true", "limit": 1}))
        assert page["members"] == [{"rank": 0, "member": "cy", "score": 1.5}]
        page = await said(await client.get(board, params={"window": "24h"}))
        assert {each["member"] for each in page["members"]} == {"alice", "a/b", "cy"}
        assert await said(await client.delete(f"{board}/members/cy")) == changed
        problem(await client.get(f"{board}/members/cy"), 404, "not_found")
        assert await said(await client.delete(board)) == changed | {"changed": 2}
        assert (await said(await client.get(board)))["members"] == []


async def test_a_repeated_raise_with_one_key_counts_once(face: Face) -> None:
    async with face.client("leaderboard:*") as client:
        path, key = "/api/v1/leaderboards/game:7/members/alice/raise", {"idempotency-key": "match-9"}
        for _ in range(2):
            assert (await said(await client.post(path, json={"by": 5}, headers=key)))["score"] == 5.0
        assert (await said(await client.post(path, json={"by": 5})))["score"] == 10.0


async def test_scopes_and_shapes_of_leaderboards_are_checked(face: Face, likes: Likes) -> None:
    await likes.put(b"share:1", 7, True)
    await likes.leaderboards.put(b"game:7", [(b"alice", float("inf"))])
    board = "/api/v1/leaderboards/game:7"
    async with face.client("like:*", "likes:*") as other, face.client("leaderboard:*", "leaderboards:*") as client:
        problem(await other.get(board), 403, "not_allowed")
        problem(await other.put(f"{board}/members/alice", json={"score": 1}), 403, "not_allowed")
        for body in ({"score": "x"}, {"score": 1, "only": "often"}, {}, {"score": 1, "more": 1}):
            problem(await client.put(f"{board}/members/alice", json=body), 400, "bad_body")
        problem(await client.put(board, json={"ties": "luck"}), 400, "bad_body")
        scores = [{"member": str(number), "score": 1} for number in range(501)]
        problem(await client.post(board, json={"scores": scores}), 400, "bad_body")
        problem(await client.put(f"{board}/members/{'x' * 513}", json={"score": 1}), 400, "bad_request")
        problem(await client.put("/api/v1/leaderboards/share:1/members/a", json={"score": 1}), 400, "bad_request")
        problem(await client.put("/api/v1/leaderboards/rank:share/members/a", json={"score": 1}), 400, "bad_request")
        assert (await said(await client.get(board)))["members"][0]["score"] == 1.7976931348623157e308
