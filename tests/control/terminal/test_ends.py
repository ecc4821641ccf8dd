"""A command as an end client: how its options name a gateway and a token, and the one line for each mistake."""

from pathlib import Path

import pytest

import muster
from muster import url
from muster_server.control.errors import USAGE, UserError
from muster_server.control.terminal.found import End
from tests.control.command import Command

KEY = "5a" * 32
ONE, TWO = ("10.0.0.1", 7_400, KEY), ("::1", 7_401, KEY)
TEXTS = (f"10.0.0.1:7400:{KEY}", f"[::1]:7401:{KEY}")


def test_a_url_and_a_list_of_gateways_say_the_same(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret\n")
    known = muster.Address((ONE, TWO), (), b"secret")
    assert End(url.text((ONE, TWO), b"secret")).gateway() == known
    assert End(gateways=TEXTS, token="secret").gateway() == known
    assert End(gateways=TEXTS, token_file=file).gateway() == known
    assert End(url.text((ONE, TWO), b"another"), token_file=file).gateway() == known
    assert End(token_file=file).gateway() is None
    assert End(token_file=file).credential() == b"secret"
    assert End().credential() is None


MISTAKES = [
    (
        ("sub", "r", "--url", "http://x"),
        "--url: invalid URL (expected muster://HOST:PORT/KEY?token=TOKEN; muster url prints it)",
    ),
    (("sub", "r", "--url", f"muster://10.0.0.1:7400/{KEY}"), "missing token; give --token-file or --token"),
    (("sub", "r", "--url", "muster://h:1/x?token=t", "--gateway", TEXTS[0]), "--gateway excludes --url"),
    (
        ("pub", "r", "--gateway", "10.0.0.1:7400", "--token", "t"),
        "invalid server '10.0.0.1:7400' (expected HOST:PORT:KEY",
    ),
    (("members", "r", "--token", "t", "--token-file", "/dev/null"), "--token excludes --token-file"),
    (("command", "r", "x", "--gateway", TEXTS[0], "--token", "t", "--registry", "zk://h"), "--registry excludes --url"),
    (("pub", "r", "x", "--file", "/dev/null"), "--file excludes TEXT"),
    (("pub", "r", "--count", "3"), "--count needs TEXT"),
    (("pub", "r", "--file", "/dev/null", "--rate", "3"), "--rate needs TEXT or lines of stdin"),
]


@pytest.mark.parametrize(
    ("words", "said"), MISTAKES, ids=lambda each: each if isinstance(each, str) else " ".join(each)
)
def test_a_mistake_is_one_line(muster: Command, words: tuple[str, ...], said: str) -> None:
    done = muster(*words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (USAGE, "", 1), done.stderr
    assert said in done.stderr


def test_a_token_file_that_is_empty_is_a_mistake(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.touch()
    with pytest.raises(UserError, match="is empty"):
        End(gateways=TEXTS, token_file=file).gateway()
