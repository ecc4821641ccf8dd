"""The picture of the README is drawn from the list of roles, and is current."""

from dataclasses import replace

import pytest

from muster_server.control.cli.picture import THEMES, Theme, svg
from muster_server.plane import systems
from muster_server.plane.kinds import kinds
from tests.documents import ROOT

PICTURES = ROOT / "docs" / "pictures"


@pytest.mark.parametrize("theme", THEMES, ids=[theme.ending or "light" for theme in THEMES])
def test_the_picture_is_current(theme: Theme) -> None:
    assert svg(theme) == (PICTURES / f"roles{theme.ending}.svg").read_text(), (
        ".venv/bin/python -m muster_server.control.cli.picture docs/pictures"
    )


def test_every_role_and_every_system_is_in_the_picture() -> None:
    picture = svg(THEMES[0])
    assert [role for role in kinds() if f">{role}</text>" not in picture] == []
    assert [system.title for system in systems.named().values() if system.http and system.title not in picture] == []


def test_a_role_with_another_name_changes_the_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    rooms = systems.named()["rooms"]
    renamed = replace(rooms, kinds=(replace(rooms.kinds[0], name="switch"), *rooms.kinds[1:]))
    monkeypatch.setattr(systems, "named", lambda: {"rooms": renamed, "probes": systems._KNOWN["probes"]})
    assert ">switch</text>" in svg(THEMES[0])
