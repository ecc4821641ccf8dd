"""`python -m muster.cache`, and `muster cache`, which forwards to it."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from muster.cache.__main__ import main
from muster_server.control.cli.main import main as muster
from tests.cache.conftest import Makes
from tests.cache.test_fence import Slow
from tests.redis_server import RedisServer
from tests.waiting import until


async def test_show_tells_what_level_2_has_and_drop_drops_it_everywhere(
    caches: Makes, redis_of_the_run: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    cache, database = await caches(redis_of_the_run.url), Slow()
    where = ["--redis", redis_of_the_run.url, "--name", cache.name]
    share = database.of(cache)

    @cache.cached("none:{id}", fresh_s=9)
    async def none(id: int) -> None: ...

    await share(7)
    await none(1)
    assert await asyncio.to_thread(main, ["show", "share:7", "none:1", "no", *where]) == 0
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.startswith("share:7: fresh, fresh for ")
    assert first.endswith('1 bytes, loaded in 0 ms: "0"')
    assert second.startswith("none:1: absent")
    assert third == "no: none"
    assert await asyncio.to_thread(muster, ["cache", "drop", "share:7", *where]) == 0
    await until(lambda: cache.figures()["heard"] == 1)
    assert await asyncio.to_thread(main, ["show", "share:7", "--json", *where]) == 0
    assert json.loads(capsys.readouterr().out) == {"key": "share:7", "entry": "none", "loading": False, "marks": 0}
    async with cache.changing("share:7"):
        await asyncio.to_thread(main, ["show", "share:7", *where])
    assert capsys.readouterr().out == "share:7: none, 1 writers\n"
    assert await asyncio.to_thread(main, ["show", *where]) == 0
    assert "processes: 1\n" in capsys.readouterr().out


async def test_watch_prints_each_drop(caches: Makes, redis_of_the_run: RedisServer) -> None:
    cache = await caches(redis_of_the_run.url)
    words = ["watch", "--count", "1", "--json", "--redis", redis_of_the_run.url, "--name", cache.name]
    command = [sys.executable, "-m", "muster.cache", *words]
    program = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    heard = asyncio.ensure_future(program.communicate())
    while not heard.done():  # it may not listen yet
        await cache.drop("share:7", "front")
        await asyncio.sleep(0.05)
    assert json.loads((await heard)[0])["keys"] == ["front", "share:7"]
    assert program.returncode == 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["show", "a", "--redis", "redis://127.0.0.1:1"], 69, "the Redis of the cache does not answer: 127.0.0.1:1"),
        (["show", "a", "--redis", "http://h"], 2, "invalid URL of a Redis"),
        (["drop", "a\nb", "--redis", "redis://127.0.0.1:1"], 2, "invalid key"),
        (["show", "--password-file", "/no/such/file"], 2, "/no/such/file"),
        (["drop"], 2, "required"),
        ([], 2, "required"),
    ],
)
def test_a_mistake_is_one_line_and_a_code(
    words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == code
    assert said in capsys.readouterr().err


def test_the_library_without_the_extra_says_how_to_get_it(tmp_path: Path) -> None:
    script = """
import sys
sys.modules["moka_py"] = None
import muster.messages
try:
    import muster.cache
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "pip install 'muster[cache]'" in done.stdout
