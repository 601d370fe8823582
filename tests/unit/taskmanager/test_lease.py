"""The arithmetic of leases: counting from the sending always ends before counting from the receipt."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flintlock.taskmanager.lease import Lease

TIMES = st.floats(min_value=0, max_value=1e7)
LENGTHS = st.floats(min_value=0.1, max_value=3600)


@given(sent_s=TIMES, delay_s=st.floats(min_value=0, max_value=1e4), length_s=LENGTHS)
def test_the_work_is_gone_before_the_leader_gives_it_up(sent_s: float, delay_s: float, length_s: float) -> None:
    """However long the heartbeat took."""
    lease = Lease(sent_s=sent_s, length_s=length_s)
    received_s = sent_s + delay_s

    assert lease.yields_s < lease.kills_s < received_s + length_s


@given(sent_s=TIMES, other_s=TIMES, length_s=LENGTHS)
def test_only_a_later_heartbeat_renews(sent_s: float, other_s: float, length_s: float) -> None:
    """Answers out of order never shorten a lease, and a late answer to an old heartbeat adds nothing."""
    lease = Lease(sent_s=sent_s, length_s=length_s)

    assert lease.renewed(other_s).sent_s == max(sent_s, other_s)
    assert lease.renewed(other_s).length_s == length_s


def test_a_lease_is_open_until_the_work_has_to_be_ended() -> None:
    """Not until it expires: what is admitted then could not be ended in time."""
    lease = Lease(sent_s=100, length_s=50)

    assert (lease.yields_s, lease.kills_s) == (140, 147.5)
    assert lease.is_open(139.9)
    assert not lease.is_open(140)
    assert (lease.left_s(130), lease.left_s(200)) == (10, 0)
