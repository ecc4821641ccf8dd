"""`examples/taskiq`: taskiq's own worker over leases of a face that answers as scripted."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from muster.messages import body_of
from tests.documents import ROOT
from tests.fakes.scripted import Asked, Scripted, problem, said
from tests.waiting import PATIENT_S, until

EXAMPLE: Final = ROOT / "examples" / "taskiq"
JOBS: Final = """
import asyncio
import os

from muster_broker import MusterBroker

broker = MusterBroker(os.environ["URL"], key="k", topic="jobs", lease_s=0.3)


@broker.task(task_name="mail")
async def mail(to: str, seconds: float = 0.0) -> None:
    print("to", to, flush=True)
    await asyncio.sleep(seconds)


async def send() -> None:
    await broker.startup()
    for number in range(3):
        await mail.kiq(f"bo-{number}")
    await mail.kicker().with_task_id("late").with_labels(delay=2).kiq("ann")
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(send())
"""


class Schedule:
    """Sent messages are leased once, in order. `extended`: leases that were made longer."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.left: list[dict[str, Any]] = []
        self.done: list[str] = []
        self.extended: list[str] = []
        self.failures = 1

    async def __call__(self, asked: Asked) -> bytes:
        if asked.path.endswith("/messages"):
            self.sent.append(asked.document)
            self.left.append(asked.document)
            return said({"id": asked.document["id"], "due_at": 0, "state": "scheduled"})
        if asked.path.endswith("/lease"):
            if self.failures:
                self.failures -= 1
                return problem(503, "unavailable")
            if not self.left:
                await asyncio.sleep(3_600)
            some, self.left = self.left, []
            return said({"messages": [each | {"lease": f"{each['id']}+0"} for each in some]})
        ends = asked.document
        if "extend" in ends:
            names = [each["lease"] for each in ends["extend"]]
            self.extended += names
            return said({"extend": [{"outcome": "done", "lease": f"{name}+"} for name in names]})
        self.done += [lease.partition("+")[0] for lease in ends["done"]]
        return said({"done": [{"outcome": "done"} for _ in ends["done"]]})


def environment(face: Scripted) -> dict[str, str]:
    return {**os.environ, "URL": face.url, "PYTHONPATH": os.pathsep.join([str(EXAMPLE), *filter(None, sys.path)])}


async def test_taskiq_runs_tasks_of_a_topic_and_ends_each_once(tmp_path: Path) -> None:
    pytest.importorskip("taskiq")
    (tmp_path / "site_tasks.py").write_text(JOBS)
    schedule = Schedule()
    async with Scripted(schedule) as face:
        sender = await asyncio.create_subprocess_exec(
            sys.executable, "site_tasks.py", cwd=tmp_path, env=environment(face), stderr=subprocess.PIPE
        )
        async with asyncio.timeout(PATIENT_S):
            _, errors = await sender.communicate()
        assert sender.returncode == 0, errors.decode()
        assert [each.get("in_ms") for each in schedule.sent] == [None, None, None, 2_000]
        assert schedule.sent[3]["id"] == "late"
        assert b"bo-0" in body_of(schedule.sent[0])
        worker = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-m",
                "taskiq",
                "worker",
                "site_tasks:broker",
                "--workers",
                "1",
                "--no-configure-logging",
            ),
            cwd=tmp_path,
            env=environment(face),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            await until(lambda: len(schedule.done) == 4 or worker.returncode is not None)
            worker.send_signal(signal.SIGTERM)
            async with asyncio.timeout(PATIENT_S):
                shown, _ = await worker.communicate()
        finally:
            if worker.returncode is None:
                os.killpg(worker.pid, signal.SIGKILL)
                await worker.wait()
        assert sorted(schedule.done) == sorted(each["id"] for each in schedule.sent), shown.decode()
        assert sorted(line for line in shown.decode().splitlines() if line.startswith("to ")) == [
            "to ann", "to bo-0", "to bo-1", "to bo-2",
        ]  # fmt: skip


async def test_a_lease_is_extended_while_its_task_runs_and_its_last_name_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("taskiq")
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from taskiq import BrokerMessage

    module = __import__("muster_broker")
    schedule = Schedule()
    schedule.failures = 0
    async with Scripted(schedule) as face:
        broker = module.MusterBroker(face.url, key="k", topic="jobs", lease_s=0.03)
        await broker.startup()
        await broker.kick(BrokerMessage(task_id="a", task_name="x", message=b"\x00 not text", labels={}))
        taken = broker.listen()
        message = await anext(taken)
        assert message.data == b"\x00 not text"
        await until(lambda: len(schedule.extended) >= 3)
        await message.ack()
        assert schedule.done == ["a"]
        last = [each for each in face.asked if each.path.endswith("/leases")][-1].document
        assert last["done"][0].startswith("a+0++"), "the name of the last extension"
        await message.ack()
        assert schedule.done == ["a"], "once"
        schedule.left = []
        await taken.aclose()
        await broker.shutdown()
