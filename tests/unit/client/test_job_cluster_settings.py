"""The settings of a cluster for one job: none of a session cluster of the same configuration are in its way."""

from __future__ import annotations

from flintlock.client.clusters.job_cluster import job_cluster_spec
from flintlock.config.configuration import Configuration
from flintlock.config.files import LoadedConfiguration
from flintlock.model.ids import JobId

JOB = JobId("a" * 32)
SESSION = {
    "high-availability.type": "zookeeper",
    "high-availability.cluster-id": "production",
    "high-availability.zookeeper.quorum": "zk:2181",
    "high-availability.storageDir": "/shared/ha",
    "security.secret-file": "/etc/secret",
}


def settings_of(given: dict[str, str], configured: dict[str, str] | None = None) -> dict[str, str]:
    """Return the settings that the cluster has, those of its configuration file included."""
    settings = LoadedConfiguration(configuration=Configuration(configured or {}), places={})
    spec = job_cluster_spec(settings, given, JOB, max_workers=1)
    return {**(configured or {}), **spec.settings}


def test_a_cluster_for_one_job_has_its_ha_data_in_its_own_directory() -> None:
    found = settings_of({}, SESSION)
    assert found["high-availability.type"] == "embedded"
    assert found["security.secret-file"] == ""
    assert found["resourcemanager.max-taskmanagers"] == "1"


def test_in_zookeeper_it_has_an_id_of_its_own_whatever_is_given() -> None:
    """It removes the data of its id when its job has ended."""
    found = settings_of({"high-availability.type": "zookeeper", "high-availability.cluster-id": "production"}, SESSION)
    assert found["high-availability.type"] == "zookeeper"
    assert found["high-availability.cluster-id"] == JOB
    assert found["high-availability.zookeeper.quorum"] == "zk:2181"
