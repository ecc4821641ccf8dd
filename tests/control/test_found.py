"""Who a command asks: a node that listens on the loopback of another host is not asked, and says how it can be."""

import msgspec
import pytest

from control.commands import common
from control.errors import UserError
from control.options import Up
from tests.control.nodes import processes

ELSEWHERE = ("192.0.2.1", 7_410)
"""No address of this machine, by RFC 5737."""


@pytest.mark.parametrize(
    ("link", "admin", "said"),
    [
        (ELSEWHERE, ("127.0.0.1", 7_490), "on its own host alone, 192.0.2.1, at 127.0.0.1:7490; serve.admin there"),
        (("2001:db8::1", 7_410), ("::1", 7_490), "on its own host alone, 2001:db8::1, at [::1]:7490"),
        (ELSEWHERE, ("", 0), "has not registered where operators ask it"),
        (("127.0.0.1", 7_410), ("127.0.0.1", 1), "does not answer on 127.0.0.1:1"),
    ],
)
def test_who_cannot_be_asked_from_here_is_one_line(link: tuple[str, int], admin: tuple[str, int], said: str) -> None:
    process = msgspec.structs.replace(processes(Up())[0], link=link, admin=admin)
    with pytest.raises(UserError, match=f"^{process.name} ") as caught:
        common.get(process, "/api/v1/status")
    assert said in str(caught.value)
    assert caught.value.exit_code == 75
