"""Debian's Chromium for tests: `scripts/setup.sh --tests` installs it."""

import os
import shutil

import pytest

MEND = "needs Chromium; to install it: apt-get install --no-install-recommends chromium"


def chromium() -> str:
    """The program. Skips if it is missing, and fails where nothing may be."""
    found = shutil.which("chromium")
    if found is not None:
        return found
    if os.environ.get("CI") == "true":
        pytest.fail(MEND)
    pytest.skip(MEND)
