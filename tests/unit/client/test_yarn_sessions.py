"""Sessions on YARN, as a client finds them again without asking YARN."""

from __future__ import annotations

from pathlib import Path

import pytest

from flintlock.cli.main import run_app
from flintlock.client.clusters.discovery import find_cluster
from flintlock.client.clusters.yarn_cluster import YarnSessions, checked_id
from flintlock.config.configuration import Configuration
from flintlock.config.files import LoadedConfiguration
from flintlock.model.errors import Refused
from flintlock.yarn.bridge import hadoop_conf_dir

ID = "application_1700000000000_0001"
SECRET = "ab" * 32


@pytest.fixture
def known(tmp_path: Path) -> Path:
    """A state directory with a session that was started there."""
    place = tmp_path / "yarn" / ID
    place.mkdir(parents=True)
    (place / "cluster-secret").write_text(SECRET)
    (place / "cluster-secret").chmod(0o600)
    (place / "rest").write_text("http://10.0.0.1:8081")
    (tmp_path / "yarn" / "session").write_text(ID)
    return tmp_path


def test_an_application_id_is_an_address(known: Path) -> None:
    """Its credential is made with the secret of that session."""
    settings = LoadedConfiguration(configuration=Configuration(), places={})
    found = find_cluster(settings, [f"yarn://{ID}"], known)
    assert found is not None
    assert found.urls == ("http://10.0.0.1:8081",)
    assert found.credentials is not None
    assert found.credentials.find("http://10.0.0.1:8081", 1_000) is not None


def test_an_application_is_the_only_address_of_a_command(known: Path) -> None:
    settings = LoadedConfiguration(configuration=Configuration(), places={})
    with pytest.raises(Refused, match="give no other address beside it"):
        find_cluster(settings, [f"yarn://{ID}", "http://10.0.0.1:8081"], known)


def test_the_session_that_was_started_last_is_used_unless_another_one_is_configured(known: Path) -> None:
    assert YarnSessions(Configuration(), known).find().application_id == ID
    other = Configuration({"yarn.application.id": "no id"})
    with pytest.raises(Refused, match="'no id' is not the id of an application on YARN"):
        YarnSessions(other, known).find()


def test_without_a_session_the_user_reads_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="start one with `flintlock session start -t yarn`"):
        YarnSessions(Configuration(), tmp_path).find()


@pytest.mark.parametrize("text", ["", "yarn://", "application_1", "application_1_0001/..", "http://10.0.0.1:8081"])
def test_what_is_no_application_id_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="is not the id of an application"):
        checked_id(text)


def test_a_hadoop_configuration_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="HADOOP_CONF_DIR is not set"):
        hadoop_conf_dir({})
    with pytest.raises(Refused, match=r"HADOOP_CONF_DIR is .*, but there is no yarn-site.xml"):
        hadoop_conf_dir({"HADOOP_CONF_DIR": str(tmp_path)})
    (tmp_path / "yarn-site.xml").touch()
    assert hadoop_conf_dir({"YARN_CONF_DIR": str(tmp_path)}) == tmp_path


def test_a_session_target_and_an_address_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["run", "-t", "yarn-session", "-m", f"yarn://{ID}", "job.yaml"]) == 2
    assert "give either that or -m yarn://application_" in capsys.readouterr().err
