"""One script of commands to Centrifugo and to an edge, and their replies beside each other.

Needs the program `centrifugo`: `go install github.com/centrifugal/centrifugo/v6@v6.9.1`, in PATH or in `~/go/bin`. What each
server makes for itself is not compared: ids, epochs, first offsets, times.
"""

import asyncio
import contextlib
import json
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.edge.role import Role, role
from tests.edge.stranger import PATH, Stranger, frame, stranger
from tests.ports import free_ports
from tests.waiting import PATIENT_S

SETTINGS: Final = {
    "client": {"insecure": True, "allowed_origins": ["*"]},
    "log": {"level": "error"},
    "channel": {
        "without_namespace": {
            "presence": True,
            "history_size": 300,
            "history_ttl": "300s",
            "force_positioning": True,
            "force_recovery": True,
            "allow_subscribe_for_client": True,
            "allow_publish_for_client": True,
            "allow_history_for_client": True,
            "allow_presence_for_client": True,
        }
    },
}
OWN: Final = {"client", "version", "session", "node", "time", "epoch", "offset", "ttl", "expires", "user", "data_epoch"}
"""Fields whose values are a server's own."""
Ask = Callable[[Any], Awaitable[Any]]
STAYS: Final = {"close": 3501}, {"error": 107}
DIFFERENT: Final[dict[str, tuple[Any, Any]]] = {
    "rpc": ({"error": 108}, {"error": 104}),  # it has calls of its own, and this is none
    "publish without a channel": STAYS,
    "history without a channel": STAYS,
    "presence without a channel": STAYS,
    "sub_refresh of a foreign room": ({"error": 103}, {"error": 107}),
    "nothing": ({"close": 3501}, {"publish": {}}),  # an empty message is passed over
}
"""Steps that differ, with both outcomes: `docs/edge.md` tells users of those that matter to them."""


def normal(told: Any) -> Any:
    """A reply without what a server makes for itself."""
    match told:
        case {"error": {"code": code}}:
            return {"error": code}
        case dict():
            return {key: normal(value) for key, value in told.items() if key not in OWN | {"id"}}
        case list():
            return [normal(each) for each in told]
        case _:
            return told


