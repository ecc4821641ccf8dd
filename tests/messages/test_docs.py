"""`docs/messages.md` says what is there, and its two examples verify a callback as it leaves."""

import asyncio
import json
import re
import shutil
import subprocess
import time

import pytest

from muster_server import _engines
from muster_server.control.errors import ALREADY_FIRED, UNKNOWN_MESSAGE
from muster_server.systems.messages.cli.words import RETRIES
from muster_server.systems.messages.options import AdminOptions, CenterOptions, ReceiveOptions, WorkerOptions
from muster_server.systems.messages.topics import RETRIES_MS, new_secret
from tests.documents import ROOT, cells, fenced, spans
from tests.faults.hooks import Called, hooks
from tests.waiting import PATIENT_S, until

PAGE = (ROOT / "docs" / "messages.md").read_text()
SECTIONS = {"receive": ReceiveOptions, "center": CenterOptions, "callbacks": WorkerOptions, "messages": AdminOptions}


async def called(secret: str) -> Called:
    """A callback signed by this secret."""
    with hooks() as server:
        client = _engines.CallbackClient(b'{"allowed": ["127.0.0.0/8"]}')
        client.submit([(1, "order-7", f"{server.url}/", "application/json", b'{"order": 7}', [secret], 5.0)])
        await until(lambda: server.calls)
        client.close()
        return server.calls[0]


def headers(call: Called) -> dict[str, str]:
    return {
        "webhook-id": call.id,
        "webhook-timestamp": str(call.timestamp),
        "webhook-signature": call.signature,
    }


async def test_the_example_in_python_verifies_a_callback() -> None:
    secret = new_secret()
    call = await called(secret)
    names: dict[str, object] = {}
    exec(next(each for each in fenced(PAGE, "python") if "def verified" in each), names)
    verified = names["verified"]
    assert callable(verified)
    assert verified(secret, headers(call), call.body)
    assert not verified(secret, headers(call), call.body + b" ")
    assert not verified(new_secret(), headers(call), call.body)
    old = headers(call) | {"webhook-timestamp": str(int(time.time()) - 301)}
    assert not verified(secret, old, call.body)


@pytest.mark.skipif(shutil.which("node") is None, reason="no node on this machine")
async def test_the_example_in_javascript_verifies_a_callback() -> None:
    secret = new_secret()
    call = await called(secret)
    (example,) = fenced(PAGE, "javascript")
    asks = [(secret, call.body.decode()), (secret, "other"), (new_secret(), call.body.decode())]
    lines = [
        f"console.log(verified({json.dumps(key)}, {json.dumps(headers(call))}, Buffer.from({json.dumps(body)})));"
        for key, body in asks
    ]
    done = await asyncio.to_thread(
        subprocess.run, ["node", "-e", "\n".join([example, *lines])], capture_output=True, text=True, timeout=PATIENT_S
    )
    assert done.stdout.split() == ["true", "false", "false"], done.stderr


def test_every_key_that_is_named_exists() -> None:
    named = {span for span in spans(PAGE) if re.fullmatch(r"(receive|center|callbacks|messages)\.[a-z_]+", span)}
    assert len(named) > 5
    for each in named:
        section, _, name = each.partition(".")
        assert name in SECTIONS[section].__struct_fields__, each


def test_every_option_is_read_somewhere() -> None:
    text = "\n".join(file.read_text() for file in (ROOT / "systems" / "messages").rglob("*.py"))
    for section in SECTIONS.values():
        for name in set(section.__struct_fields__) - {"bind"}:
            assert re.search(rf"\b_?options\.{name}\b|\.{name}\b", text), name


def test_exit_codes_and_retries_are_those_of_the_program() -> None:
    codes = [int(row[0]) for row in cells(PAGE, "exit code", "what came of a change")]
    assert codes == [0, ALREADY_FIRED, UNKNOWN_MESSAGE]
    waits = [row[1].replace(",", "") for row in cells(PAGE, "attempt", "after")][1:]
    assert waits == [f"{each // 1_000} s" for each in RETRIES_MS]
    assert ",".join(f"{each // 1_000}s" for each in RETRIES_MS) == RETRIES
