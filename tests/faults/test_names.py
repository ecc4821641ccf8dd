"""Every legal room name, from a client through the roles to the commands that show it."""

import asyncio
import json
import subprocess

import muster
from muster_server.control.host.shown import shown
from tests.faults.conftest import Make
from tests.faults.instance import MUSTER, ROOT, Instance
from tests.faults.test_mistakes import run
from tests.waiting import PATIENT_S

PRINTABLE = "".join(map(chr, range(0x20, 0x7F))).replace("*", "")
LONGEST = "abcdefghijklmnopqrstuvwxyz_-0123:" + "\N{CJK UNIFIED IDEOGRAPH-4E2D}" * 53 + "x"
NAMES = [
    "default:" + PRINTABLE,
    LONGEST,
    "%2F%41",
    "../..",
    "[/bold]",
    "a:smile:",
    "-n",
    " ",
    "\N{GRINNING FACE}\N{COMBINING ACUTE ACCENT}",
]


async def show(instance: Instance, *words: str, **environment: str) -> str:
    """What a command prints."""
    process = await asyncio.create_subprocess_exec(
        *MUSTER, *words, cwd=ROOT, env=instance.environment | environment, stdout=subprocess.PIPE
    )
    said, _ = await process.communicate()
    assert process.returncode == 0
    return said.decode()


def test_pub_and_sub_take_it(make: Make) -> None:
    instance = make()
    with instance.running():
        for name in ("default:" + PRINTABLE, LONGEST, "-n"):
            words = ("sub", "--count", "1", "--json", "--", name)
            reader = instance.command(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            assert reader.stderr is not None
            assert reader.stderr.readline().decode() == f"joined {name}\n"
            assert run(instance, "pub", "--", name, stdin=b"line\n") == (0, f"published 1 to {name}\n")
            said, _ = reader.communicate(timeout=PATIENT_S)
            assert json.loads(said)["room"] == name


async def test_operators_see_it_as_it_is(make: Make) -> None:
    instance = make()
    with instance.running():
        async with muster.connect(instance.folder.path) as client:
            for name in NAMES:
                room = await client.join(name)
                await client.publish(name, b"line")
                assert isinstance(await anext(room), muster.Message)
            full = [name if ":" in name else f"default:{name}" for name in NAMES]
            listed = json.loads(await show(instance, "rooms", "ls", "--json", PYTHONIOENCODING="ascii"))
            assert sorted(room["name"] for room in listed) == sorted(full)
            table = await show(instance, "rooms", "ls")
            assert all(shown(name) in table for name in full)
            await show(instance, "rooms", "ls", PYTHONIOENCODING="ascii")
            for name, whole in zip(NAMES, full, strict=True):
                assert instance.room("gateway", name)["name"] == whole
                assert instance.room("broker", name)["next_offset"] == 2
                assert shown(whole) in await show(instance, "rooms", "show", "--", name)
        assert instance.metrics("gateway")["rooms"] == len(NAMES)