class Script:
    """One client, its steps and their outcomes."""

    def __init__(self, url: str, tokens: tuple[str, str]) -> None:
        self._url, self._tokens = url, tokens
        self.outcomes: dict[str, Any] = {}

    @contextlib.asynccontextmanager
    async def client(self, which: int = 0) -> AsyncIterator[tuple[Stranger, Ask]]:
        """A client that has connected."""
        async with stranger(self._url) as made:
            assert "connect" in await made.connect(self._tokens[which])
            number = 1

            async def ask(command: Any) -> Any:
                nonlocal number
                number += 1
                made.say({"id": number} | command)
                return await made.reply(number)

            yield made, ask

    async def run(self) -> None:
        """All steps."""
        await self._session()
        await self._rooms()
        await self._mistakes()

    async def _session(self) -> None:
        async with stranger(self._url) as made:
            told = await made.connect(self._tokens[0])
            self.outcomes["connect"] = normal(told)
            made.say({"id": 2, "connect": {"token": self._tokens[0]}})
            self.outcomes["a second connect"] = await made.reply(2)

    async def _rooms(self) -> None:
        room, found = "differential", self.outcomes
        async with self.client() as (one, ask), self.client(1) as (_, other):
            found["subscribe"] = normal(await ask({"subscribe": {"channel": room}}))
            found["subscribe twice"] = normal(await ask({"subscribe": {"channel": room}}))
            for number in range(5):
                found[f"publish {number}"] = normal(await other({"publish": {"channel": room, "data": {"n": number}}}))
            pushed = [(await one.message())["push"] for _ in range(5)]
            found["publications"] = [(push["channel"], push["pub"]["data"]) for push in pushed]
            found["offsets"] = [push["pub"]["offset"] - pushed[0]["pub"]["offset"] for push in pushed]
            all_of_it = (await ask({"history": {"channel": room, "limit": 100}}))["history"]
            since = {"offset": all_of_it["publications"][1]["offset"], "epoch": all_of_it["epoch"]}
            asked: dict[str, dict[str, Any]] = {
                "all": {"limit": 100},
                "none": {"limit": 0},
                "two": {"limit": 2},
                "since": {"limit": 2, "since": since},
                "reverse": {"limit": 2, "reverse": True},
                "since and reverse": {"limit": 9, "since": since, "reverse": True},
                "an epoch of another": {"limit": 1, "since": since | {"epoch": "xxxx"}},
            }
            for name, more in asked.items():
                found[f"history, {name}"] = self._history(await ask({"history": {"channel": room} | more}))
            found["presence"] = len((await ask({"presence": {"channel": room}}))["presence"]["presence"])
            found["presence_stats"] = normal(await ask({"presence_stats": {"channel": room}}))
            found["unsubscribe"] = normal(await ask({"unsubscribe": {"channel": room}}))
            found["unsubscribe twice"] = normal(await ask({"unsubscribe": {"channel": room}}))
            found["publish to nobody"] = normal(await other({"publish": {"channel": room, "data": "unseen"}}))
            recovers = {"channel": room, "recover": True, **since}
            found["recover"] = self._publications(await ask({"subscribe": recovers}))
            await ask({"unsubscribe": {"channel": room}})
            unknown = recovers | {"epoch": "xxxx"}
            found["recover from an unknown epoch"] = self._publications(await ask({"subscribe": unknown}))
            await ask({"unsubscribe": {"channel": room}})
            found["refuse what is not recovered"] = normal(await ask({"subscribe": unknown | {"flag": 2}}))

    async def _mistakes(self) -> None:
        found = self.outcomes
        for name, command in {
            "rpc": {"rpc": {"method": "unknown", "data": {}}},
            "publish without a channel": {"publish": {"data": {}}},
            "publish without data": {"publish": {"channel": "differential"}},
            "history without a channel": {"history": {}},
            "presence without a channel": {"presence": {}},
            "sub_refresh of a foreign room": {"sub_refresh": {"channel": "nowhere", "token": "x"}},
        }.items():
            found[name] = await self._alone(command)
        for name, payload in {
            "no JSON": b"{",
            "an array": b"[]",
            "a command without a method": b'{"id": 7}',
            "a command without an id": b'{"publish": {"channel": "a", "data": 1}}',
            "nothing": b"",
        }.items():
            async with self.client() as (made, _):
                made.writer.write(frame(payload))
                made.say({"id": 9, "publish": {"channel": "behind", "data": 1}})
                found[name] = normal(await made.reply(9))
        async with stranger(self._url) as made:
            await made.upgrade()
            made.say({"id": 1, "publish": {"channel": "early", "data": 1}})
            found["before connect"] = await made.reply(1)

    async def _alone(self, command: Any) -> Any:
        """The reply to one command of a client of its own, or its close."""
        async with self.client() as (_, ask):
            return normal(await ask(command))

    def _history(self, told: Any) -> Any:
        if "error" in told:
            return normal(told)
        return [each["data"] for each in told["history"].get("publications", [])]

    def _publications(self, told: Any) -> Any:
        if "error" in told:
            return normal(told)
        result = told["subscribe"]
        data = [each["data"] for each in result.get("publications", [])]
        return {"recovered": result.get("recovered", False), "was": result.get("was_recovering", False), "data": data}


@pytest.fixture
def edge(tmp_path: Path) -> Iterator[Role]:
    with role(tmp_path / "edge", "edge") as serving:
        yield serving


@contextlib.asynccontextmanager
async def centrifugo(folder: Path) -> AsyncIterator[str]:
    """The URL of one. Skips where the program is missing."""
    path = os.pathsep.join((os.environ.get("PATH", ""), str(Path.home() / "go" / "bin")))
    program = shutil.which("centrifugo", path=path)
    if program is None:
        pytest.skip("needs centrifugo; to install it: go install github.com/centrifugal/centrifugo/v6@v6.9.1")
    (port,) = free_ports(1)
    file = folder / "centrifugo.json"
    file.write_text(json.dumps(SETTINGS | {"http_server": {"address": "127.0.0.1", "port": str(port)}}))
    process = await asyncio.create_subprocess_exec(program, "--config", str(file))
    try:
        async with asyncio.timeout(PATIENT_S):
            while True:
                with contextlib.suppress(OSError):
                    (await asyncio.open_connection("127.0.0.1", port))[1].close()
                    break
                await asyncio.sleep(0.02)
        yield f"ws://127.0.0.1:{port}{PATH}"
    finally:
        process.kill()
        await process.wait()


async def test_an_edge_answers_a_script_as_centrifugo_does_but_where_the_docs_say_so(
    edge: Role, tmp_path: Path
) -> None:
    async with asyncio.timeout(PATIENT_S), centrifugo(tmp_path) as url:
        theirs, ours = Script(url, ("", "")), Script(edge.url, (edge.token(7), edge.token(8)))
        await theirs.run()
        await ours.run()
    differing = {
        step: (theirs.outcomes[step], ours.outcomes[step])
        for step in theirs.outcomes
        if theirs.outcomes[step] != ours.outcomes[step]
    }
    assert differing == DIFFERENT
