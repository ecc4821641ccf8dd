"""A fleet of real processes: mosquitto, index nodes, schedulers and clients; each is killed, stopped and comes back.

Every run is accounted for: a client that was asked is done, replaced or missed, and none does a run twice.
"""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2

from muster.fleet import Agent
from muster_server.control.errors import UNAVAILABLE
from muster_server.plane.redis.server import SECRET
from muster_server.plane.systems import actions
from muster_server.systems.http import keys
from muster_server.systems.http.system import KEYS
from tests import strikes
from tests.control.registry.zookeeper import ZooKeeper
from tests.documents import ROOT, fenced
from tests.faults.conftest import Make
from tests.faults.instance import Instance
from tests.faults.swarm import broker, swarm
from tests.fleet.mosquitto import Mosquitto, needs_mosquitto
from tests.fleet.test_sessions import Server
from tests.waiting import PATIENT_S, until_asked

if TYPE_CHECKING:
    from tests.databases import Database

PAGE = (ROOT / "docs" / "fleet.md").read_text()
FLEET = {
    "beat_ms": 500,
    "lease_ms": 6_000,
    "hint_ms": 4_000,
    "receipt_ms": 1_000,
    "result_ms": 8_000,
}


def events(instance: Instance, *words: str, seconds: float = 40.0) -> tuple[int, list[dict[str, Any]]]:
    """`muster fleet run` to its end, in JSON."""
    done = instance.ran("fleet", "run", *words, "--json", seconds=seconds)
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def said(instance: Instance, *words: str) -> Any:
    """The answer of a command, in JSON."""
    done = instance.ran("fleet", *words, "--json")
    assert done.stdout, done.stderr.decode()
    return json.loads(done.stdout)


def account(last: dict[str, Any]) -> dict[str, str]:
    """What came of each client of a run; each is in one list."""
    lists = {what: last.get(what, []) for what in ("done", "replaced", "missed")}
    found = {client: what for what, clients in lists.items() for client in clients}
    assert len(found) == sum(map(len, lists.values()))
    return found


async def online(instance: Instance, count: int) -> None:
    """Until every index node knows so many clients."""

    def known() -> bool:
        nodes = [node for node in instance.record().processes if node.role == "index"]
        return all(instance.status(node.name).get("clients") == count for node in nodes)

    await until_asked(known)


@needs_mosquitto
async def test_a_fleet_comes_up_with_one_command_and_measures(make: Make) -> None:
    instance = make(fleet=FLEET)
    with instance.running("--with", "fleet"):
        agents = instance.command("fleet", "agents", "--count", "200", "--marks", "demo")
        try:
            await online(instance, 200)
            code, seen = await asyncio.to_thread(events, instance, "ping", "--pick", "100", "--where", "country=CN")
            assert code == 0
            assert [each["what"] for each in seen].count("result") == 100
            assert len(seen[0]["clients"]) == 100
            assert set(account(seen[-1]).values()) == {"done"}
            code, seen = await asyncio.to_thread(events, instance, "ping", "--pick", "100", "--where", "carrier=9")
            assert (code, account(seen[-1])) == (1, {})
            spread = said(instance, "fairness")
            assert spread["picked"] == {"0": 100, "1": 100}
            assert len(await as_printed(instance)) == 5
            shown = said(instance, "clients", "province=520000 and carrier=2", "--limit", "5")
            assert (shown["total"], len(shown["clients"])) == (40, 5)
            status = json.loads(instance.ran("status", "--json").stdout)
            assert [(each["name"], each["ready"]) for each in status["programs"]] == [
                ("mosquitto", True),
                ("redis", True),
            ]
            await until_asked(lambda: _came(instance) == 200)
            explained = said(instance, "explain", seen[-1]["run"])
            assert (explained["state"], explained["replayed"]) == ("done", True)
        finally:
            agents.send_signal(signal.SIGINT)
            agents.wait(PATIENT_S)
        pid = broker(instance).pid
        assert strikes.runs(pid)
    assert not strikes.runs(pid)


async def as_printed(instance: Instance) -> list[str]:
    """What the page's example of RPC says."""
    (example,) = [each for each in fenced(PAGE, "python") if "asking" in each]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", example), env=instance.environment, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await asyncio.wait_for(process.communicate(), PATIENT_S)
    assert process.returncode == 0
    return said.decode().splitlines()


def _came(instance: Instance) -> int:
    """Clients that came, as Redis has it."""
    return sum(sum(minute["came"].values()) for minute in said(instance, "stats"))


@needs_mosquitto
async def test_tasks_are_kept_and_a_web_side_may_write_them(make: Make) -> None:
    instance = make(fleet=FLEET)
    with instance.running("--with", "fleet"):
        async with swarm(instance, 20):
            await online(instance, 20)
            await asyncio.to_thread(_tasks, instance)
    with instance.running("--with", "fleet"):
        assert [task["name"] for task in said(instance, "task", "ls")] == ["probe-shop", "written"]


