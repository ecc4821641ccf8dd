"""`deploy/Containerfile` and `deploy/compose.yaml` say what is true of Muster, and start what its command understands.

No container is started. The compose file is judged by its schema.
"""

import fnmatch
import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from compose_spec import PyOptions

from muster_server.control.cli import main as cli
from muster_server.control.cli import up
from muster_server.control.cluster import daemon
from muster_server.control.config.load import Loaded, load
from muster_server.control.config.options import UP
from muster_server.control.host.addresses import split_address
from muster_server.plane import systems
from muster_server.plane.kinds import kinds
from tests.control.cli.test_help import muster, understood
from tests.documents import ROOT

PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())
VERSION: Final = PROJECT["project"]["version"]
FILE: Final = ROOT / "deploy" / "Containerfile"
COMPOSE: Final = (ROOT / "deploy" / "compose.yaml").read_text()
FOLDER: Final = "/var/lib/muster"
USER: Final = "10001"


class Step(NamedTuple):
    """One instruction, whose continued lines are one."""

    word: str
    rest: str

    def paths(self) -> list[str]:
        return [each for each in shlex.split(self.rest) if not each.startswith("--")]


def stages() -> list[list[Step]]:
    """The instructions of each stage, which begins with FROM."""
    text = re.sub(r"^#.*\n", "", FILE.read_text(), flags=re.MULTILINE)
    found: list[list[Step]] = []
    for line in text.replace("\\\n", " ").splitlines():
        word, _, rest = line.partition(" ")
        if word == "FROM":
            found.append([])
        if word:
            found[-1].append(Step(word, " ".join(rest.split())))
    return found


BUILD, FINAL = stages()


def only(stage: list[Step], word: str) -> str:
    (step,) = [each for each in stage if each.word == word]
    return step.rest


def variables() -> dict[str, str]:
    """The environment of the image."""
    return dict(each.split("=", 1) for each in shlex.split(only(FINAL, "ENV")))


def installed(stage: list[Step]) -> set[str]:
    """The packages of Debian."""
    (line,) = [step.rest for step in stage if "apt-get install" in step.rest]
    return {
        each for each in line.partition("apt-get install")[2].partition("&&")[0].split() if not each.startswith("-")
    }


def composed(text: str = COMPOSE) -> dict[str, Any]:
    """The compose file. Raises ValueError, with the place, for what its schema does not know."""
    found = PyOptions(apply_merge=True).from_yaml(text)
    found.validate()
    return found.to_dict()


WHOLE: Final = composed()
SERVICES: Final[dict[str, Any]] = WHOLE["services"]
OURS: Final = {name: each for name, each in SERVICES.items() if "build" in each}


# --- the image --------------------------------------------------------------------------------------------------------


def test_what_the_build_copies_is_there_and_enough() -> None:
    ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    copied = {path for step in BUILD if step.word == "COPY" for path in step.paths()[:-1]}
    for path in copied:
        assert (ROOT / path).exists(), path
        assert not any(fnmatch.fnmatch(path, pattern.removeprefix("**/")) for pattern in ignored), path
    (source,) = PROJECT["tool"]["setuptools"]["packages"]["find"]["where"]
    packages = {source, *(link.name for link in (ROOT / source / "muster_server").iterdir() if link.is_symlink())}
    licences = {name for name in PROJECT["project"]["license-files"] if name.partition("/")[0] not in packages}
    named = {PROJECT["project"]["readme"], *licences, "MANIFEST.in", "setup.py"}
    assert copied == {"core", "pyproject.toml", "requirements.lock", *packages, *named}


def test_the_build_has_what_setup_installs_on_debian_and_the_image_has_no_compiler() -> None:
    setup = (ROOT / "scripts" / "setup.sh").read_text()
    assert [step.rest.split()[0] for step in (BUILD[0], FINAL[0])] == ["debian:12", "debian:12-slim"]
    assert installed(BUILD) >= {"python3-venv", "gcc", "cargo-web"}
    for package in installed(BUILD):
        assert re.search(rf"\b{package}\b", setup), package
    assert installed(FINAL) == {"ca-certificates", "python3"}
    assert [step.rest for step in FINAL if step.word == "COPY"] == ["--from=build /opt/muster /opt/muster"]


def test_the_image_has_all_systems_at_the_versions_of_the_lock(tmp_path: Path) -> None:
    (line,) = [step.rest for step in BUILD if "pip install" in step.rest]
    extras = re.search(r"\.\[([a-z,]+)\]", line)
    assert extras is not None
    left_out = {"bench", "parquet"}  # pyarrow is larger than all the rest; CSV needs nothing
    assert set(extras[1].split(",")) == PROJECT["project"]["optional-dependencies"].keys() - left_out
    (strips,) = [step.rest for step in BUILD if "--hash=" in step.rest]
    (tmp_path / "requirements.lock").write_text((ROOT / "requirements.lock").read_text())
    subprocess.run(["sh", "-euc", strips], cwd=tmp_path, check=True)
    constraints = (tmp_path / "constraints.txt").read_text()
    assert re.fullmatch(r"([\w.-]+==[\w.]+( ; [^\n\\]+)?\n)+", constraints)
    assert "--constraint constraints.txt" in line


