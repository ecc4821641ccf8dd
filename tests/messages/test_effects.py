"""Messages about effects outside a database: sent if and only if the effect took place, as its own key says."""

import asyncio
from collections.abc import Iterator
from typing import Any, Final

import pytest

from muster.checks import Answer, Prepared
from muster.effects import Effect, Effects, Reply
from muster.errors import Invalid, Refused, Unavailable
from muster.messages import Messages
from muster_server.systems.messages.topics import new_secret
from tests.fakes.face import Face, face
from tests.messages.handlers import CHECKS
from tests.messages.test_transactions import SECRET, signed


class Bank:
    """Payments by key. A payment whose answer is lost raises `TimeoutError`."""

    def __init__(self) -> None:
        self.paid, self.closed = set[str](), set[str]()

    def pay(self, key: str, *, does: bool = True, answers: bool = True) -> None:
        if does and key not in self.closed:
            self.paid.add(key)
        if not answers:
            raise TimeoutError

    def said(self, key: str, _: Prepared) -> Reply:
        """Of a payment that is not known: it may come."""
        return "commit" if key in self.paid else "abort" if key in self.closed else "unknown"


@pytest.fixture
def plane() -> Iterator[Face]:
    with face(CHECKS, "orders") as made:
        yield made


@pytest.fixture
def client(plane: Face) -> Iterator[Messages]:
    with Messages(plane.url, key="k") as made:
        yield made


def effects(client: Messages, ask: Any, **more: Any) -> Effects:
    return Effects(client, ask, check_topic=CHECKS, secret=SECRET, check_s=0.001, **more)


async def check(plane: Face, asked: Effects, id: str) -> Answer | None:
    """A check-back comes; None where it was withdrawn, or has ended."""
    body = plane.take(CHECKS, id)
    if body is None:
        return None
    answer = await asked.answer(signed(id, body), body)
    plane.end(CHECKS, id, well=answer.status == 200)
    return answer


def test_the_message_goes_at_the_end_of_the_block(plane: Face, client: Messages) -> None:
    bank = Bank()
    with effects(client, bank.said).message("orders", {"order": 1}, in_s=60) as message:
        bank.pay(message.id)
        assert plane.held("orders") == []
    assert message.sent is not None
    (sent,) = plane.held("orders")
    assert (sent.id, sent.body, sent.in_ms) == (message.id, b'{"order":1}', 60_000)
    assert [each.state for each in plane.held(CHECKS)] == ["cancelled"]


@pytest.mark.parametrize(("does", "replies", "orders"), [(True, ["OK"], 1), (False, ["ABORT"], 0)])
async def test_after_an_error_the_check_back_asks_until_the_effect_is_known(
    plane: Face, client: Messages, does: bool, replies: list[str], orders: int
) -> None:
    bank, ids = Bank(), list[str]()

    async def pay() -> None:
        async with effects(client, bank.said).message("orders", b"1", type="a/b") as message:
            ids.append(message.id)
            bank.pay(message.id, does=does, answers=False)

    with pytest.raises(TimeoutError):
        await pay()
    assert [each.state for each in plane.held(CHECKS)] == ["scheduled"]
    other = effects(client, bank.said)  # another process
    if not does:
        for _ in range(3):
            assert await check(plane, other, ids[0]) == Answer(503, "the outcome of the effect is not known")
        bank.closed.add(ids[0])
        bank.pay(ids[0])
    assert await check(plane, other, ids[0]) == Answer(200, replies[0])
    assert await check(plane, other, ids[0]) is None
    assert [(each.id, each.body, each.type) for each in plane.held("orders")] == [(ids[0], b"1", "a/b")] * orders


async def test_a_handler_that_knows_that_nothing_happened_says_so(plane: Face, client: Messages) -> None:
    made = effects(client, Bank().said)

    async def pay() -> None:
        async with made.message("orders", 1, handler="shop.pay") as message:
            message.abort()
            raise LookupError

    with pytest.raises(LookupError):
        await pay()
    assert [each.state for each in plane.held(CHECKS)] == ["cancelled"]
    assert plane.held("orders") == []
    assert [(each.handler, each.calls, each.aborted) for each in made.calls.hours()] == [("shop.pay", 1, 1)]


