"""docs/scaling.md: its table is what its program prints."""

import contextlib
import io
from typing import Any

from tests.documents import ROOT, cells, fenced

PAGE = (ROOT / "docs" / "scaling.md").read_text()


def test_the_table_of_what_millions_of_clients_need_is_what_the_program_prints() -> None:
    (program,) = fenced(PAGE, "python")
    printed = io.StringIO()
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(printed):
        exec(compile(program, "docs/scaling.md", "exec"), names)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in printed.getvalue().splitlines()]
    assert rows == list(cells(PAGE, "what", "10 M", "100 M"))
    assert len(rows) == len(names["plan"](1))


def test_the_limits_of_the_plan_are_those_of_the_core() -> None:
    limits = (ROOT / "core" / "rooms" / "src" / "limits.rs").read_text()
    sessions = (ROOT / "core" / "transport" / "src" / "sessions.rs").read_text()
    assert "ROOMS_MAX: usize = 4 << 20;" in limits
    assert "SESSIONS_MAX: usize = 1 << 20;" in sessions
    (program,) = fenced(PAGE, "python")
    assert f"MEMBERSHIPS_MAX, SESSIONS_MAX = {4 << 20:_}, {1 << 20:_}" in program
