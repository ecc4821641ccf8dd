"""Tasks by real processes: workers, the center, receivers and the HTTP face die in turns, and no task is lost."""

import asyncio
import contextlib
import itertools
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.errors import MusterError
from muster.messages import AsyncMessages, Sent, message
from tests.faults.conftest import Make
from tests.faults.instance import Instance
from tests.faults.test_messages import said
from tests.waiting import PATIENT_S, until, until_asked

LEASE_S = 2.0
SLACK_NS = 1_000_000_000
JOBS = """
import os
import time

from muster.tasks import Tasks

tasks = Tasks(os.environ["URL"], key=os.environ["KEY"])


def note(line):
    with open(os.environ["NOTES"], "ab", 0) as notes:
        notes.write(line.encode() + b"\\n")


@tasks.handler("quick", lease_s=2)
async def quick(number):
    note(f"quick {number} {time.time_ns()}")


@tasks.handler("slow", lease_s=2)
def slow(number, seconds):
    note(f"slow {number} {time.time_ns()}")
    time.sleep(seconds)
    return {"number": number}


@tasks.handler("report")
async def report(number):
    note(f"report {number} {time.time_ns()}")


report.every("nightly", "0 3 * * *", zone="Asia/Shanghai", number=-1)


@tasks.handler("bad", lease_s=2)
async def bad(how):
    note(f"bad {how} {time.time_ns()}")
    if how == "hopeless":
        raise tasks.Hopeless("no such address")
    raise ValueError("the mail server is away")
"""


class Site:
    """An instance, and the programs of a site beside it."""

    def __init__(self, instance: Instance, folder: Path) -> None:
        self.instance, self.folder = instance, folder
        (folder / "jobs.py").write_text(JOBS)
        self.notes = folder / "notes"
        self.notes.touch()
        self.url: str = said(instance, "status", "--json")["systems"]["http"]["url"]
        words = [each for scope in ("send", "work", "show", "change") for each in ("--scope", f"{scope}:*")]
        self.key: str = said(instance, "key", "create", "site", *words)["key"]
        self.workers: list[subprocess.Popen[bytes]] = []

    def topic(self, name: str, *more: str) -> None:
        said(self.instance, "topic", "create", name, "--callback", "pull:", *more)

    def worker(self, *more: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"worker-{len(self.workers)}.log").open("wb") as log:
            made = subprocess.Popen(
                [sys.executable, "-m", "muster.work", "jobs:tasks", *more],
                cwd=self.folder,
                env={**os.environ, "URL": self.url, "KEY": self.key, "NOTES": str(self.notes)},
                stdout=log,
                stderr=log,
            )
        self.workers.append(made)
        return made

    def end(self) -> None:
        for each in self.workers:
            if each.poll() is None:
                each.kill()
            each.wait()

    def noted(self, topic: str) -> dict[str, list[int]]:
        """Times at which each task of a topic was begun."""
        found: dict[str, list[int]] = defaultdict(list)
        for line in self.notes.read_text().splitlines():
            of, what, at = line.split()
            if of == topic:
                found[what].append(int(at))
        return found

    def states(self, topic: str) -> dict[str, Any]:
        """What waits, and what is dead."""
        found: dict[str, Any] = said(self.instance, "topic", "show", topic)
        return found

    async def finished(self, topic: str) -> None:
        """No task of a topic waits or runs."""
        await until_asked(lambda: self.states(topic)["pending"] == 0, PATIENT_S)


@pytest.fixture
def sites(make: Make, tmp_path: Path) -> Callable[[], Any]:
    """Make a site."""

    @contextlib.contextmanager
    def made() -> Iterator[Site]:
        instance = make(systems={"enabled": "messages,http"})
        with instance.running():
            site = Site(instance, tmp_path)
            try:
                yield site
            finally:
                site.end()

    return made


async def sent(messages: AsyncMessages, topic: str, some: list[dict[str, Any]]) -> None:
    """All of them are durable, whatever dies meanwhile."""
    left = some
    async with asyncio.timeout(PATIENT_S):
        while left:
            try:
                answers = await messages.send_many(topic, left)
            except MusterError:
                await asyncio.sleep(0.1)
                continue
            left = [each for each, answer in zip(left, answers, strict=True) if not isinstance(answer, Sent)]


def tasks(count: int, first: int = 0, **more: Any) -> list[dict[str, Any]]:
    """Messages of the handlers."""
    return [message({"number": number, **more}, id=f"t-{number}") for number in range(first, first + count)]


