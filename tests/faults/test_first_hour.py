"""The first hour against real nodes: what a new user types, here and as an end client elsewhere."""

import asyncio
import json
from pathlib import Path

import muster
from tests.faults.conftest import Make
from tests.waiting import PATIENT_S


async def test_a_url_opens_every_word_of_rooms_from_anywhere_and_a_wrong_one_says_what_to_mend(
    make: Make, tmp_path: Path
) -> None:
    instance = make()

    def said(*typed: str, stdin: bytes = b"", code: int = 0) -> str:
        done = instance.ran(*typed, stdin=stdin, seconds=PATIENT_S)
        assert done.returncode == code, done.stderr.decode()
        return done.stdout.decode()

    with instance.running():
        url = said("url").strip()
        reader = said("url", "7", "--expires", "5m").strip()
        where, _, rest = url.removeprefix("muster://").partition("/")
        key, _, query = rest.partition("?")
        wrong = f"muster://{where}/{'5a' * 32}?{query}"
        mistaken = asyncio.create_task(
            asyncio.to_thread(instance.ran, "sub", "demo", "--url", wrong, seconds=PATIENT_S)
        )
        (gateway,) = instance.record().gateways
        assert key == gateway.public_key
        token = tmp_path / "token"
        token.write_text(said("token", "8", "--rights", "read,publish"))
        named = ("--gateway", f"{gateway.host}:{gateway.port}:{key}", "--token-file", str(token))
        async with muster.connect(url) as client, client.join("demo") as room:
            await asyncio.to_thread(said, "pub", "demo", "hello", "--url", url)
            await asyncio.to_thread(said, "pub", "demo", "{n}", "--count", "2", *named)
            items = [await anext(room) for _ in range(3)]
            told = await asyncio.to_thread(said, "sub", "demo", "-n", "3", "--history", "3", "--json", "--url", url)
            count = await asyncio.to_thread(said, "members", "demo", *named)
            delivered = await asyncio.to_thread(said, "command", "demo", "now", "--url", url)
        assert [(item.data, item.sender) for item in items if isinstance(item, muster.Message)] == [
            (b"hello", 1),
            (b"1", 8),
            (b"2", 8),
        ]
        documents = [json.loads(line) for line in told.splitlines()]
        assert [(each["data"], each["sender"]) for each in documents] == [("hello", 1), ("1", 8), ("2", 8)]
        assert documents[0]["position"] == f"{documents[0]['stream']}:1"
        assert (count, delivered) == ("1 member\n", "delivered to 1 member\n")
        refused = instance.ran("pub", "demo", "no", "--url", reader, seconds=PATIENT_S)
        assert (refused.returncode, refused.stderr.count(b"\n")) == (1, 1)
        assert b"not_allowed" in refused.stderr
        done = await mistaken
        assert (done.returncode, done.stderr.count(b"\n")) == (1, 1)
        assert f"the server at {where} does not have this public key".encode() in done.stderr
    done = instance.ran("sub", "demo", "--url", url, seconds=PATIENT_S)
    assert (done.returncode, done.stderr.count(b"\n")) == (75, 1)
    assert f"nothing listens at {where}".encode() in done.stderr
