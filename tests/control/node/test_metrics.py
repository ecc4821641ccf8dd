"""The engines' counters reach every reader, through any socket."""

import functools
import socket
import time
from typing import Any

import pytest

import muster.testing
from muster.testing import ROLES, Role
from tests.waiting import until

SHORT_HELLO = bytes([0x4D, 0x11]) + bytes(98)


@pytest.mark.parametrize("role", ROLES)
async def test_a_stranger_at_either_socket_is_counted_by_reason(role: Role) -> None:
    async with muster.testing.instance() as running:
        engine: Any = running._engines[role]

        def counted(wanted: str) -> int:
            return {name: int(value) for name, _, value in engine.counters()}[wanted]

        names = ["dropped_hello_short"] if role in {"gateway", "proxy"} else []
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            for name, address in zip([*names, "link_dropped_hello_short"], engine.addresses(), strict=True):
                assert counted(name) == 0
                stranger.sendto(SHORT_HELLO, address)
                await until(functools.partial(counted, name))


@pytest.mark.parametrize("role", ROLES)
async def test_no_name_stands_for_two_counts(role: Role) -> None:
    async with muster.testing.instance() as running:
        engine: Any = running._engines[role]
        names = [name for name, _, _ in [*engine.counters(), *engine.gauges()]]
        assert len(names) == len(set(names))
        assert all(text for _, text, _ in [*engine.counters(), *engine.gauges()])


async def test_each_standstill_is_told_with_its_own_length() -> None:
    async with muster.testing.instance() as running:
        engine: Any = running._engines["router"]

        def stand_still(seconds: float) -> float:
            time.sleep(seconds)
            engine.turn()
            (told,) = [event[1] for event in engine.events() if event[0] == "stalled"]
            return float(told)

        engine.turn()
        engine.events()
        assert stand_still(2.5) > 2.0
        assert 0.5 < stand_still(1.0) < 2.0
