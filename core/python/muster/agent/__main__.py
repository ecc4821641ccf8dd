"""`python -m muster.agent`, and `muster agent` of the server: a client of a fleet that measures.

SIGTERM and SIGINT end it: it takes no further order, finishes the running ones, and sends their results. Exit codes: 0
ok, 1 failure, 2 a wrong word, 69 the broker or the plane refuses it, 78 another process runs with its name.
"""

import argparse
import asyncio
import logging
import os
import re
import signal
import ssl
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from ..errors import Invalid, MusterError
from ..fleet import Agent, BrokerRefused, ClientRefused, Superseded
from .kinds import BUILT_IN, ENTRY_POINTS, named_kinds
from .reach import Reach
from .serving import AT_ONCE, PER_MINUTE, TIMEOUT_S, made

FAILURE, USAGE, UNAVAILABLE, BAD_CONFIG = 1, 2, 69, 78
NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
PASSWORD: Final = "MUSTER_AGENT_PASSWORD"
DRAIN_S: Final = 25.0
SETTLES_S, AGAIN_S = 3.0, 0.5
AT_ONCE_MAX: Final = 1_000
MARK: Final = ("country", "province", "city", "carrier")
ATTRIBUTES: Final = ("device", *MARK, "version", "tag")


def main(words: Sequence[str] | None = None, prog: str = "python -m muster.agent") -> int:
    """Run one agent, and return its exit code."""
    try:
        chosen = _parser(prog).parse_args(words)
    except SystemExit as end:
        return int(end.code or 0)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        return asyncio.run(_run(chosen))
    except (BrokerRefused, ClientRefused) as error:
        return _fail(str(error), UNAVAILABLE)
    except Superseded as error:
        return _fail(f"{error}; give each agent a name of its own", BAD_CONFIG)
    except Invalid as error:
        return _fail(str(error), USAGE)
    except MusterError as error:
        return _fail(str(error), FAILURE)


def _fail(words: str, code: int) -> int:
    print(f"muster: {words}", file=sys.stderr)
    return code


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Measure for a fleet from where this machine is (docs/fleet.md).",
        epilog=f"Example: {prog} mqtts://mqtt.example.org --name probe-7 --mark CN_520000_522200_1",
    )
    add = parser.add_argument
    add("url", metavar="URL", help="The broker: mqtt://HOST:PORT or mqtts://HOST:PORT, several hosts with commas.")
    add("--name", required=True, help="The client's name at the broker.")
    add("--password-file", type=Path, metavar="FILE", help=f"Its password, one line; else ${PASSWORD}.")
    add("--ca", type=Path, metavar="FILE", help="Trust the certificates of this file [those of the system].")
    add("--cert", type=Path, metavar="FILE", help="The client's certificate, instead of a password.")
    add("--key", type=Path, metavar="FILE", help="Its key.")
    add("--mark", default="", help="Where it is: COUNTRY_PROVINCE_CITY_CARRIER.")
    add(
        "--attribute", action="append", default=[], metavar="NAME=VALUE", help="An attribute for selectors; repeatable."
    )
    add("--kinds", default="", help=f"Kinds to measure, with commas [{','.join(BUILT_IN)}, and installed ones].")
    add(
        "--kind",
        action="append",
        default=[],
        metavar="NAME=MODULE:FUNCTION",
        help=f"A kind of your own; repeatable. Packages add some by the entry points {ENTRY_POINTS}.",
    )
    add(
        "--only",
        action="append",
        default=[],
        metavar="TARGET",
        help="Measure only this: NAME, *.NAME or NETWORK; repeatable [any].",
    )
    add(
        "--private",
        action="append",
        default=[],
        metavar="NETWORK",
        help="Allow a network that is not public, for example 10.0.0.0/8; repeatable [none].",
    )
    add("--at-once", type=int, default=AT_ONCE, metavar="N", help=f"Limit of measurements at once [{AT_ONCE}].")
    add(
        "--per-minute",
        type=int,
        default=PER_MINUTE,
        metavar="N",
        help=f"Limit of measurements per minute [{PER_MINUTE}].",
    )
    add(
        "--timeout", type=float, default=TIMEOUT_S, metavar="SECONDS", help=f"Limit of one measurement [{TIMEOUT_S:g}]."
    )
    add("--spread", type=float, default=5.0, metavar="SECONDS", help="Come back after a random part of this [5].")
    add(
        "--drain",
        type=float,
        default=DRAIN_S,
        metavar="SECONDS",
        help=f"Limit for running measurements to finish at the end [{DRAIN_S:g}].",
    )
    return parser