async def test_what_cannot_be_sent_comes_by_check_back(plane: Face, client: Messages) -> None:
    bank = Bank()
    made, other = effects(client, bank.said), effects(client, bank.said)
    async with made.message("orders", 1, in_s=60) as message:
        bank.pay(message.id)
        plane.topics.discard("orders")
    assert message.sent is None
    answer = await check(plane, other, message.id)
    assert answer is not None
    assert (answer.status, "no topic orders" in answer.text) == (503, True)
    plane.topics.add("orders")
    assert await check(plane, other, message.id) == Answer(200, "OK")
    assert [(each.id, each.in_ms) for each in plane.held("orders")] == [(message.id, 60_000)]
    with pytest.raises(Refused, match="no topic nosuch"):
        async with made.message("nosuch", 1):
            raise AssertionError("the block ran")
    plane.away = True
    with pytest.raises(Unavailable):
        async with made.message("orders", 1):
            raise AssertionError("the block ran")


async def test_questions_of_strangers_are_not_asked_and_slow_answers_ask_again(plane: Face, client: Messages) -> None:
    asked = list[str]()

    async def slow(id: str, _: Prepared) -> Reply:
        asked.append(id)
        await asyncio.Event().wait()
        return "commit"

    made = effects(client, slow, answer_s=0.05)
    id, body = "a" * 32, b'{"topic":"orders","type":"a/b","in_s":null}\n1'
    for headers in ({}, signed(id, body, new_secret()), signed(id, body + b"1")):
        assert (await made.answer(headers, body)).status == 401
    assert asked == []
    for odd in (b"", body.replace(b"null}", b'null,"call":[1]}'), body.replace(b"null}", b'null,"call":"x"}')):
        assert (await made.answer(signed(id, odd), odd)).status == 400
    answer = await made.answer(signed(id, body), body)
    assert (answer.status, "within" in answer.text, asked) == (503, True, [id])
    with pytest.raises(Invalid, match="coroutine"):
        made.answer_sync(signed(id, body), body)
    assert effects(client, lambda *_: "abort").answer_sync(signed(id, body), body) == Answer(200, "ABORT")
    with pytest.raises(Invalid, match="expected commit, abort or unknown"):
        effects(client, lambda *_: "yes").answer_sync(signed(id, body), body)
    with pytest.raises(Invalid, match="check-backs"):
        made.message(CHECKS, 1)


# --- deaths -----------------------------------------------------------------------------------------------------------

STEPS: Final = ("prepare", "prepared", "paying", "paid", "send", "sent", "withdraw", "withdrawn")


class Death(BaseException):
    """The handler's process ends here: nothing of it runs any more."""


class Mortal(Messages):
    """A client that dies at a step."""

    def __init__(self, url: str, step: str) -> None:
        super().__init__(url, key="k")
        self._step = step

    def reach(self, step: str) -> None:
        if step == self._step:
            raise Death

    def _ask(self, method: str, path: str, document: Any = None) -> Any:
        place = 6 if path.endswith("/cancel") else 0 if f"/{CHECKS}/" in path else 4
        before, after = STEPS[place : place + 2]
        self.reach(before)
        answer = super()._ask(method, path, document)
        self.reach(after)
        return answer


class Hasty(Effect):
    """A bug: a block that failed is taken for an effect that did not take place."""

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is not None:
            self.abort()
        super().__exit__(kind, error, trace)


async def outcome(plane: Face, step: str, *, lost: bool, bug: bool = False) -> tuple[bool, bool]:
    """A handler that dies at a step, or loses the answer; then check-backs until none waits. Whether it paid, and sent."""
    bank, client = Bank(), Mortal(plane.url, step)
    with client, Messages(plane.url, key="k") as other:
        message = effects(client, bank.said).message("orders", 1)
        if bug:
            message.__class__ = Hasty
        try:
            with message:
                client.reach("paying")
                bank.pay(message.id, answers=not lost)
                client.reach("paid")
        except (Death, TimeoutError):
            pass
        for held in plane.held(CHECKS):
            for _ in range(3):  # the bank closes what it has not heard of
                await check(plane, effects(other, bank.said), held.id)
                bank.closed.update({held.id} - bank.paid)
    assert all(each.state in {"done", "cancelled"} for each in plane.held(CHECKS))
    return message.id in bank.paid, message.id in [each.id for each in plane.held("orders")]


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("step", ["", *STEPS])
async def test_a_message_is_sent_if_and_only_if_its_effect_took_place(plane: Face, step: str, lost: bool) -> None:
    paid, sent = await outcome(plane, step, lost=lost)
    assert paid == sent
    assert paid == (step not in {"prepare", "prepared", "paying"})


async def test_a_block_that_takes_an_error_for_an_outcome_is_found(plane: Face) -> None:
    assert await outcome(plane, "", lost=True, bug=True) == (True, False)
