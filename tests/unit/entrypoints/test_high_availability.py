"""What is checked before a JobManager starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from flintlock.config.configuration import Configuration
from flintlock.entrypoints.high_availability import check_leases, checkpoints_dir, unshared_checkpoints, work_dir
from flintlock.entrypoints.process import ProcessSettings
from flintlock.model.errors import Invalid
from flintlock.security.cluster_secret import ClusterSecret


@pytest.mark.parametrize("kind", ["embedded", "zookeeper"])
def test_the_defaults_let_work_outlive_a_change_of_leader(kind: str) -> None:
    check_leases(Configuration({"high-availability.type": kind}))


def test_a_lease_that_ends_before_another_can_lead_is_refused_with_keys_and_values() -> None:
    wanted = {
        "high-availability.type": "zookeeper",
        "high-availability.zookeeper.client.session-timeout": "60 s",
        "high-availability.recovery-time": "20 s",
    }
    with pytest.raises(Invalid) as refusal:
        check_leases(Configuration(wanted))

    message = refusal.value.public
    for part in (
        "heartbeat.timeout (50 s)",
        "(40 s)",
        "high-availability.zookeeper.client.session-timeout (60 s)",
        "high-availability.recovery-time (20 s)",
    ):
        assert part in message
    check_leases(Configuration({**wanted, "heartbeat.timeout": "101 s"}))
    with pytest.raises(Invalid):
        check_leases(Configuration({**wanted, "heartbeat.timeout": "100 s"}))


def test_on_one_machine_the_silence_of_the_leader_counts() -> None:
    with pytest.raises(Invalid, match=r"high-availability\.embedded\.silence-timeout \(25 s\)"):
        check_leases(Configuration({"high-availability.embedded.silence-timeout": "25 s"}))
    check_leases(Configuration({"high-availability.zookeeper.client.session-timeout": "1 h"}))  # not used


def test_a_session_timeout_that_the_ensemble_granted_counts_instead_of_the_configured_one() -> None:
    configuration = Configuration({"high-availability.type": "zookeeper"})
    check_leases(configuration, granted_s=24.9)

    with pytest.raises(Invalid, match=r"session-timeout \(25 s, as granted, not 10 s as configured\)"):
        check_leases(configuration, granted_s=25.0)


def test_blocking_results_are_where_the_user_of_user_code_can_write() -> None:
    """JobManagers and TaskManagers have to agree on it."""

    def place(state_dir: str = "/state", **given: str) -> str:
        configuration = Configuration({key.replace("__", ".").replace("_", "-"): value for key, value in given.items()})
        settings = ProcessSettings(
            state_dir=Path(state_dir), configuration=configuration, secret=ClusterSecret(bytes(32))
        )
        return work_dir(settings)

    assert place() == "/state/work"
    own = place(taskmanager__runner__user="nobody", taskmanager__runner__directory="/runners")
    assert own.startswith("/runners/")
    assert own.endswith("-nobody/work")
    other = place("/other", taskmanager__runner__user="nobody", taskmanager__runner__directory="/runners")
    assert other != own, "two clusters of a machine share nothing"
    assert place(taskmanager__runner__user="nobody", execution__work_dir="/shared") == "/shared"


def test_checkpoints_are_where_all_taskmanagers_write() -> None:
    """Chosen, or in the shared storage, or in the state directory, or where the user of user code can write."""

    def place(**given: str) -> str:
        configuration = Configuration({key.replace("__", ".").replace("_", "-"): value for key, value in given.items()})
        secret = ClusterSecret(bytes(32))
        return checkpoints_dir(ProcessSettings(state_dir=Path("/state"), configuration=configuration, secret=secret))

    assert place() == "/state/checkpoints"
    assert place(state__checkpoints__dir="/chosen") == "/chosen"
    own = place(taskmanager__runner__user="nobody", taskmanager__runner__directory="/runners")
    assert own.startswith("/runners/")
    assert own.endswith("-nobody/checkpoints")


def test_checkpoints_are_of_each_machine_unless_their_place_was_chosen_or_storage_is_shared(tmp_path: Path) -> None:
    def place(given: dict[str, str]) -> str:
        secret = ClusterSecret(bytes(32))
        return unshared_checkpoints(
            ProcessSettings(state_dir=Path("/state"), configuration=Configuration(given), secret=secret)
        )

    zookeeper = {"high-availability.type": "zookeeper", "high-availability.storageDir": str(tmp_path)}
    assert place({}) == "/state/checkpoints"
    assert place({"state.checkpoints.dir": "/chosen"}) == ""
    assert place(zookeeper) == ""
