"""Cached answers: only those without a reported change, in whatever order answer and report come."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_server.control.registry import read_cache as module
from muster_server.control.registry.read_cache import ReadCache


class Asked:
    """A server that answers on demand, with the state of that moment."""

    def __init__(self) -> None:
        self.version, self.times = 0, 0

    async def __call__(self) -> int:
        self.times += 1
        answer = self.version
        await asyncio.sleep(0)
        return answer


async def test_what_was_answered_is_kept_until_a_change_is_told() -> None:
    kept, asked = ReadCache(), Asked()
    assert [await kept.read("node", "/a", asked) for _ in range(3)] == [0] * 3
    asked.version = 1
    kept.changed("/b")
    assert await kept.read("node", "/a", asked) == 0
    kept.changed("/a")
    assert [await kept.read("node", "/a", asked) for _ in range(3)] == [1] * 3
    assert asked.times == 2
    kept.forget()
    assert await kept.read("node", "/a", asked) == 1
    assert asked.times == 3


@pytest.mark.parametrize("all_of_it", [False, True])
async def test_an_answer_that_is_overtaken_by_what_is_told_of_a_change_is_not_kept(all_of_it: bool) -> None:
    kept, asked = ReadCache(), Asked()
    reading = [asyncio.create_task(kept.read(what, "/a", asked)) for what in ("node", "names")]
    await asyncio.sleep(0)
    asked.version = 1
    if all_of_it:
        kept.forget()
    else:
        kept.changed("/a")
    assert [await each for each in reading] == [0, 0], "asked before the change"
    assert [await kept.read(what, "/a", asked) for what in ("node", "names")] == [1, 1]


async def test_what_is_not_there_and_what_failed_is_asked_for_again() -> None:
    kept, asked = ReadCache(), Asked()

    async def nothing() -> int | None:
        return None

    async def fails() -> int | None:
        raise RuntimeError

    assert await kept.read("node", "/a", nothing) is None
    with pytest.raises(RuntimeError):
        await kept.read("node", "/a", fails)
    assert await kept.read("node", "/a", asked) == 0
    assert await kept.read("node", "/a", fails) == 0
    assert not kept._signs


async def test_no_more_is_kept_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_MAX", 2)
    kept, asked = ReadCache(), Asked()
    for _ in range(2):
        for path in ("/a", "/b", "/c"):
            await kept.read("node", path, asked)
    assert asked.times == 4
    kept.changed("/a")
    for _ in range(2):
        await kept.read("node", "/c", asked)
    assert asked.times == 5


@given(st.lists(st.sampled_from(["read", "answer", "change", "told", "forget"]), max_size=40))
def test_nobody_reads_what_is_older_than_what_was_told(script: list[str]) -> None:
    """Answers come in the order of the questions; a report comes some time after its change, between any of them."""

    async def played() -> None:
        kept, version, told, untold = ReadCache(), 0, 0, 0
        waiting: list[asyncio.Future[None]] = []
        reading: list[tuple[int, asyncio.Task[int | None]]] = []

        async def ask() -> int:
            answer, gate = version, asyncio.get_running_loop().create_future()
            waiting.append(gate)
            await gate
            return answer

        for each in script:
            if each == "read":
                reading.append((told, asyncio.create_task(kept.read("node", "/a", ask))))
            elif each == "answer" and waiting:
                waiting.pop(0).set_result(None)
            elif each == "change":
                version, untold = version + 1, untold + 1
            elif each == "told" and untold:
                kept.changed("/a")
                told, untold = version, 0
            elif each == "forget":
                kept.forget()
                told = version
            for _ in range(3):
                await asyncio.sleep(0)
        while waiting:
            waiting.pop(0).set_result(None)
            await asyncio.sleep(0)
        for least, task in reading:
            assert (await task or 0) >= least

    asyncio.run(played())
