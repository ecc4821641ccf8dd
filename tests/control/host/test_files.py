"""Files are replaced as a whole: a failed write is named, and the old content stays."""

import errno
import os
from pathlib import Path

import pytest

from muster_server.plane.files import write_atomically


def test_a_disk_that_is_full_is_said_with_the_file_and_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "epoch"
    file.write_bytes(b"7")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_atomically(file, b"8")
    assert caught.value.filename == str(file)
    assert str(file) in str(caught.value)
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("epoch", b"7")]