def _tasks(instance: Instance) -> None:
    import sqlite3

    shop = said(instance, "task", "add", "probe-shop", "--every", "5m", "--pick", "4", "--class", "enterprise")
    assert (shop["every_minutes"], shop["customer"], shop["pick"]) == (5, "enterprise", 4)
    assert instance.ran("fleet", "task", "add", "probe-shop", "--per-hour", "300").returncode == 1
    said(instance, "task", "add", "spread", "--per-hour", "300")
    assert instance.ran("fleet", "task", "pause", "spread").returncode == 0
    hour = said(instance, "wheel")
    assert sum(slot["due"] for slot in hour["slots"][60:]) == 12 * 4
    assert instance.ran("fleet", "task", "resume", "spread").returncode == 0
    hour = said(instance, "wheel")
    assert sum(slot["due"] for slot in hour["slots"][60:]) == 12 * 4 + 300
    assert instance.ran("fleet", "task", "rm", "spread").returncode == 0
    with sqlite3.connect(instance.folder.path / "fleet.db") as database:
        columns = "instance, name, kind, target, selector, per_hour"
        database.execute(f"INSERT INTO muster_fleet_tasks ({columns}) VALUES ('muster', 'written', 'ping', '', '', 30)")
        database.execute(f"INSERT INTO muster_fleet_tasks ({columns}) VALUES ('muster', 'wrong', 'ping', '', 'a=', 30)")
    database.close()
    read = instance.ran("fleet", "refresh", "--json")
    assert read.returncode == 1
    assert json.loads(read.stdout)["tasks"] == 3
    assert list(json.loads(read.stdout)["refused"]) == ["wrong"]
    assert instance.ran("fleet", "task", "rm", "wrong").returncode == 0


def test_what_is_missing_is_one_line(make: Make) -> None:
    instance = make(fleet=FLEET)
    with instance.running():
        done = instance.ran("fleet", "clients")
        assert done.returncode == UNAVAILABLE
        assert b"muster up --with fleet" in done.stderr


@needs_mosquitto
async def test_a_web_side_measures_and_writes_tasks_over_http(make: Make) -> None:
    instance = make(fleet=FLEET)
    with instance.running("--with", "fleet,http"):
        async with swarm(instance, 20):
            await online(instance, 20)
            known = {action.name: action.text for action in actions().values()}
            scopes = ("measure:ping", "tasks:web-*", "clients:*")
            _, key = await asyncio.to_thread(keys.create, instance.folder.path / KEYS, "web", scopes, known)
            host, port = instance.process("http").bind or ("", 0)
            url, headers = f"http://{host}:{port}/api/v1/fleet", {"x-api-key": key, "idempotency-key": "k1"}
            async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=PATIENT_S, trust_env=False) as client:
                await _web(client)


