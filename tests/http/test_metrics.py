"""What is counted, as Prometheus reads it."""

from muster_server.control.node import metrics
from tests.faults.instance import samples
from tests.http.conftest import Make, eventually

PATH = "/api/v1/rooms/r/messages"
ROUTE = 'route="/api/v1/rooms/{room}/messages"'


async def test_requests_refusals_and_streams_are_counted(make: Make) -> None:
    beside = await make()
    client = beside.client("history:*", "read:*", "publish:*")
    registry = metrics.registry(beside.server.counts, {"role": "http", "node": "1", "name": "http"}, "0", list)
    for _ in range(3):
        await client.get(PATH)
    await client.post(PATH, json=["a", 1])
    await beside.client().get(PATH)
    await client.get("/nothing/of/ours")
    async with client.stream("GET", PATH, headers={"accept": "text/event-stream"}):
        page = (await metrics.text(metrics.read(registry))).decode()
    said = samples(page)
    assert said["http_streams"] == 1
    assert said["http_rooms"] == 1
    assert said["http_keys"] == 1
    assert said['http_rejected{reason="no_credential"}'] == 1
    assert said['http_messages{outcome="published"}'] == 1
    assert said['http_messages{outcome="failed"}'] == 1
    lines = page.splitlines()
    for labels, value in (
        (f'method="GET",name="http",node="1",role="http",{ROUTE},status="200"', 3.0),
        (f'method="GET",name="http",node="1",role="http",{ROUTE},status="401"', 1.0),
        (f'method="POST",name="http",node="1",role="http",{ROUTE},status="207"', 1.0),
        ('method="GET",name="http",node="1",role="http",route="none",status="404"', 1.0),
    ):
        found = [line for line in lines if line.startswith("muster_http_requests_total{")]
        mine = [line for line in found if _labels(line) == set(labels.split(","))]
        assert [float(line.rpartition(" ")[2]) for line in mine] == [value]
    buckets = [line for line in lines if line.startswith("muster_http_request_seconds_bucket") and 'le="+Inf"' in line]
    assert sum(float(line.rpartition(" ")[2]) for line in buckets if ROUTE in line) == 5


async def test_a_scrape_is_complete_before_the_first_request(make: Make) -> None:
    beside = await make()
    registry = metrics.registry(beside.server.counts, {"role": "http", "node": "1", "name": "http"}, "0", list)
    before = samples((await metrics.text(metrics.read(registry))).decode())
    client = beside.client("history:*", "read:*", "publish:*")
    await client.post(PATH, json=["a", 1])
    await client.get(PATH)
    await client.get("/nothing/of/ours")
    await beside.client().get(PATH)
    async with client.stream("GET", PATH, headers={"accept": "text/event-stream"}):
        pass

    async def left() -> bool:
        return beside.server.counts.value("http_streams_ended", reason="left") == 1

    await eventually(left)
    after = samples((await metrics.text(metrics.read(registry))).decode())
    new = after.keys() - before.keys()
    assert {name.partition("{")[0] for name in new} <= {"http_requests"}, "other statuses and methods"
    assert {name.partition("{")[0] for name in before} == {name.partition("{")[0] for name in after}
    assert before['http_rejected{reason="no_credential"}'] == 0
    assert after['http_rejected{reason="no_credential"}'] == 1


def _labels(line: str) -> set[str]:
    return set(line.partition("{")[2].rpartition("}")[0].split(","))
