"""Principals, and the sessions that belong to them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from krappy.core.security.principal import ANONYMOUS, Principal
from krappy.testing.sessions import kafka_session, native_session


def test_its_names_are_those_that_acls_use() -> None:
    assert str(ANONYMOUS) == "User:ANONYMOUS"
    assert Principal(name="ada", groups=("ops", "dev")).names == ("User:ada", "Group:ops", "Group:dev")


def test_who_has_one_ipv6_address_is_one_owner_with_all_of_its_network() -> None:
    """Else a user without a name would have as many shares of what users share as he has addresses: 2**64."""
    hosts = {"2001:db8::1": "2001:db8::/64", "2001:db8::2": "2001:db8::/64", "10.0.0.7": "10.0.0.7"}
    assert {host: Principal(host=host).owner for host in hosts} == hosts
    assert Principal(name="ada", mechanism="PLAIN", host="2001:db8::1").owner == "User:ada"


@pytest.mark.parametrize("make", [native_session, kafka_session])
def test_the_door_of_a_session_is_its_principals(make: Any) -> None:
    session = make(SimpleNamespace(id=0, access=lambda principal, session: ("the door of", principal)), "[::1]:5000")
    assert session.principal == Principal(host="::1", listener=session.principal.listener)
    session.principal = ada = Principal(name="ada")
    assert session.access == ("the door of", ada)
