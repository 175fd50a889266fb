"""Listening: who has a port, what is wrong with a host, which addresses are this machine's own."""

from __future__ import annotations

import os
import socket

import pytest

from chains.errors import SettingError
from chains.sockets import is_loopback, listen


@pytest.mark.parametrize(("host", "says"), [("no.such.host.invalid", "not known"), ("192.0.2.1", "not an address")])
def test_a_host_that_is_not_ours(host: str, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        listen(host, 0)


def test_who_has_a_port_is_told_and_where_another_is_said() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingError, match=f"port {port} is in use by process {os.getpid()}.*--view-port"):
            listen("127.0.0.1", port, option="--view-port")


def test_a_port_can_be_shared_by_those_who_agree() -> None:
    with listen("127.0.0.1", 0, shared=True) as one, listen("127.0.0.1", one.getsockname()[1], shared=True) as other:
        assert one.getsockname() == other.getsockname()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.9.10", "::1", "[::1]", "a.localhost"])
def test_these_are_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "example.org", "localhost.example.org", "127.0.0.1.example.org", ""])
def test_these_are_not(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
def test_an_address_in_brackets_is_listened_at() -> None:
    with listen("[::1]", 0) as bound:
        assert bound.family is socket.AF_INET6
