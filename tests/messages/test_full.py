"""A full disk under the schedule: nothing is accepted that is not durable, and all goes on once there is room."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import ROOT
from tests.waiting import PATIENT_S

NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount"]


def can_mount() -> bool:
    """Whether this user may have a file system of its own."""
    if not shutil.which("unshare"):
        return False
    return (
        subprocess.run(
            [*NAMESPACE, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False
        ).returncode
        == 0
    )


@pytest.mark.skipif(not can_mount(), reason="needs unshare with a user namespace")
def test_a_full_disk_refuses_and_loses_nothing(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = 'mount -t tmpfs -o size=48m none "$0" && exec "$@"'
    command = [*NAMESPACE, "sh", "-c", mounted, str(disk), sys.executable, "-m", "tests.messages.full", str(disk)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=PATIENT_S, check=False)
    assert done.returncode == 0, done.stderr[-3_000:]
    seen = json.loads(done.stdout)
    assert seen["refused"] == "disk_full"
    assert seen["waiting"] == seen["accepted"], "what was accepted is there, and nothing else"
    assert seen["states"] == ["done"] * 5, "results are taken once there is room"
