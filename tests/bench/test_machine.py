"""Pinning, CPU of other processes, children and namespaces, on the real machine."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench import cpu, machine, netns, pin
from bench.child import Child, ChildFailedError, free_port, listens


def test_a_pin_lasts_as_long_as_its_block_and_is_inherited() -> None:
    before = os.sched_getaffinity(0)
    with pin.on(pin.SERVER_CORE):
        assert os.sched_getaffinity(0) == {pin.SERVER_CORE}
        shown = subprocess.run(
            [sys.executable, "-c", "import os; print(*os.sched_getaffinity(0))"], capture_output=True, check=True
        )
    assert shown.stdout.split() == [str(pin.SERVER_CORE).encode()]
    assert os.sched_getaffinity(0) == before


def test_cpu_of_this_process_agrees_with_its_own_clock() -> None:
    for _ in range(3):
        low, seen, high = time.process_time_ns(), cpu.process_ns(os.getpid()), time.process_time_ns()
        assert low <= seen <= high
    ticks = cpu.ticks_ns(os.getpid())
    assert abs(ticks - time.process_time_ns()) < 100_000_000


def test_cpu_of_a_process_includes_threads_that_ended() -> None:
    burn = "\n".join(
        [
            "import threading, time",
            "def work():",
            "    while time.thread_time() < 0.1: pass",
            "thread = threading.Thread(target=work); thread.start(); thread.join(); print('done', flush=True); input()",
        ]
    )
    with subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert cpu.process_ns(child.pid) > 100_000_000
        assert cpu.rss_bytes(child.pid) > 1 << 20
        child.kill()


def test_a_process_that_is_gone_has_no_cpu() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    with pytest.raises(ProcessLookupError, match="is gone"):
        cpu.process_ns(child.pid)


def test_a_child_runs_where_it_was_told_and_ends_when_told(tmp_path: Path) -> None:
    child = Child("sleeper", ["sleep", "60"], core=pin.SERVER_CORE, directory=tmp_path)
    assert os.sched_getaffinity(child.pid) == {pin.SERVER_CORE}
    child.stop()
    child.stop()
    assert child.process.returncode is not None


def test_a_child_that_fails_is_quoted(tmp_path: Path) -> None:
    child = Child("teller", ["sh", "-c", "echo no such luck; exit 3"], core=pin.SERVER_CORE, directory=tmp_path)
    with pytest.raises(ChildFailedError, match="teller ended with code 3: no such luck"):
        child.wait_until(lambda: False)
    slow = Child("slow", ["sleep", "60"], core=pin.SERVER_CORE, directory=tmp_path)
    with pytest.raises(ChildFailedError, match="not ready after"):
        slow.wait_until(lambda: False, seconds=0.02)
    slow.stop()


def test_a_free_port_has_no_listener() -> None:
    assert not listens(free_port())


def test_the_machine_describes_itself() -> None:
    described = machine.describe().as_dict()
    assert described["cores"]
    assert described["cpu"]
    spent = machine.Times.now().since(machine.Times.now())
    assert set(spent) == {"busy_s", "steal_s"}


@pytest.mark.parametrize(("variant", "wanted"), [("plain", "65536"), ("wire", "1500")])
def test_a_namespace_has_a_loopback_of_its_own(variant: netns.Variant, wanted: str) -> None:
    try:
        prefix = netns.command(variant)
    except netns.NotPossibleError as reason:
        pytest.skip(str(reason))
    shown = subprocess.run(
        [*prefix, "sh", "-c", "cat /sys/class/net/lo/mtu; ls /sys/class/net; ip -d link show lo"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert f"mtu {wanted} " in shown
    assert "<LOOPBACK,UP" in shown
    assert ("gso_max_segs 1 " in shown) is (variant == "wire")


def test_inside_is_known_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(netns.INSIDE, "wire")
    assert netns.inside() == "wire"
    netns.enter("wire")  # already there: returns


def test_no_way_in_is_said_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netns, "_WAYS", (("false",), ("no-such-command",)))
    with pytest.raises(netns.NotPossibleError, match="no private network namespace"):
        netns.command("plain")
