"""The words `muster work` and `python -m muster.work`: exit codes and errors, beside a face that answers as scripted."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from muster.work import main
from muster_server.control.cli import main as cli
from tests.fakes.scripted import Asked, Scripted, problem, said
from tests.waiting import PATIENT_S, until

JOBS = """
import os

from muster.tasks import Tasks

tasks = Tasks(os.environ.get("URL", "http://127.0.0.1:1"), key="k")
bare = Tasks("http://127.0.0.1:1", key="k")
other = 7


@tasks.handler("mail")
async def mail(to):
    print("to", to, flush=True)


mail.every("nightly", "0 3 * * *", to="all")
"""


@pytest.fixture(autouse=True)
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site_jobs.py").write_text(JOBS)
    (tmp_path / "broken_jobs.py").write_text("import no_such_module_at_all")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "site_jobs", raising=False)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["site_jobs"], "(expected MODULE:NAME, for example portal.jobs:tasks)"),
        (["site_jobs:"], "invalid tasks"),
        (["nowhere.jobs:tasks"], "no module 'nowhere.jobs' here; start the worker in the folder that has it"),
        (["site_jobs:absent"], "is not a muster.tasks.Tasks"),
        (["site_jobs:other"], "is not a muster.tasks.Tasks"),
        (["site_jobs:bare"], "has no handlers"),
        (["site_jobs:tasks", "--topics", "mail,mail"], "name each topic once"),
        (["site_jobs:tasks", "--topics", "letters"], "topic letters has no handler here"),
        (["site_jobs:tasks", "--topics", "mail=2"], "mail"),
        (["site_jobs:tasks", "--at-once", "0"], "expected at least 1"),
        (["site_jobs:tasks", "--at-once", "x"], "invalid int value"),
        ([], "required"),
    ],
)
def test_a_wrong_word_is_told_with_code_2(words: list[str], why: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert why in capfd.readouterr().err


def test_a_module_that_itself_lacks_another_one_shows_it() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module_at_all"):
        main(["broken_jobs:tasks"])


def test_the_command_forwards_its_words(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for words, code, text in (
        (["nowhere.jobs:tasks"], 2, "no module 'nowhere.jobs' here"),
        (["--help"], 0, "Example: muster work portal.jobs:tasks --at-once 8"),
    ):
        monkeypatch.setattr(sys, "argv", ["muster", "work", *words])
        assert cli.main() == code
        shown = capfd.readouterr()
        assert text in " ".join((shown.out + shown.err).split())


async def started(folder: Path, face: Scripted) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "muster.work", "site_jobs:tasks", "--at-once", "2", "--drain", "5"),
        cwd=folder,
        env={**os.environ, "URL": face.url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize(("status", "code"), [(401, "bad_credential"), (403, "not_allowed"), (404, "not_found")])
async def test_a_face_that_refuses_ends_the_worker_with_code_69(tmp_path: Path, status: int, code: str) -> None:
    async def answer(_: Asked) -> bytes:
        return problem(status, code)

    async with Scripted(answer) as face:
        worker = await started(tmp_path, face)
        async with asyncio.timeout(PATIENT_S):
            _, errors = await worker.communicate()
    assert worker.returncode == 69
    assert f"because of {code}" in errors.decode()


async def test_a_worker_sets_recurring_tasks_does_tasks_and_ends_by_a_signal(tmp_path: Path) -> None:
    leased = [{"id": f"m-{n}", "lease": f"l-{n}", "attempt": 1, "data": {"to": f"bo-{n}"}} for n in range(3)]
    given = iter([leased])
    ends: list[Any] = []

    async def answer(asked: Asked) -> bytes:
        if asked.method == "PUT":
            return said({})
        if asked.path.endswith("/lease"):
            some = next(given, None)
            if some is None:
                await asyncio.sleep(3_600)
            return said({"messages": some})
        ends.extend(asked.document["done"])
        return said({"done": [{"outcome": "done"} for _ in asked.document["done"]]})

    async with Scripted(answer) as face:
        worker = await started(tmp_path, face)
        await until(lambda: len(ends) == 3 or worker.returncode is not None)
        worker.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENT_S):
            shown, errors = await worker.communicate()
        assert worker.returncode == 0, errors.decode()
        assert sorted(shown.decode().split("\n")) == ["", "to bo-0", "to bo-1", "to bo-2"]
        assert "3 done, 0 to be tried again, 0 dead, 0 lost, 0 given back" in errors.decode()
        (put,) = (each for each in face.asked if each.method == "PUT")
        assert put.path == "/api/v1/topics/mail/recurring/nightly"
        assert put.document == {"cron": "0 3 * * *", "zone": "UTC", "missed": "once", "data": {"to": "all"}}
        assert sorted(ends) == ["l-0", "l-1", "l-2"]
