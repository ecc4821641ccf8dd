"""What the tests of commands share."""

from pathlib import Path

import pytest

from tests.control.command import Command


@pytest.fixture
def muster(tmp_path: Path) -> Command:
    return Command(tmp_path / "instance")
