"""Keys that a running face takes: rates, limits, hosts, CORS. Others wait for a restart."""

from typing import Any

import msgspec

from muster_server.systems.http.options import RELOADS, HttpOptions
from tests.http.conftest import Beside, Make, until_refused
from tests.http.streams import stream

MESSAGES = "/api/v1/rooms/sports:final/messages"
ORIGIN = "https://app.example.com"
PREFLIGHT = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST"}


def take(beside: Beside, **options: Any) -> None:
    """Reload the face with these options, and the others as they were."""
    beside.server.take(msgspec.structs.replace(beside.settings.options, **options))


async def test_a_lower_rate_counts_from_the_next_request_on(make: Make) -> None:
    beside = await make()
    asking = beside.client("history:*")
    assert [(await asking.get(MESSAGES)).status_code for _ in range(5)] == [200] * 5
    take(beside, requests_rate=1)
    await until_refused(lambda: asking.get(MESSAGES))


async def test_a_lower_rate_of_messages_refuses_the_next_batch(make: Make) -> None:
    beside = await make()
    asking = beside.client("publish:*")
    batch = ["message"] * 50
    assert (await asking.post(MESSAGES, json=batch)).status_code == 200
    take(beside, messages_rate=1)
    answers = [await asking.post(MESSAGES, json=batch) for _ in range(2)]
    assert {answer.json().get("code") for answer in answers} >= {"rate_limited"}


async def test_limits_of_bodies_and_batches_hold_for_the_next_request(make: Make) -> None:
    beside = await make()
    asking = beside.client("publish:*")
    assert (await asking.post(MESSAGES, content=bytes(2_000))).status_code == 200
    take(beside, body_bytes_max=1_024, batch_max=1)
    answer = await asking.post(MESSAGES, content=bytes(2_000))
    assert (answer.status_code, answer.json()["detail"]) == (413, "too long (limit 1024 bytes)")
    assert (await asking.post(MESSAGES, json=["one", "two"])).status_code == 413
    take(beside)
    assert (await asking.post(MESSAGES, json=["one", "two"])).status_code == 200


async def test_origins_and_hosts_are_taken_while_a_stream_goes_on(make: Make) -> None:
    beside = await make()
    asking = beside.client("publish:*")
    async with stream(beside.server.address, MESSAGES, beside.key("read:*")) as reader:
        before = await asking.options(MESSAGES, headers=PREFLIGHT)
        assert "access-control-allow-origin" not in before.headers
        assert (await asking.get("/readyz", headers={"Host": "app.example.com"})).status_code == 421
        take(beside, cors_origins=(ORIGIN,), hosts=("app.example.com",))
        after = await asking.options(MESSAGES, headers=PREFLIGHT)
        assert after.headers["access-control-allow-origin"] == ORIGIN
        assert (await asking.get("/readyz", headers={"Host": "app.example.com"})).status_code == 200
        assert (await asking.post(MESSAGES, content=b"goal")).status_code == 200
        assert (await reader.message()).data["data"] == "goal"


async def test_a_key_that_sizes_what_exists_waits_for_a_restart(make: Make) -> None:
    beside = await make()
    asking = beside.client("history:*")
    take(beside, history_max=1)
    assert (await asking.get(MESSAGES, params={"history": 10})).status_code == 200


def test_each_reloaded_key_exists() -> None:
    assert set(RELOADS) < set(HttpOptions.__struct_fields__)
