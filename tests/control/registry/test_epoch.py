"""An epoch strictly grows, whatever the clock or the disk did."""

from pathlib import Path

import pytest

from muster_server.control.errors import UserError
from muster_server.control.registry.epoch import CLOCK_MAX, EPOCH_MAX, next_epoch


def test_the_clock_leads_and_the_disk_holds_when_it_goes_back(tmp_path: Path) -> None:
    assert next_epoch(tmp_path, 3, now=1000.9) == 1000
    assert next_epoch(tmp_path, 3, now=1000.9) == 1001
    assert next_epoch(tmp_path, 3, now=5.0) == 1002
    assert next_epoch(tmp_path, 3, now=2000.0) == 2000


def test_nodes_have_epochs_of_their_own(tmp_path: Path) -> None:
    assert next_epoch(tmp_path, 1, now=10.0) == 10
    assert next_epoch(tmp_path, 2, now=10.0) == 10


def test_a_spoilt_file_is_named_and_never_taken_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "node-1").write_text("junk")
    with pytest.raises(UserError, match="node-1"):
        next_epoch(tmp_path, 1)


def test_an_epoch_fits_the_wire(tmp_path: Path) -> None:
    (tmp_path / "node-1").write_text(str(EPOCH_MAX))
    with pytest.raises(UserError, match="no epochs of node 1 are left"):
        next_epoch(tmp_path, 1)


def test_a_clock_far_ahead_takes_no_epochs(tmp_path: Path) -> None:
    assert next_epoch(tmp_path, 1, now=2_000_000_000) == 2_000_000_000
    for wrong in (CLOCK_MAX + 1, EPOCH_MAX - 95, EPOCH_MAX + 5):
        with pytest.raises(UserError, match=r"the clock of this machine says 2(097|106)-.*: correct it"):
            next_epoch(tmp_path, 1, now=wrong)
    assert next_epoch(tmp_path, 1, now=2_000_000_001) == 2_000_000_001
    assert next_epoch(tmp_path, 2, now=CLOCK_MAX) == CLOCK_MAX
