"""`muster fleet enroll CLIENT…`, and `muster fleet agents`: simulated clients of the local instance."""

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from muster.errors import MusterError
from muster.fleet import Agent, BrokerRefused
from muster.instance import pid_namespace
from muster_server.control.cluster import instance
from muster_server.control.cluster.instance import Beside
from muster_server.control.config import load as config
from muster_server.control.errors import UNAVAILABLE, USAGE, UserError
from muster_server.control.host.addresses import address_text
from muster_server.control.host.openfiles import FILES
from muster_server.control.terminal import common
from muster_server.control.terminal.words import say
from muster_server.systems.fleet.broker import NAME, BrokerError
from muster_server.systems.fleet.broker import enroll as enrolled
from muster_server.systems.fleet.selector import MARK

DEMO: Final = (
    "CN_520000_522200_1",
    "CN_520000_520100_1",
    "CN_520000_520100_2",
    "CN_310000_310100_1",
    "CN_440000_440300_3",
)
SETTLES_S: Final = 10.0
LOOK_S: Final = 0.2


def local(config_file: Path | None) -> tuple[Path, Beside]:
    """The folder and the process of the local mosquitto. Raises `UserError`."""
    settings = config.load(config_file).config
    place = instance.folder(settings)
    record = instance.find(place)
    for program in record.programs or ():
        if program.name == NAME:
            if record.pid_namespace not in {"", pid_namespace()}:
                raise UserError(
                    "mosquitto runs in another PID namespace; enroll clients in that namespace", UNAVAILABLE
                )
            return place.program(NAME), program
    raise UserError("this instance runs no mosquitto; enroll clients at their own broker", UNAVAILABLE)


def admitted(config_file: Path | None, names: Sequence[str]) -> tuple[dict[str, str], tuple[str, int]]:
    """Make new passwords for these clients, which mosquitto reads at once; returns them and its address. Raises
    `UserError`."""
    folder, program = local(config_file)
    try:
        words = enrolled(folder, names)
    except BrokerError as error:
        raise UserError(str(error), USAGE) from None
    if program.pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(program.pid, signal.SIGHUP)
    return words, program.bind


def enroll(config_file: Path | None, names: Sequence[str], as_json: bool) -> int:
    """Print name and password of each client."""
    words, bind = admitted(config_file, names)
    url = f"mqtt://{address_text(*bind)}"
    if as_json:
        common.print_json({"url": url, "clients": words})
    else:
        say(f"they connect to {url}")
        for name, word in words.items():
            print(f"{name} {word}")
    return 0


async def agents(
    config_file: Path | None, count: int, marks: str, prefix: str, silent: str, seconds: float | None
) -> int:
    """Run the clients until the time is over or a signal comes."""
    chance = _chance(silent)
    dealt = _marks(marks)
    _raise_limit(FILES + count)
    names = [f"{prefix}-{number:05d}" for number in range(count)]
    words, bind = admitted(config_file, names)
    url = f"mqtt://{address_text(*bind)}"
    made = [_agent(url, name, words[name], dealt[number % len(dealt)], chance) for number, name in enumerate(names)]
    began = time.monotonic()
    running = [asyncio.create_task(_kept(agent, began)) for agent in made]
    try:
        async with asyncio.timeout(seconds):
            online = 0
            while online < count:
                await _any_failed(running)
                online = sum(agent.connected for agent in made)
            say(f"{common.counted(count, 'client')} at {url}, all connected after {time.monotonic() - began:.1f} s")
            say("Ctrl-C stops them")
            while True:
                await _any_failed(running)
    except TimeoutError:
        return 0
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        say(f"{sum(agent.done for agent in made)} orders done")


async def _any_failed(running: Sequence[asyncio.Task[None]]) -> None:
    """Wait a moment; raise the error that ended a client."""
    over, _ = await asyncio.wait(running, timeout=LOOK_S, return_when=asyncio.FIRST_EXCEPTION)
    for task in over:
        try:
            task.result()
        except MusterError as error:
            raise UserError(str(error)) from None


async def _kept(agent: Agent, began: float) -> None:
    """Run a client; a password that the broker has not read yet is retried."""
    while True:
        try:
            await agent.run()
        except MusterError as error:
            if not isinstance(error, BrokerRefused) or time.monotonic() - began > SETTLES_S:
                raise
            await asyncio.sleep(random.uniform(0.2, 1.0))


class Simulated(Agent):
    """A client that answers everything after a random time, or never answers."""

    silent = 0.0

    def _order(self, run: str, kind: str, target: str, options: dict[str, Any]) -> None:
        if random.random() >= self.silent:
            super()._order(run, kind, target, options)


def _agent(url: str, name: str, word: str, mark: dict[str, list[str]], silent: float) -> Agent:
    agent = Simulated(url, name, word, mark)
    agent.silent = silent
    agent.task("*")(_answer)
    return agent


async def _answer(target: str, options: dict[str, Any]) -> dict[str, float]:
    milliseconds = random.lognormvariate(3, 0.5)
    await asyncio.sleep(milliseconds / 1000)
    return {"ms": round(milliseconds, 2)}


def _marks(text: str) -> list[dict[str, list[str]]]:
    """Attributes of each mark. Raises `UserError`."""
    found: list[dict[str, list[str]]] = []
    for mark in DEMO if text == "demo" else text.split(","):
        parts = mark.split("_")
        if len(parts) not in {len(MARK) - 1, len(MARK)} or not all(parts):
            raise UserError(
                f"--marks: invalid mark {mark!r} (expected COUNTRY_PROVINCE_CITY_CARRIER, optionally with "
                "DEVICE_ in front)",
                USAGE,
            )
        found.append({name: [part] for name, part in zip(MARK[-len(parts) :], parts, strict=True)})
    return found


def _chance(text: str) -> float:
    try:
        chance = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        chance = -1.0
    if not 0 <= chance <= 1:
        raise UserError(f"--silent: invalid probability {text!r} (use 0.05 or 5%)", USAGE)
    return chance


def _raise_limit(files: int) -> None:
    """Raise the limit of open files; each client needs one. Raises `UserError`."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY != hard < files:
        raise UserError(f"the limit of {hard} open files is too low; raise it: ulimit -n {files}")
    if resource.RLIM_INFINITY != soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