def test_the_image_runs_as_nobody_in_particular_and_keeps_its_folder() -> None:
    manifest = (ROOT / "deploy" / "kubernetes" / "gateway.yaml").read_text()
    assert only(FINAL, "USER") == f"{USER}:{USER}"
    assert f"runAsUser: {USER}" in manifest
    assert f"--uid {USER}" in only(FINAL, "RUN")
    assert only(FINAL, "VOLUME") == variables()["HOME"] == variables()["MUSTER_INSTANCE__DIR"] == FOLDER
    assert f"--mode 0700 --owner {USER} --group {USER} {FOLDER}" in only(FINAL, "RUN")
    assert variables()["PATH"].startswith("/opt/muster/bin:")
    ours = {name: value for name, value in variables().items() if name.startswith("MUSTER_")}
    assert load(None, ours, profile=UP).config.instance.dir == FOLDER


def test_what_the_image_starts_and_asks_is_understood() -> None:
    entry = json.loads(only(FINAL, "ENTRYPOINT"))
    understood(muster, [*entry, *json.loads(only(FINAL, "CMD"))])
    understood(muster, json.loads(only(FINAL, "HEALTHCHECK").partition(" CMD ")[2]))


def test_the_head_of_the_file_names_the_image_that_compose_starts() -> None:
    assert set(re.findall(r"muster:[\d.]+", FILE.read_text() + COMPOSE)) == {f"muster:{VERSION}"}


# --- compose ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("read_only: true", "readonly: true"),
        ("condition: service_healthy", "condition: healthy"),
        ("127.0.0.1:7400:7400/udp", "127.0.0.1:7400:gateway/udp"),
    ],
)
def test_what_compose_does_not_have_is_found(right: str, wrong: str) -> None:
    with pytest.raises(ValueError):
        composed(COMPOSE.replace(right, wrong, 1))


def started(service: str, monkeypatch: pytest.MonkeyPatch) -> Loaded:
    """The configuration with which the service's command starts."""
    found: list[Loaded] = []

    async def reads(file: Path | None, flags: Mapping[str, tuple[Any, str]], **_: Any) -> int:
        found.append(load(file, flags=flags, profile=UP))
        return 0

    monkeypatch.setattr(up, "up", reads)
    for name, value in (variables() | OURS[service]["environment"]).items():
        if name.startswith("MUSTER_"):
            monkeypatch.setenv(name, value)
    assert cli.main(list(OURS[service]["command"])) == 0
    (one,) = found
    return one


@pytest.mark.parametrize("service", OURS)
def test_a_service_starts_and_serves_where_its_ports_are_published(
    service: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    config = started(service, monkeypatch).config
    served: set[str] = set()
    for of in kinds().values():
        bind = OURS[service]["environment"].get(f"MUSTER_{of.key.upper()}__BIND")
        if bind:
            assert config.section(of.key).bind == bind
            assert split_address(bind) == ("0.0.0.0", of.pods.port)
            served.add(f"127.0.0.1:{of.pods.port}:{of.pods.port}/{'udp' if of.door else 'tcp'}")
    assert len(served) >= 2
    assert set(OURS[service]["ports"]) == served
    assert OURS[service]["volumes"] == [f"{service}:{FOLDER}"]
    assert int(OURS[service]["stop_grace_period"].removesuffix("s")) > daemon.END_S


def test_the_site_has_the_systems_and_the_stores_that_run_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    config = started("site", monkeypatch).config
    assert set(config.systems.enabled.split(",")) == {"http", "presence"} <= systems.named().keys()
    beside = OURS["site"]["depends_on"].keys()
    assert beside == {name for name, each in SERVICES.items() if each.get("profiles") == ["site"]} - OURS.keys()
    hosts = {re.split(r"[/:]+", url)[1] for url in (config.registry.url, config.section("presence").redis)}
    assert hosts == beside
    assert all("healthcheck" in SERVICES[name] for name in beside)


def test_every_volume_is_declared_and_used() -> None:
    used = {volume.partition(":")[0] for each in SERVICES.values() for volume in each["volumes"]}
    assert {volume for volume in used if not volume.startswith("./")} == WHOLE["volumes"].keys()
    assert all((ROOT / "deploy" / volume).exists() for volume in used if volume.startswith("./"))


def test_only_the_demo_starts_unasked() -> None:
    assert [name for name, each in SERVICES.items() if not each.get("profiles")] == ["demo"]
    assert all(each["image"] == f"muster:{VERSION}" for each in OURS.values())
    assert all(
        (ROOT / "deploy" / each["build"]["context"] / each["build"]["dockerfile"]).is_file() for each in OURS.values()
    )
