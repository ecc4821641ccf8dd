"""`python -m muster.agent` as a process, at a real mosquitto: measured by the plane, killed, ended, cut off, refused."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import muster.agent
from muster.agent.__main__ import main
from muster.fleet import Agent, BrokerRefused, Failed
from muster_server.systems.fleet import schema
from muster_server.systems.fleet.schema import Order
from muster_server.systems.fleet.selector import parse
from muster_server.systems.start import main as cli
from tests.fleet.agent.test_kinds import says, served
from tests.fleet.mosquitto import Mosquitto, needs_mosquitto
from tests.fleet.test_broker import MINUTE, Plane
from tests.waiting import PATIENT_S, until

OWN = """
import asyncio, os

async def slow(target, options, reach):
    open(target + ".begun", "w").close()
    while not os.path.exists(target):
        await asyncio.sleep(0.01)
    return {"ms": 1.0}
"""


class Running:
    """An agent in a process of its own, in a folder with a kind `slow` that ends once the file of its target is there."""

    def __init__(self, folder: Path, process: asyncio.subprocess.Process) -> None:
        self.folder, self.process = folder, process

    async def ended(self) -> tuple[int, str]:
        async with asyncio.timeout(PATIENT_S):
            _, errors = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, errors.decode()


@contextlib.asynccontextmanager
async def running(broker: Mosquitto, folder: Path, *words: str, name: str = "a1") -> AsyncIterator[Running]:
    (folder / "agent_slow.py").write_text(OWN)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "muster.agent", f"mqtt://{broker.host}:{broker.port}", "--name", name),
        *("--kind", "slow=agent_slow:slow", "--private", "127.0.0.0/8", "--spread", "0.2", *words),
        cwd=folder,
        env={**os.environ, "MUSTER_AGENT_PASSWORD": broker.words[name]},
        stderr=subprocess.PIPE,
    )
    try:
        yield Running(folder, process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


def order(plane: Plane, task: str, kind: str, target: str) -> None:
    """A run of one client that has no other one."""
    plane.dispatcher.run(plane.now, (task, MINUTE), parse(""), 1, 1, kind=kind, target=target)


async def did(plane: Plane, task: str, kind: str, target: str) -> tuple[bool, Any, str]:
    """A run to its end, and its answer."""
    order(plane, task, kind, target)
    await until(lambda: any(each.run[0] == task for each in plane.answers))
    return answer(plane, task)


def ordered(plane: Plane, run: str, target: str) -> None:
    """An order beside those of the plane, for a client that is busy."""
    said = schema.written(Order(run, "slow", target, 5_000, 30_000, {}))
    plane.link.send(schema.down("a1", "task"), said, 1)


def topics(plane: Plane) -> list[str]:
    """The topics of all messages from now on."""
    heard: list[str] = []
    receive = plane.link._receive

    def noted(topic: str, payload: bytes) -> None:
        heard.append(topic)
        receive(topic, payload)

    plane.link._receive = noted
    return heard


def answer(plane: Plane, task: str) -> tuple[bool, Any, str]:
    (found,) = [each.result for each in plane.answers if each.run[0] == task]
    return found.ok, msgspec.json.decode(found.value), found.error


@needs_mosquitto
async def test_an_agent_measures_for_the_plane_and_refuses_other_targets(
    broker: Mosquitto, plane: Plane, tmp_path: Path
) -> None:
    words = ("--mark", "CN_520000_522200_1", "--attribute", "tag=lab", "--kinds", "tcp,http")
    async with served(says(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")) as port, running(broker, tmp_path, *words):
        await until(lambda: plane.index.online == 1)
        record = plane.index.record("a1")
        assert record is not None
        assert record.attributes is not None
        assert record.attributes["tag"] == ["lab"]
        assert record.attributes["province"] == ["520000"]
        ok, value, _ = await did(plane, "open", "tcp", f"127.0.0.1:{port}")
        assert (ok, value["rcvd"], value["dst_addr"]) == (True, 3, "127.0.0.1")
        ok, value, _ = await did(plane, "web", "http", f"http://127.0.0.1:{port}/")
        assert (ok, value["result"][0]["res"]) == (True, 200)
        text = "TargetRefused: 10.0.0.1 is not a public address; to allow its network: --private NETWORK"
        assert await did(plane, "inside", "tcp", f"10.0.0.1:{port}") == (False, None, text)
        text = "LookupError: this client has no task 'ping'"
        assert await did(plane, "none", "ping", "127.0.0.1") == (False, None, text)


@needs_mosquitto
async def test_a_signal_lets_running_orders_end_and_takes_no_other(
    broker: Mosquitto, plane: Plane, tmp_path: Path
) -> None:
    async with running(broker, tmp_path) as agent:
        await until(lambda: plane.index.online == 1)
        order(plane, "slow", "slow", str(tmp_path / "go"))
        await until((tmp_path / "go.begun").exists)
        heard = topics(plane)
        agent.process.send_signal(signal.SIGTERM)
        await until(lambda: "fleet/1/a1/up/bye" in heard)
        ordered(plane, "late@1", str(tmp_path / "late"))
        (tmp_path / "go").touch()
        code, errors = await agent.ended()
    assert code == 0, errors
    assert answer(plane, "slow") == (True, {"ms": 1.0}, "")
    assert not (tmp_path / "late.begun").exists()


@needs_mosquitto
async def test_a_drain_gives_up_after_its_time(broker: Mosquitto, plane: Plane, tmp_path: Path) -> None:
    async with running(broker, tmp_path, "--drain", "0.2") as agent:
        await until(lambda: plane.index.online == 1)
        order(plane, "slow", "slow", str(tmp_path / "never"))
        await until((tmp_path / "never.begun").exists)
        agent.process.send_signal(signal.SIGTERM)
        code, errors = await agent.ended()
    assert code == 0
    assert "orders are given up" in errors


@needs_mosquitto
async def test_an_agent_that_is_killed_comes_back_by_its_name_and_its_run_is_accounted_for(
    broker: Mosquitto, plane: Plane, tmp_path: Path
) -> None:
    async with running(broker, tmp_path) as agent:
        await until(lambda: plane.index.online == 1)
        first = plane.index.record("a1")
        order(plane, "slow", "slow", str(tmp_path / "never"))
        await until((tmp_path / "never.begun").exists)
        agent.process.kill()
        await agent.ended()
    plane.now += 40_000
    plane.dispatcher.tick(plane.now, MINUTE)
    assert [each.missed for each in plane.ended] == [["a1"]]
    async with running(broker, tmp_path):
        await until(lambda: plane.index.record("a1") != first and plane.index.online == 1)
        async with served(says(b"")) as port:
            order(plane, "next", "tcp", f"127.0.0.1:{port}")
            await until(lambda: bool(plane.answers))
    assert answer(plane, "next")[0]


@needs_mosquitto
async def test_a_result_outlives_the_death_of_the_broker(broker: Mosquitto, plane: Plane, tmp_path: Path) -> None:
    async with running(broker, tmp_path):
        await until(lambda: plane.index.online == 1)
        order(plane, "slow", "slow", str(tmp_path / "go"))
        await until((tmp_path / "go.begun").exists)
        broker.kill()
        (tmp_path / "go").touch()
        await until(lambda: bool(plane.ended))
    assert answer(plane, "slow") == (True, {"ms": 1.0}, "")


@needs_mosquitto
async def test_an_order_above_the_limit_gets_no_receipt(broker: Mosquitto, plane: Plane, tmp_path: Path) -> None:
    for words in (("--at-once", "1"), ("--per-minute", "1")):
        folder = tmp_path / words[0][2:]
        folder.mkdir()
        async with running(broker, folder, *words) as agent:
            before = len(plane.answers)
            await until(lambda: plane.index.online == 1)
            order(plane, f"one{words[0][1:]}", "slow", str(folder / "go"))
            await until((folder / "go.begun").exists)
            heard = topics(plane)
            ordered(plane, "two@1", str(folder / "two"))
            ordered(plane, f"one{words[0][1:]}@{MINUTE}", "")  # known: it is confirmed again
            await until(lambda heard=heard: "fleet/1/a1/up/receipt" in heard)  # type: ignore[misc]
            (folder / "go").touch()
            await until(lambda before=before: len(plane.answers) == before + 1)  # type: ignore[misc]
            agent.process.send_signal(signal.SIGTERM)
            code, errors = await agent.ended()
            assert (code, "1 results, 1 orders passed over" in errors) == (0, True), errors
            assert not (folder / "two.begun").exists()
        plane.now += 100_000
        plane.dispatcher.tick(plane.now, MINUTE)


@needs_mosquitto
async def test_of_two_agents_with_one_name_the_later_stays(broker: Mosquitto, plane: Plane, tmp_path: Path) -> None:
    async with running(broker, tmp_path) as first:
        await until(lambda: plane.index.online == 1)
        async with running(broker, tmp_path):
            code, errors = await first.ended()
    assert code == 78
    assert "another process runs as client a1" in errors
    assert "give each agent a name of its own" in errors


@needs_mosquitto
async def test_a_wrong_password_ends_a_client(broker: Mosquitto, tmp_path: Path) -> None:
    agent = Agent(f"mqtt://{broker.host}:{broker.port}", "a1", "wrong", {}, spread_s=0.01)
    with pytest.raises(BrokerRefused, match="the broker refused the connection"):
        async with asyncio.timeout(PATIENT_S):
            await agent.run()
    broker.words["a1"] = "wrong"
    async with running(broker, tmp_path) as process:
        code, errors = await process.ended()
    assert code == 69
    assert "the broker refused the connection" in errors


@needs_mosquitto
async def test_an_agent_closes_a_connection_whose_broker_does_not_answer() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begun.set()
        await reader.read()
        writer.close()
        ended.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server, asyncio.timeout(PATIENT_S):
        _, port = server.sockets[0].getsockname()
        running = asyncio.create_task(Agent(f"mqtt://127.0.0.1:{port}", "a1", "password", {}).run())
        await begun.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await ended.wait()


async def test_what_a_task_does_wrong_is_its_result(broker: Mosquitto, plane: Plane) -> None:
    agent = Agent(f"mqtt://{broker.host}:{broker.port}", "a1", broker.words["a1"], {}, timeout_s=0.2)

    def fails() -> None:
        raise Failed("lost", {"rcvd": 0})

    wrong: dict[str, Callable[[], Any]] = {
        "failed": fails,
        "nan": lambda: float("nan"),
        "bytes": lambda: b"x",
        "long": lambda: "x" * 100_000,
        "late": lambda: asyncio.sleep(60),
    }

    @agent.task("*")
    async def do(target: str, options: dict[str, Any]) -> Any:
        made = wrong[target]()
        return await made if asyncio.iscoroutine(made) else made

    serving = asyncio.create_task(agent.run())
    try:
        await until(lambda: plane.index.online == 1)
        for each in wrong:
            await did(plane, each, "any", each)
    finally:
        serving.cancel()
        await asyncio.wait([serving])
    assert answer(plane, "failed") == (False, {"rcvd": 0}, "lost")
    assert answer(plane, "late") == (False, None, "no result within 0.2 s")
    assert answer(plane, "nan")[2].startswith("the value cannot be written as JSON: ValueError")
    assert answer(plane, "bytes")[2].startswith("the value cannot be written as JSON: TypeError")
    assert answer(plane, "long")[2].startswith("the value is too long: 100,0")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["mqtt://h", "--name", "a b"], "--name: invalid name 'a b'"),
        (["http://h", "--name", "a"], "invalid broker URL"),
        (["mqtt://h"], "required: --name"),
        (["mqtt://h", "--name", "a", "--at-once", "0"], "invalid limits"),
        (["mqtt://h", "--name", "a", "--timeout", "nan"], "invalid limits"),
        (["mqtt://h", "--name", "a", "--drain", "-1"], "invalid --spread or --drain"),
        (["mqtt://h", "--name", "a", "--mark", "CN"], "--mark: invalid mark 'CN'"),
        (["mqtt://h", "--name", "a", "--attribute", "colour=red"], "--attribute: invalid 'colour=red'"),
        (["mqtt://h", "--name", "a", "--kinds", "trace"], "unknown kind 'trace'"),
        (["mqtt://h", "--name", "a", "--only", "10.0.0.0/99"], "--only: invalid network"),
        (["mqtt://h", "--name", "a", "--only", "a b"], "--only: invalid name"),
        (["mqtt://h", "--name", "a", "--password-file", "/no/such"], "--password-file: cannot read /no/such"),
        (["mqtt://h", "--name", "a", "--ca", "/no/such"], "need a broker by mqtts://"),
        (["mqtts://h", "--name", "a", "--ca", "/no/such"], "--ca, --cert, --key: "),
        (["mqtts://h", "--name", "a", "--cert", "/no/such"], "--cert and --key belong together"),
    ],
)
def test_a_wrong_word_is_told_with_code_2(words: list[str], why: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert why in capfd.readouterr().err


def test_the_command_forwards_its_words(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for words, code, text in (
        (["mqtt://h", "--name", "a b"], 2, "--name: invalid name"),
        (["--help"], 0, "Example: muster agent mqtts://mqtt.example.org --name probe-7"),
    ):
        monkeypatch.setattr(sys, "argv", ["muster", "agent", *words])
        assert cli() == code
        shown = capfd.readouterr()
        assert text in " ".join((shown.out + shown.err).split())


def test_the_agent_needs_no_part_of_the_servers() -> None:
    program = (
        "import sys, muster.agent.__main__; print([each for each in sys.modules if each.startswith('muster_server')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENT_S, check=True
    )
    assert done.stdout.strip() == "[]"
    assert muster.agent.__all__


def test_without_its_extra_it_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['dns'] = None\ntry:\n import muster.agent\nexcept ImportError as error:\n print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENT_S, check=True
    )
    assert done.stdout.strip() == "dns is missing; pip install 'muster[agent]'"
