"""The lock is whole, knows every dependency by hash, and names no place to download from."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from redis import Redis
from redis._parsers import _AsyncHiredisParser, _HiredisParser
from redis.asyncio import Connection as AsyncConnection

ROOT = Path(__file__).parents[1]
LOCK = (ROOT / "requirements.lock").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CORE = tomllib.loads((ROOT / "core" / "pyproject.toml").read_text())
CARGO = tomllib.loads((ROOT / "core" / "Cargo.toml").read_text())


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^A-Za-z0-9._-]", each)[0].lower() for each in requirements}


def test_the_lock_names_no_address() -> None:
    assert "://" not in LOCK
    assert "--index" not in LOCK
    assert "--find-links" not in LOCK


def test_every_locked_package_has_a_hash() -> None:
    for entry in re.split(r"\n(?=\S)", LOCK.strip()):
        assert "--hash=sha256:" in entry, entry.splitlines()[0]


def test_the_tool_that_installs_comes_by_hash_too_and_a_build_takes_the_locked_crates_alone() -> None:
    lock = (ROOT / "scripts" / "uv.lock.txt").read_text()
    assert re.fullmatch(r"uv==[0-9.]+ \\\n(    --hash=sha256:[0-9a-f]{64}( \\)?\n)+", lock)
    setup = (ROOT / "scripts" / "setup.sh").read_text()
    assert "--require-hashes -r scripts/uv.lock.txt" in setup
    assert "--require-hashes requirements.lock" in setup
    assert CORE["tool"]["maturin"]["locked"]
    for name in ("scripts/rust.sh", "scripts/planted.sh", "scripts/lint.sh", "scripts/test.sh", "Makefile"):
        calls = re.findall(r"cargo (?:test|run|build|clippy) --(?!version)[^\n]*", (ROOT / name).read_text())
        assert calls
        assert not [each for each in calls if "--locked" not in each]


@pytest.mark.parametrize(
    "wanted",
    [PROJECT["project"]["dependencies"], PROJECT["dependency-groups"]["dev"], PROJECT["build-system"]["requires"]],
    ids=["dependencies", "dev", "build"],
)
def test_every_dependency_is_locked(wanted: list[str]) -> None:
    locked = set(re.findall(r"^([a-z0-9.-]+)==", LOCK, re.MULTILINE))
    assert names(wanted) - locked - {"muster"} == set(), "run: make lock"


def test_there_is_one_version() -> None:
    versions = {PROJECT["project"]["version"], CORE["project"]["version"], CARGO["workspace"]["package"]["version"]}
    assert len(versions) == 1
    (version,) = versions
    assert f"muster=={version}" in PROJECT["project"]["dependencies"]
    assert CORE["project"]["optional-dependencies"]["testing"] == [f"muster-server=={version}"]


def test_the_library_depends_on_nothing() -> None:
    assert "dependencies" not in CORE["project"]


def test_every_extra_with_redis_brings_the_parser_in_c_and_redis_uses_it() -> None:
    extras = [*PROJECT["project"]["optional-dependencies"].values(), *CORE["project"]["optional-dependencies"].values()]
    redis = [each for extra in extras for each in extra if each.startswith("redis")]
    assert len(redis) > 5
    assert not [each for each in redis if not each.startswith("redis[hiredis]")]
    assert isinstance(vars(Redis().connection_pool.make_connection())["_parser"], _HiredisParser)
    assert isinstance(getattr(AsyncConnection(), "_parser", None), _AsyncHiredisParser)


def features(crate: str) -> dict[str, str]:
    """Each crate that the release build of a crate compiles, and the features it has there."""
    words = [
        "cargo",
        "tree",
        "--locked",
        "--offline",
        "--edges",
        "normal,build",
        "--prefix",
        "none",
        "--format",
        "{p}|{f}",
    ]
    done = subprocess.run([*words, "--package", crate], cwd=ROOT / "core", capture_output=True, text=True, check=True)
    return dict(line.removesuffix(" (*)").split("|") for line in done.stdout.splitlines())


def test_the_builds_of_the_client_and_of_the_servers_share_every_crate() -> None:
    client, servers = features("muster-py-client"), features("muster-py-engines")
    apart = {name for name, had in client.items() if servers.get(name) != had}
    assert {name.split()[0] for name in apart} == {"muster-py-client"}, "compiled twice; align their features"


def test_the_oldest_rust_is_said_once_and_meant_everywhere() -> None:
    setup = (ROOT / "scripts" / "setup.sh").read_text()
    assert f"RUST_MIN={CARGO['workspace']['package']['rust-version'].partition('.')[2]}" in setup


def test_of_checks_beside_each_other_all_are_run_and_whichever_fails_is_named() -> None:
    checks = ["echo one; echo two", "sh -c 'echo why; exit 255'", "false", "echo last"]
    command = [str(ROOT / "scripts" / "beside.sh")]

    def run(lines: list[str]) -> tuple[int, str]:
        done = subprocess.run(command, input="\n".join(lines) + "\n", capture_output=True, text=True, check=False)
        return done.returncode, done.stderr

    code, said = run(checks)
    assert code == 1
    for each in (
        "== echo one; echo two\none\ntwo\n",
        f"== {checks[1]}\nwhy\nfailed with 255: {checks[1]}\n",
        "== false\nfailed with 1: false\n",
        "== echo last\nlast\n",
    ):
        assert each in said
    assert run(["true", "echo fine"])[0] == 0
