"""The host under which others reach a server."""

import ipaddress

import pytest

from muster_server.control.host.addresses import outward


@pytest.mark.parametrize("bound", ["0.0.0.0", "::"])
def test_server_on_all_addresses_is_told_by_one_that_others_reach(bound: str) -> None:
    told = outward(bound, "nowhere")
    assert told == "nowhere" or not ipaddress.ip_address(told).is_unspecified


def test_server_on_one_address_is_told_by_what_is_known() -> None:
    assert outward("127.0.0.1", "127.0.0.1") == "127.0.0.1"
    assert outward("10.1.2.3", "likes.example.com") == "likes.example.com"