async def _web(client: httpx2.AsyncClient) -> None:
    asked = {"kind": "ping", "target": "t", "where": "country=CN", "pick": 5}
    answers = [await client.post("/runs", params={"wait": "true"}, json=asked) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    said = answers[0].json()
    assert said == answers[1].json()  # the same key, the same run
    assert (said["state"], len(said["done"]), said["missed"]) == ("done", 5, [])
    assert {(each["client"], each["value"]["ms"]) for each in said["results"]} == {(each, 1.5) for each in said["done"]}
    draws = (await client.get(f"/runs/{said['run']}/draws")).json()
    assert (draws["replayed"], draws["asked"]) == (True, [sorted(said["done"], key=draws["asked"][0].index)])
    begun = await client.post("/runs", json=asked, headers={"idempotency-key": "k2"})
    assert begun.status_code == 202
    for run in (said["run"], begun.json()["run"]):  # one that is over, and one that runs
        seen = [event async for event in streamed(client, run)]
        names = [name for name, _ in seen]
        assert (names[0], names[-1], names.count("result")) == ("asked", "ended", 5)
        assert len(seen[-1][1]["done"]) == 5
    assert (await client.get("/runs/nothing/events")).status_code == 404
    for refused, status in (
        (client.post("/runs", json=asked | {"kind": "dig"}, headers={"idempotency-key": "k3"}), 403),
        (client.post("/runs", json=asked | {"where": "a="}, headers={"idempotency-key": "k4"}), 400),
        (client.post("/runs", json={"kind": "ping"}, headers={"idempotency-key": "k5"}), 400),
        (client.put("/tasks/other", json={"kind": "ping", "per_hour": 30}), 403),
        (client.put("/tasks/web-shop", json={"kind": "ping"}), 400),
        (client.get("/runs/nothing"), 404),
    ):
        assert (await refused).status_code == status
    put = await client.put("/tasks/web-shop", json={"kind": "ping", "per_hour": 30, "where": "province=520000"})
    assert (put.status_code, put.json()["per_hour"]) == (200, 30)
    assert [task["name"] for task in (await client.get("/tasks")).json()["tasks"]] == ["web-shop"]
    assert (await client.get("/clients", params={"where": "province=310000"})).json()["total"] == 10
    assert (await client.delete("/tasks/web-shop")).status_code == 200
    assert (await client.delete("/tasks/web-shop")).status_code == 404


async def streamed(client: httpx2.AsyncClient, run: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """The events of a run: name and data."""
    async with client.stream("GET", f"/runs/{run}/events") as answer:
        assert answer.status_code == 200
        name = ""
        async for line in answer.aiter_lines():
            word, _, rest = line.partition(": ")
            if word == "event":
                name = rest
            elif word == "data":
                yield name, json.loads(rest)


@needs_mosquitto
async def test_whoever_watches_a_run_sees_each_result_once_though_its_scheduler_dies(make: Make) -> None:
    instance = make(fleet=FLEET)
    with instance.running("--with", "fleet,http", "--schedulers", "2"):
        async with swarm(instance, 20):
            await online(instance, 20)
            known = {action.name: action.text for action in actions().values()}
            _, key = await asyncio.to_thread(keys.create, instance.folder.path / KEYS, "web", ("measure:*",), known)
            host, port = instance.process("http").bind or ("", 0)
            url = f"http://{host}:{port}/api/v1/fleet"
            async with httpx2.AsyncClient(
                base_url=url, headers={"x-api-key": key}, timeout=PATIENT_S, trust_env=False
            ) as client:
                asked = {"kind": "ping", "pick": 20, "options": {"work_s": 4.0}}
                run = (await client.post("/runs", json=asked)).json()["run"]
                seen: list[tuple[str, dict[str, Any]]] = []
                async for event in streamed(client, run):
                    seen.append(event)
                    if len(seen) == 1:
                        (leads,) = [name for name in instance.names("scheduler") if instance.status(name)["leads"]]
                        strikes.kill(instance.process(leads).pid)
    results = [said["client"] for name, said in seen if name == "result"]
    assert (len(results), len(set(results))) == (20, 20)
    assert seen[-1][0] == "ended"
    assert sorted(seen[-1][1]["done"]) == sorted(results)


@needs_mosquitto
async def test_a_fleet_runs_on_servers_of_others(
    make: Make, tmp_path: Path, zookeeper: ZooKeeper, served: "Database"
) -> None:
    """An MQTT broker, Redis, ZooKeeper and a database, none of which `muster up` runs."""
    from tests.databases import PASSWORD, QUOTED

    outside = Mosquitto(tmp_path / "outside", ["plane", *(f"c{number}" for number in range(20))])
    kept = Server(tmp_path / "kept")
    outside.configure(lambda text: text.replace("use_username_as_clientid true", "use_username_as_clientid false"))
    await outside.start()
    await kept.running.start()
    try:
        (tmp_path / "plane").write_text(outside.words["plane"])
        names = {
            "mqtt": f"mqtt://plane@{outside.host}:{outside.port}",
            "password_file": str(tmp_path / "plane"),
            "redis": f"redis://{kept.host}:{kept.port}/3",
            "redis_password_file": str(kept.folder / SECRET),
        }
        (tmp_path / "word").write_text(PASSWORD)
        database = {"url": served.url.replace(f":{QUOTED}@", "@"), "password_file": str(tmp_path / "word")}
        instance = make(fleet=FLEET | names, database=database, registry={"url": zookeeper.url})
        with instance.running("--with", "fleet", "--index", "2", "--schedulers", "2"):
            assert not instance.record().programs
            await _measured(instance, outside)
            good = {
                f"broker {outside.host}:{outside.port} takes plane",
                "Redis answers: sessions and counts are stored",
            }

            def found() -> set[str]:  # on a busy machine the doctor may not have waited long enough
                checked = json.loads(instance.ran("doctor", "--json").stdout)["findings"]
                return {each["text"] for each in checked if each["check"] == "fleet" and each["level"] == "ok"}

            await until_asked(lambda: good <= found())
    finally:
        await outside.stop()
        await kept.running.stop()


async def _measured(instance: Instance, outside: Mosquitto) -> None:
    agents = [
        Agent(f"mqtt://{outside.host}:{outside.port}", name, outside.words[name], {"country": ["CN"]}, spread_s=1.0)
        for name in outside.words
        if name.startswith("c")
    ]
    for agent in agents:
        agent.task("ping")(_ping)
    running = [asyncio.create_task(agent.run()) for agent in agents]
    try:
        await online(instance, 20)
        code, seen = await asyncio.to_thread(events, instance, "ping", "--pick", "10")
        assert (code, set(account(seen[-1]).values())) == (0, {"done"})
        leads = [name for name in instance.names("scheduler") if instance.status(name)["leads"]]
        strikes.kill(instance.process(leads[0]).pid)
        code, seen = await asyncio.to_thread(events, instance, "ping", "--pick", "20")
        assert (code, len(seen[-1]["done"])) == (0, 20)
        await until_asked(lambda: _came(instance) == 20)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _ping(target: str, options: dict[str, Any]) -> dict[str, float]:
    return {"ms": 1.5}
