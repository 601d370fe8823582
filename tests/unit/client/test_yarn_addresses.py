"""Where the next attempt of a JobManager on YARN is found: in ZooKeeper at once, and by YARN if nothing comes there."""

from __future__ import annotations

from typing import Final, Self

import pytest

from flintlock.client.clusters import yarn_addresses
from flintlock.client.clusters.yarn_addresses import YarnAddresses
from flintlock.config.configuration import Configuration
from flintlock.model.errors import Unavailable

ID: Final = "application_1_0001"
FIRST: Final = "http://10.0.0.1:8081"
SECOND: Final = "http://10.0.0.2:8081"


class Register:
    """A leader's register, and YARN; a call of the register takes a second if there is no other leader."""

    spans_hosts = True

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.leader: str | None = FIRST
        self.is_reached = True
        self.now_s = 0.0
        self.asked: list[float] = []  # when YARN was
        monkeypatch.setattr(yarn_addresses, "ha_backend", self.backend)

    def backend(self, _: Configuration) -> Self:
        """Stand for every backend."""
        return self

    def leader_url(self, configuration: Configuration, *, wait_s: float, former: str = "") -> str | None:
        """Return the leader, after the whole time unless it is another one."""
        if not self.is_reached:
            raise Unavailable("out of reach")
        if self.leader is None or self.leader == former:
            self.now_s += wait_s
        return self.leader

    def ask_yarn(self) -> tuple[str, ...]:
        """Return the second address."""
        self.asked.append(self.now_s)
        return (SECOND,)

    def addresses(self, cluster_id: str = ID) -> YarnAddresses:
        settings = {"high-availability.cluster-id": cluster_id}
        return YarnAddresses(ID, settings, FIRST, self.ask_yarn, clock_s=lambda: self.now_s)


def test_the_next_leader_is_found_without_asking_yarn(monkeypatch: pytest.MonkeyPatch) -> None:
    register = Register(monkeypatch)
    addresses = register.addresses()
    assert addresses.find() == (), "the one that does not answer is still registered"
    register.leader = None
    assert addresses.find() == ()
    register.leader = SECOND
    assert addresses.find() == (SECOND,)
    assert register.asked == []


def test_yarn_is_asked_when_no_other_leader_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The application may have ended, or its leader may be one that does not answer yet."""
    register = Register(monkeypatch)
    addresses = register.addresses()
    found = [addresses.find() for _ in range(6)]
    assert found == [(), (), (), (), (), (SECOND,)]


def test_yarn_is_asked_at_once_without_a_register_of_this_application_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    register = Register(monkeypatch)
    register.leader = "http://10.0.0.3:8081"
    assert register.addresses("shared").find() == (SECOND,)
    register.is_reached = False
    assert register.addresses().find() == (SECOND,)
