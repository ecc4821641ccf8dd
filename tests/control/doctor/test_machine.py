"""Judgements on a machine's figures, from contents as the kernel writes them."""

from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from muster_server.control.cluster.specs import secret_files, warn_of_secrets
from muster_server.control.config.load import load
from muster_server.control.doctor import machine
from muster_server.control.doctor.finding import Level
from muster_server.control.doctor.machine import Place
from muster_server.control.host.files import open_to_all
from muster_server.control.host.group import Group, memory_max, read_group


def place(**other: Any) -> Place:
    usual = {"path": Path("/run/muster"), "exists": True, "mine": True, "link": False, "mode": 0o700, "writable": True}
    return Place(**{**usual, "free": 1 << 30, "files": 1000, **other})


@pytest.mark.parametrize(
    ("found", "levels"),
    [
        (place(), ["ok", "ok"]),
        (place(exists=False, mine=False, mode=0o1777), ["ok", "ok"]),
        (place(mode=0o755), ["warn", "ok"]),
        (place(mine=False), ["fail"]),
        (place(link=True), ["fail"]),
        (place(writable=False), ["fail"]),
        (place(exists=False, writable=False), ["fail"]),
        (place(free=8 << 20), ["ok", "warn"]),
        (place(free=0), ["ok", "fail"]),
        (place(files=0), ["ok", "fail"]),
        (place(files=None), ["ok", "ok"]),
    ],
)
def test_the_folder_must_be_ours_and_have_room(found: Place, levels: list[Level]) -> None:
    assert [finding.level for finding in machine.folder(found)] == levels


def test_the_line_that_mends_a_folder_can_be_typed() -> None:
    assert machine.folder(place(mode=0o750))[0].mend == "chmod 700 /run/muster"


def test_secrets_that_everybody_may_read_or_change_are_named_with_the_line_that_mends_them(tmp_path: Path) -> None:
    keys = {
        "cluster.secret_file": 0o644,
        "cluster.names_file": 0o640,
        "cluster.token_file": 0o602,
        "cluster.jwt_secret_file": 0o604,
    }
    for key, mode in keys.items():
        (tmp_path / key).touch()
        (tmp_path / key).chmod(mode)
    flags = {key: (str(tmp_path / key), "flag") for key in (*keys, "database.password_file")}
    config = load(environment={}, flags=flags).config
    named = secret_files(config)
    assert len(named) == 5, "also the one that is not there"
    wide = [str(tmp_path / f"cluster.{key}") for key in ("secret_file", "jwt_secret_file", "token_file")]
    (finding,) = machine.secrets(named, open_to_all(named))
    assert (finding.level, finding.mend) == ("warn", f"chmod o= {' '.join(wide)}")
    assert [each.level for each in machine.secrets(named, [])] == ["ok"]
    assert machine.secrets([], []) == []
    with capture_logs() as told:
        warn_of_secrets(config, structlog.get_logger())
    assert [(line["log_level"], line["file"]) for line in told] == [("warning", file) for file in wide]


def test_only_a_hard_limit_of_files_stops_a_start() -> None:
    assert machine.files(None, 64).level == "ok"
    assert machine.files(64, 64).level == "ok"
    short = machine.files(32, 64)
    assert (short.level, short.mend) == ("fail", "ulimit -n 64")


def test_a_clock_that_is_a_call_of_the_kernel_is_told_with_a_better_one() -> None:
    assert machine.clock("tsc\n", "tsc kvm-clock\n").level == "ok"
    assert machine.clock(None, "").level == "ok"
    slow = machine.clock("hpet\n", "hpet tsc acpi_pm\n")
    assert slow.level == "warn"
    assert slow.mend.startswith("as root: echo tsc > /sys/")
    assert "no better clock" in machine.clock("acpi_pm\n", "acpi_pm\n").mend


def test_one_core_is_too_few_and_a_governor_that_saves_power_too_slow() -> None:
    assert [machine.cores(count, 4).level for count in (1, 2, 64)] == ["warn", "ok", "ok"]
    assert machine.frequency([]).level == "ok"
    assert machine.frequency([("acpi-cpufreq", "performance")] * 4).level == "ok"
    assert machine.frequency([("intel_pstate", "powersave")] * 4).level == "ok"
    slow = machine.frequency([("acpi-cpufreq", "powersave"), ("acpi-cpufreq", "performance")])
    assert (slow.level, slow.text[:8]) == ("warn", "1 of 2 c")


def test_what_the_host_takes_is_a_share_of_what_was_wanted() -> None:
    assert machine.steal("cpu  100 0 100 99999 50 0 0 2 0 0\ncpu0 1\n").level == "ok"
    taken = machine.steal("cpu  60 10 10 99999 50 5 5 10 0 0\n")
    assert (taken.level, taken.text[:20]) == ("warn", "the host gave 10.0% ")
    assert machine.steal("cpu  0 0 0 0 0 0 0 0 0 0\n").level == "ok"


