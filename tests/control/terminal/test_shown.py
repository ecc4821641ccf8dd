"""Text of strangers changes no terminal: what a command shows there has no control and no format character of theirs."""

import json
import os
import pty
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from muster_server.control.host.shown import shown, shown_json
from muster_server.control.terminal import common, pipes
from muster_server.systems.rooms.cli import sub
from tests.fakes.library import Message
from tests.waiting import PATIENT_S

HOSTILE = "title\x1b]0;owned\x07 \x9b31m red \u202eback\u2066 \u2028 \x7f \U000e0041 é 部屋 🙂"
LEFT = ("title", "é", "部屋", "🙂")


def hidden(text: str) -> list[str]:
    return [each for each in text if unicodedata.category(each) in {"Cc", "Cf", "Zl", "Zp"} and each not in "\r\n"]


def test_control_and_format_characters_are_escaped_and_letters_stay() -> None:
    assert hidden(shown(HOSTILE)) == []
    assert all(each in shown(HOSTILE) for each in LEFT)
    assert shown("\x1b[2J\u202e\udc80") == r"\x1b[2J\u202e\udc80"
    assert shown("two\nlines") == "two\nlines"


def test_json_is_the_same_document_without_them() -> None:
    document = json.dumps({"data": HOSTILE}, ensure_ascii=False, indent=2).encode()
    assert hidden(shown_json(document).decode()) == []
    assert json.loads(shown_json(document)) == {"data": HOSTILE}


def test_tables_and_lines_show_them_escaped_at_full_width(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("version", "next")
    table.add_row(HOSTILE, "cell")
    console = common.out()
    console.print(table)
    console.print(f"version {HOSTILE}")
    console.print(Text.assemble((HOSTILE, "bold"), " red"))
    said = capsys.readouterr().out
    assert hidden(said) == []
    assert said.count("\\x1b]0;owned") == 3
    assert "cell" in said


@pytest.mark.parametrize(
    "script",
    [
        "from muster_server.control.terminal.words import say; say({0!r})",
        "from muster_server.control.cli.main import fail; fail({0!r}, 1)",
        "from muster_server.control.node import logs; logs.configure('info', 'text').info('said', data={0!r})",
        "from muster_server.control.node import logs; logs.configure('info', 'text').info({0!r})",
        "from muster_server.control.node import logs; logs.configure('info', 'json').info({0!r}, data={0!r})",
        "import logging; from muster_server.control.node import logs; logs.configure('info', 'text'); logging.error({0!r})",
    ],
)
def test_what_is_said_and_logged_on_stderr_has_none(script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", script.format(HOSTILE)], capture_output=True, timeout=PATIENT_S, check=True
    )
    assert b"owned" in done.stderr
    assert hidden(done.stderr.decode()) == []


@pytest.mark.parametrize(
    ("terminal", "raw", "escaped"), [(True, False, True), (True, True, False), (False, False, False)]
)
async def test_sub_prints_payloads_as_they_are_only_into_a_file_or_when_asked(
    terminal: bool, raw: bool, escaped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = pty.openpty() if terminal else os.pipe()
    with os.fdopen(theirs, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        payload = b"\x1b]0;owned\x07\xff"
        writer = pipes.Writer(stdout.fileno())
        await sub.show(writer, writer, [Message("r", 1, 7, payload)], as_json=False, plain=sub.is_plain(raw))
        assert os.read(ours, 100).strip() == (b"\\x1b]0;owned\\x07\\xff" if escaped else payload)
    os.close(ours)