async def test_tasks_are_done_once_retried_buried_and_given_back(sites: Callable[[], Any]) -> None:
    with sites() as site:
        site.topic("quick")
        site.topic("slow")
        site.topic("bad", "--retries", "100ms", "--jitter", "0")
        worker = site.worker("--topics", "quick,slow=1/4,bad", "--at-once", "4")
        async with AsyncMessages(site.url, key=site.key) as messages:
            await sent(messages, "quick", tasks(200))
            await sent(messages, "slow", tasks(1, seconds=4 * LEASE_S))  # it needs extensions
            await sent(messages, "bad", [message({"how": how}, id=how) for how in ("hopeless", "away")])
            await sent(messages, "bad", [message([1, 2], id="no-task"), message({"what": 1}, id="other")])
            await site.finished("quick")
            await site.finished("bad")
            await site.finished("slow")
            assert {each: len(times) for each, times in site.noted("quick").items()} == {
                str(number): 1 for number in range(200)
            }
            assert len(site.noted("slow")["0"]) == 1, "its lease was extended"
            shown = await messages.get("slow", "t-0")
            assert shown is not None
            assert (shown.state, shown.result) == ("done", {"number": 0})
        assert {how: len(times) for how, times in site.noted("bad").items()} == {"hopeless": 1, "away": 2}
        for id, why in (
            ("hopeless", "Hopeless: no such address"),
            ("away", "ValueError: the mail server is away"),
            ("no-task", "Hopeless: the message is not a task: its body is not a JSON object of arguments by name"),
        ):
            letter = said(site.instance, "delay", "dead", "show", id, "--topic", "bad")
            assert letter["answer"] == why
        worker.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(worker.wait, PATIENT_S) == 0


async def test_a_worker_that_drains_finishes_what_runs_and_gives_back_the_rest(sites: Callable[[], Any]) -> None:
    with sites() as site:
        site.topic("slow")
        worker = site.worker("--topics", "slow", "--at-once", "1")
        async with AsyncMessages(site.url, key=site.key) as messages:
            await sent(messages, "slow", tasks(2, seconds=1.0))
            await until(lambda: bool(site.noted("slow")))
            worker.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(worker.wait, PATIENT_S) == 0
            (first,) = site.noted("slow")
            found = [await messages.get("slow", f"t-{number}") for number in range(2)]
            states = {each.id: (each.state, each.attempts) for each in found if each is not None}
            assert states[f"t-{first}"] == ("done", 1)
            # Given back; leased to a request that the signal cut off, so that its lease runs out; or never asked for.
            assert states[f"t-{1 - int(first)}"] in {("retry", 0), ("firing", 1), ("scheduled", 0)}


async def test_a_recurring_task_waits_for_its_next_time_whatever_restarts(sites: Callable[[], Any]) -> None:
    with sites() as site:
        site.topic("report")
        listed = ("topic", "recurring", "ls", "report")
        for _ in range(2):
            worker = site.worker("--topics", "report")
            await until_asked(lambda: len(said(site.instance, *listed)) == 1, PATIENT_S)
            worker.send_signal(signal.SIGTERM)
            await asyncio.to_thread(worker.wait, PATIENT_S)
            await site.instance.renew(site.instance.names("messages-admin")[0])
        (entry,) = said(site.instance, *listed)
        assert (entry["cron"], entry["zone"], entry["body"]) == ("0 3 * * *", "Asia/Shanghai", '{"number":-1}')
        (waits,) = said(site.instance, "delay", "ls", "report")["messages"]
        assert (waits["due_at"], waits["id"].startswith("nightly:")) == (entry["last"], True)
        done = site.instance.ran("topic", "rm", "report")
        assert (done.returncode, b"recurring message nightly" in done.stderr) == (1, True)
        assert site.instance.ran("topic", "recurring", "rm", "report", "nightly").returncode == 0
        assert site.states("report")["pending"] == 0
        wrong = site.instance.ran("topic", "recurring", "set", "report", "x", "61 3 * * *")
        assert (wrong.returncode, b"cron" in wrong.stderr) == (2, True)