def test_a_group_of_the_second_version_is_as_narrow_as_any_around_it(tmp_path: Path) -> None:
    inner = tmp_path / "sys" / "fs" / "cgroup" / "machine" / "muster"
    inner.mkdir(parents=True)
    (inner / "cpu.max").write_text("max 100000\n")
    (inner / "memory.max").write_text("268435456\n")
    (inner / "cpu.stat").write_text("usage_usec 5\nnr_periods 200\nnr_throttled 10\n")
    (inner.parent / "cpu.max").write_text("50000 100000\n")
    (inner.parent / "memory.max").write_text("max\n")
    assert read_group(tmp_path, "0::/machine/muster\n") == Group(0.5, 256 << 20, 0.05)


def test_a_group_of_the_first_version_has_a_folder_for_each_controller(tmp_path: Path) -> None:
    mount = tmp_path / "sys" / "fs" / "cgroup"
    (mount / "cpu,cpuacct" / "a").mkdir(parents=True)
    (mount / "memory" / "a").mkdir(parents=True)
    (mount / "cpu,cpuacct" / "a" / "cpu.cfs_quota_us").write_text("150000\n")
    (mount / "cpu,cpuacct" / "a" / "cpu.cfs_period_us").write_text("100000\n")
    (mount / "cpu,cpuacct" / "cpu.cfs_quota_us").write_text("-1\n")
    (mount / "cpu,cpuacct" / "cpu.cfs_period_us").write_text("100000\n")
    (mount / "memory" / "a" / "memory.limit_in_bytes").write_text("1073741824\n")
    (mount / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    mine = "4:memory:/a\n3:cpuset:/a\n2:cpu,cpuacct:/a\n1:name=systemd:/x\n0::/\n"
    assert read_group(tmp_path, mine) == Group(1.5, 1 << 30, 0.0)


def test_no_group_is_no_limit(tmp_path: Path) -> None:
    assert read_group(tmp_path, "") == read_group(tmp_path, "0::/a/b\n") == Group()


def test_a_process_may_have_the_memory_of_the_machine_or_less_by_a_control_group(tmp_path: Path) -> None:
    assert memory_max(tmp_path) is None
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "meminfo").write_text("MemTotal:        2048 kB\nMemFree:           10 kB\n")
    (tmp_path / "proc" / "self" / "cgroup").write_text("0::/muster\n")
    assert memory_max(tmp_path) == 2 << 20
    group = tmp_path / "sys" / "fs" / "cgroup" / "muster"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("1048576\n")
    assert memory_max(tmp_path) == 1 << 20
    assert [finding.level for finding in machine.group(Group(), 4, 128)] == ["ok", "ok"]


@pytest.mark.parametrize(
    ("limits", "levels"),
    [
        (Group(0.5), ["warn", "ok"]),
        (Group(2.0, None, 0.2), ["warn", "ok"]),
        (Group(2.0, 368 << 20), ["ok", "ok"]),
        (Group(2.0, 367 << 20), ["ok", "warn"]),
    ],
)
def test_limits_are_held_against_what_the_nodes_take(limits: Group, levels: list[Level]) -> None:
    assert [finding.level for finding in machine.group(limits, 4, 128)] == levels


def test_memory_is_held_against_full_rings() -> None:
    page = "MemTotal: 9 kB\nMemFree: 1 kB\nMemAvailable:  {} kB\n"
    assert machine.memory(page.format(368 << 10), 4, 128).level == "ok"
    assert machine.memory(page.format(300 << 10), 4, 128).level == "warn"


@pytest.mark.parametrize(
    ("page", "level"),
    [
        ("processor : 0\nflags\t\t: fpu aes avx\n", "ok"),
        ("processor : 0\nflags\t\t: fpu avx\n", "warn"),
        ("Features\t: fp asimd aes pmull\n", "ok"),
        ("Features\t: fp asimd\n", "warn"),
        ("hart : 0\n", "ok"),
    ],
)
def test_a_processor_without_aes_is_slow(page: str, level: Level) -> None:
    assert machine.aes(page).level == level


def test_library_and_server_must_be_of_one_tree() -> None:
    assert machine.versions({"muster": "1.0", "muster-server": "1.0", "uvloop": "0.22"})[0].level == "ok"
    assert machine.versions({"muster": "1.0", "muster-server": "1.1"})[0].level == "fail"
    (missing,) = machine.versions({"muster": "1.0", "muster-server": "1.0", "uvloop": None})
    assert (missing.level, missing.text) == ("fail", "not installed: uvloop")
