"""systemd understands the units in `deploy/systemd/`, and what they say of Muster is true."""

import configparser
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

import muster.agent.__main__ as agent
from muster_server.control.cli import main as cli
from muster_server.control.cluster import daemon
from muster_server.control.config.options import SERVED
from muster_server.control.errors import BAD_CONFIG, USAGE
from muster_server.plane.kinds import kinds
from tests.control.cli.test_help import muster, understood
from tests.documents import ROOT
from tests.waiting import PATIENT_S

FOLDER: Final = ROOT / "deploy" / "systemd"
MEND: Final = "needs systemd-analyze; to get it: apt-get install --no-install-recommends systemd"


def unit(role: str) -> str:
    return (FOLDER / f"muster-{role}@.service").read_text()


def service(role: str) -> dict[str, str]:
    """The section [Service]; of a repeated key, the last value."""
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(unit(role))
    return dict(parser["Service"])


def verified(file: Path) -> tuple[int, list[str]]:
    """systemd's complaints about a unit. Skips if there is no systemd, and fails if nothing may be missing."""
    if not shutil.which("systemd-analyze"):
        if os.environ.get("CI") == "true":
            pytest.fail(MEND)
        pytest.skip(MEND)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(file)],
        capture_output=True,
        text=True,
        timeout=PATIENT_S,
        check=False,
    )
    return done.returncode, [line for line in done.stderr.splitlines() if file.stem.rstrip("@") in line]


@pytest.mark.parametrize("role", SERVED)
def test_systemd_has_nothing_to_say_against_a_unit(role: str) -> None:
    assert verified(FOLDER / f"muster-{role}@.service") == (0, [])


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("WatchdogSec=10", "WatchdogSec=soon"),
        ("ProtectSystem=strict", "ProtectSystm=strict"),
        ("SystemCallFilter=@system-service", "SystemCallFilter=@system-servic"),
        ("/usr/bin/env muster", "/usr/bin/nothing muster"),
    ],
)
def test_what_systemd_does_not_understand_is_found(tmp_path: Path, right: str, wrong: str) -> None:
    file = tmp_path / "muster-broker@.service"
    file.write_text(unit("broker").replace(right, wrong))
    code, lines = verified(file)
    assert code or lines


def test_every_role_has_the_unit_that_the_command_prints_and_no_other_is_there(
    capsys: pytest.CaptureFixture[str],
) -> None:
    printed = {}
    for role in kinds():
        assert cli.main(["config", "unit", role]) == 0
        printed[f"muster-{role}@.service"] = capsys.readouterr().out
    assert {file.name: file.read_text() for file in FOLDER.glob("*.service")} == printed


def test_a_unit_of_several_roles_starts_them_in_one_process(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["config", "unit", "gateway,proxy"]) == 0
    printed = capsys.readouterr().out
    file = tmp_path / "muster-gateway-proxy@.service"
    file.write_text(printed)
    assert verified(file) == (0, [])
    one = unit("gateway").splitlines()[3:]  # behind its comment
    assert (
        printed.replace("serve gateway,proxy", "serve gateway").replace("gateway-proxy", "gateway").splitlines()[3:]
        == one
    )
    assert "--name %H-gateway-proxy-%i" in printed
    assert "# muster-gateway-proxy@NAME is one process of the nodes HOST-gateway-proxy-NAME-ROLE. " in printed
    assert cli.main(["config", "unit", "gateway,http"]) == USAGE
    assert "a http needs a process of its own" in capsys.readouterr().err


@pytest.mark.parametrize("role", SERVED)
def test_the_units_differ_in_the_role_alone(role: str) -> None:
    assert unit(role) == re.sub(r"\bbroker\b", role, unit("broker"))


@pytest.mark.parametrize("role", SERVED)
def test_what_a_unit_starts_is_understood(role: str) -> None:
    words = shlex.split(service(role)["ExecStart"].replace("%H-", "host-").replace("%i", "1"))
    assert words[0] == "/usr/bin/env"
    understood(muster, words[1:])
    assert words[words.index("--name") + 1] == f"host-{role}-1"


def test_a_unit_has_time_to_drain_and_is_not_started_again_for_a_mistake() -> None:
    settings = service("broker")
    assert settings["Type"] == "notify"
    assert int(settings["TimeoutStopSec"]) > daemon.END_S
    assert settings["TimeoutStartSec"] == "infinity", "it may wait for the registry"
    assert settings["RestartPreventExitStatus"].split() == [str(USAGE), str(BAD_CONFIG)]
    assert settings["RestartForceExitStatus"] == "SIGHUP", "which systemd takes for an end like others"
    assert settings["ExecReload"].startswith("/bin/kill -HUP ")
    assert f"/var/lib/{settings['StateDirectory']}" == "/var/lib/muster"


def test_the_unit_of_an_agent_is_understood_and_starts_what_is_there() -> None:
    file = ROOT / "deploy" / "agent" / "muster-agent.service"
    assert verified(file) == (0, [])
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(file.read_text())
    settings = dict(parser["Service"])
    words = shlex.split(settings["ExecStart"])
    assert words[1:4] == ["python3", "-m", "muster.agent"]
    assert float(settings["TimeoutStopSec"]) > agent.DRAIN_S
    assert set(settings["RestartPreventExitStatus"].split()) == {str(agent.USAGE), str(agent.BAD_CONFIG)}
    (example,) = re.findall(r"^#   MUSTER_AGENT_WORDS=(.*)$", file.read_text(), re.MULTILINE)
    assert agent._agent(agent._parser("x").parse_args(shlex.split(example))).name == "probe-7"