async def test_the_words_of_recurring_messages_set_list_and_remove(sites: Callable[[], Any]) -> None:
    with sites() as site:
        site.topic("report")
        site.topic("mail")
        words = ("topic", "recurring")
        made = ("set", "report", "nightly", "0 3 * * *", "--zone", "Asia/Shanghai", "--data", '{"number": 1}')
        (first,) = said(site.instance, *words, *made)
        assert (first["cron"], first["zone"], first["missed"]) == ("0 3 * * *", "Asia/Shanghai", "once")
        assert said(site.instance, *words, *made) == [first], "set again, nothing changes"
        said(site.instance, *words, "set", "mail", "digest", "*/5 * * * *", "--missed", "all")
        assert [each["name"] for each in said(site.instance, *words, "ls", "report")] == ["nightly"]
        assert sorted(each["name"] for each in said(site.instance, *words, "ls")) == ["digest", "nightly"]
        table = site.instance.ran(*words, "ls").stdout.decode()
        assert all(text in table for text in ("nightly", "digest", "Asia/Shanghai", "*/5 * * * *"))
        for wrong, code, why in (
            (("set", "report", "x", "0 3 * * *", "--missed", "sometimes"), 2, "sometimes"),
            (("set", "report", "x", "0 3 * * *", "--data", "{"), 2, "invalid --data"),
            (("set", "report", "x", "0 3 * * *", "--zone", "Moon/Base"), 2, "zone"),
            (("set", "nowhere", "x", "0 3 * * *"), 1, "nowhere"),
            (("rm", "report", "absent"), 1, "absent"),
            (("rm", "report"), 2, "NAME"),
        ):
            done = site.instance.ran(*words, *wrong)
            assert (done.returncode, why in done.stderr.decode()) == (code, True), (wrong, done)
        assert site.instance.ran(*words, "rm", "report", "nightly").returncode == 0
        assert site.instance.ran(*words, "rm", "report", "nightly").returncode == 1
        assert [each["name"] for each in said(site.instance, *words, "ls")] == ["digest"]


async def test_a_worker_that_stood_still_has_lost_its_task_and_another_one_did_it(sites: Callable[[], Any]) -> None:
    with sites() as site:
        site.topic("slow")
        first = site.worker("--topics", "slow", "--at-once", "1")
        async with AsyncMessages(site.url, key=site.key) as messages:
            await sent(messages, "slow", tasks(1, seconds=0.5))
            await until(lambda: bool(site.noted("slow")))
            first.send_signal(signal.SIGSTOP)
            site.worker("--topics", "slow", "--at-once", "1")
            await site.finished("slow")
            first.send_signal(signal.SIGCONT)
            assert len(site.noted("slow")["0"]) >= 2, "a lease of 2 s can run out on a busy machine too"
            first.send_signal(signal.SIGTERM)
            await asyncio.to_thread(first.wait, PATIENT_S)
        assert re.search(rb"[1-9]\d* lost", (site.folder / "worker-0.log").read_bytes())
        minutes = said(site.instance, "topic", "stats", "slow")["minutes"]
        assert sum(minute["fired"] for minute in minutes) == 1, "it counts once"


@pytest.mark.parametrize(
    ("kills", "count"), [(6, 3_000), pytest.param(300, 100_000, marks=pytest.mark.soak)], ids=["short", "long"]
)
async def test_no_task_is_lost_whatever_is_killed(
    sites: Callable[[], Any], kills: int, count: int, figures: Callable[..., None]
) -> None:
    dice = random.Random(7)
    with sites() as site:
        site.topic("quick")
        for _ in range(2):
            site.worker("--topics", "quick")
        dead: list[tuple[int, int]] = []
        names = [site.instance.names(role)[0] for role in ("center", "receive", "http")]
        turns = itertools.cycle(["worker", *names])
        async with AsyncMessages(site.url, key=site.key) as messages:
            step = max(1, count // kills)
            for first in range(0, count, step):
                some = tasks(min(step, count - first), first)
                sending = asyncio.gather(
                    *(sent(messages, "quick", some[at : at + 500]) for at in range(0, len(some), 500))
                )
                await asyncio.sleep(dice.uniform(0.0, 0.3))
                name, killed_at = next(turns), time.time_ns()
                if name == "worker":
                    victim = dice.choice([each for each in site.workers if each.poll() is None])
                    victim.kill()
                    await asyncio.to_thread(victim.wait)
                    site.worker("--topics", "quick")
                else:
                    await site.instance.renew(name)
                dead.append((killed_at, time.time_ns()))
                await sending
            await site.finished("quick")
        begun = site.noted("quick")
        assert begun.keys() == {str(number) for number in range(count)}, "none is lost"
        twice = {number: times for number, times in begun.items() if len(times) > 1}
        for number, times in twice.items():
            under_way = any(
                killed - SLACK_NS <= times[0] <= back + int(LEASE_S * 1e9) + SLACK_NS for killed, back in dead
            )
            assert under_way, f"{number} was done twice, at {times}, and nothing was killed then: {dead}"
        assert site.states("quick")["dead"] == 0
        figures(kills=kills, tasks=count, twice=len(twice))