def _agent(chosen: argparse.Namespace) -> Agent:
    """The agent of these words. Raises `Invalid`."""
    if not NAME.fullmatch(chosen.name):
        raise Invalid(f"--name: invalid name {chosen.name!r:.80} (expected 1 to 64 letters, digits, '_' and '-')")
    if not 1 <= chosen.at_once <= AT_ONCE_MAX or chosen.per_minute < 1 or not 0 < chosen.timeout <= 3_600:
        raise Invalid(f"invalid limits (expected --at-once 1 to {AT_ONCE_MAX}, --per-minute from 1, --timeout to 3600)")
    if not 0 <= chosen.spread <= 3_600 or not 0 <= chosen.drain <= 3_600:
        raise Invalid("invalid --spread or --drain (expected 0 to 3600 seconds)")
    kinds = named_kinds(filter(None, chosen.kinds.split(",")), chosen.kind)
    reach = Reach(chosen.only, chosen.private)
    try:
        return made(
            chosen.url,
            chosen.name,
            _password(chosen),
            _attributes(chosen),
            kinds,
            reach,
            at_once=chosen.at_once,
            per_minute=chosen.per_minute,
            timeout_s=chosen.timeout,
            spread_s=chosen.spread,
            tls=_tls(chosen),
        )
    except MusterError:
        raise
    except ValueError as error:
        raise Invalid(str(error)) from None


def _password(chosen: argparse.Namespace) -> str:
    if chosen.password_file is None:
        return os.environ.get(PASSWORD, "")
    try:
        return str(chosen.password_file.read_text(encoding="utf-8")).strip()
    except (OSError, UnicodeError) as error:
        raise Invalid(f"--password-file: cannot read {chosen.password_file}: {error}") from None


def _tls(chosen: argparse.Namespace) -> ssl.SSLContext | None:
    if (chosen.cert is None) != (chosen.key is None):
        raise Invalid("--cert and --key belong together")
    if not chosen.url.startswith("mqtts://"):
        if chosen.ca or chosen.cert:
            raise Invalid("--ca, --cert and --key need a broker by mqtts://")
        return None
    try:
        context = ssl.create_default_context(cafile=chosen.ca)
        if chosen.cert is not None:
            context.load_cert_chain(chosen.cert, chosen.key)
    except (OSError, ssl.SSLError) as error:
        raise Invalid(f"--ca, --cert, --key: {error}") from None
    return context


def _attributes(chosen: argparse.Namespace) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    if chosen.mark:
        parts = chosen.mark.split("_")
        if len(parts) != len(MARK) or not all(parts):
            raise Invalid(f"--mark: invalid mark {chosen.mark!r:.80} (expected COUNTRY_PROVINCE_CITY_CARRIER)")
        found = {name: [part] for name, part in zip(MARK, parts, strict=True)}
    for each in chosen.attribute:
        name, equals, value = each.partition("=")
        if name not in ATTRIBUTES or not (equals and 0 < len(value) <= 64):
            raise Invalid(f"--attribute: invalid {each!r:.80} (expected NAME=VALUE with {', '.join(ATTRIBUTES)})")
        found.setdefault(name, []).append(value)
    return found


async def _run(chosen: argparse.Namespace) -> int:
    agent = _agent(chosen)
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    # one thread for each measurement that may wait for a name server
    loop.set_default_executor(ThreadPoolExecutor(chosen.at_once, "resolve"))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    log = logging.getLogger("muster.agent")
    log.info("client %s of %s", agent.name, chosen.url)
    running, stopped = asyncio.create_task(_settled(agent)), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([running, stopped], return_when=asyncio.FIRST_COMPLETED)
        if not running.done() and not await agent.drain(chosen.drain):
            log.warning("orders are given up: they did not end within %g s", chosen.drain)
    finally:
        for task in (running, stopped):
            task.cancel()
        await asyncio.wait([running, stopped])
        log.info("%d results, %d orders passed over", agent.done, agent.passed_over)
    if not running.cancelled():
        running.result()
    return 0


async def _settled(agent: Agent) -> None:
    """Run an agent; at first, a password that the broker has not read yet is tried again."""
    until = time.monotonic() + SETTLES_S
    while True:
        try:
            await agent.run()
        except BrokerRefused:
            if time.monotonic() >= until:
                raise
            await asyncio.sleep(AGAIN_S)


if __name__ == "__main__":
    sys.exit(main())
