"""Sessions on YARN, as a client finds them again without asking YARN."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.unit.client.answering import serving

from flintlock.cli.main import run_app
from flintlock.client.authoring.targets import read_program
from flintlock.client.clusters.discovery import find_cluster
from flintlock.client.clusters.job_cluster import with_job_id
from flintlock.client.clusters.yarn_cluster import YarnJobClusters, YarnSessions, checked_id
from flintlock.config.configuration import Configuration
from flintlock.config.files import LoadedConfiguration
from flintlock.model.errors import Refused, Unavailable
from flintlock.testing.fakes.fake_yarn import FakeStaging, FakeYarn
from flintlock.yarn.bridge import hadoop_conf_dir
from flintlock.yarn.messages import YarnApplicationState

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


class Bridge:
    """A YARN that knows one application, as a client reaches it."""

    def __init__(self) -> None:
        self.yarn = FakeYarn()
        self.yarn.is_known = True
        self.yarn.states = [YarnApplicationState.RUNNING]
        self.staging = FakeStaging(ID)

    @contextmanager
    def open(self) -> Generator[tuple[FakeYarn, Callable[[str], FakeStaging]]]:
        yield self.yarn, lambda _: self.staging

    def sessions(self, state_dir: Path) -> YarnSessions:
        """Return the sessions of a client."""
        return YarnSessions(Configuration(), state_dir, self.open)


def test_a_session_of_another_machine_is_attached_with_the_secret_of_its_staging_directory(tmp_path: Path) -> None:
    bridge = Bridge()
    bridge.staging.contents["cluster-secret"] = SECRET.encode()
    attached = bridge.sessions(tmp_path).attach(ID)
    assert attached.rest == "http://127.0.0.1:8081"
    assert (tmp_path / "yarn" / ID / "cluster-secret").stat().st_mode & 0o077 == 0
    assert bridge.sessions(tmp_path).find().application_id == ID


def test_a_session_whose_files_are_elsewhere_is_refused_with_the_option(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"set yarn.staging-directory as it was when the cluster was started"):
        Bridge().sessions(tmp_path).attach(ID)


def test_an_application_of_another_kind_is_refused(tmp_path: Path) -> None:
    bridge = Bridge()
    bridge.yarn.kind = "SPARK"
    with pytest.raises(Refused, match="is an application of type 'SPARK', not of Flintlock"):
        bridge.sessions(tmp_path).attach(ID)


def test_a_session_is_attached_by_its_address_as_well(tmp_path: Path) -> None:
    bridge = Bridge()
    bridge.staging.contents["cluster-secret"] = SECRET.encode()
    assert bridge.sessions(tmp_path).attach(f"yarn://{ID}").application_id == ID
    assert {path.name for path in (tmp_path / "yarn").iterdir()} == {ID, "session"}
    assert bridge.sessions(tmp_path).find().application_id == ID


def test_a_command_for_one_cluster_does_not_change_which_session_is_used(known: Path) -> None:
    """`-m yarn://…` of a cluster that was started on another machine, a session or not."""
    other = "application_1700000000000_0002"
    bridge = Bridge()
    bridge.staging.contents["cluster-secret"] = SECRET.encode()
    assert bridge.sessions(known).find(f"yarn://{other}").application_id == other
    assert (known / "yarn" / other / "cluster-secret").is_file(), "the next command finds it without YARN"
    assert bridge.sessions(known).find().application_id == ID


def test_a_cluster_for_one_job_is_not_attached_as_a_session(known: Path) -> None:
    other = "application_1700000000000_0002"
    bridge = Bridge()
    bridge.staging.contents.update({"cluster-secret": SECRET.encode(), "job.tar": b""})
    with pytest.raises(Refused, match=f"is a cluster for one job or program, no session: .* -m yarn://{other}"):
        bridge.sessions(known).attach(other)
    assert bridge.sessions(known).find().application_id == ID


def test_a_cluster_whose_job_manager_yarn_is_starting_is_not_there_yet(tmp_path: Path) -> None:
    bridge = Bridge()
    bridge.yarn.states = [YarnApplicationState.ACCEPTED]
    with pytest.raises(Unavailable, match="is being started by YARN"):
        bridge.sessions(tmp_path).find(ID)
    assert not (tmp_path / "yarn").exists()


def test_a_client_finds_the_address_of_the_next_attempt(known: Path) -> None:
    bridge = Bridge()
    bridge.yarn.tracking_url = "http://10.0.0.2:8081"
    found = bridge.sessions(known).find(ID).running
    assert found.find is not None
    assert found.find() == ("http://10.0.0.2:8081",)
    assert bridge.sessions(known).find(ID).rest == "http://10.0.0.2:8081"  # without asking YARN again


def test_while_yarn_does_not_answer_the_last_address_has_to_do(known: Path) -> None:
    bridge = Bridge()
    bridge.yarn.is_known = False
    found = bridge.sessions(known).find(ID).running
    assert found.find is not None
    assert found.find() == ()


def test_a_client_of_a_session_that_has_ended_reads_how_and_forgets_its_secret(known: Path) -> None:
    bridge = Bridge()
    bridge.yarn.states = [YarnApplicationState.FAILED]
    bridge.yarn.final_status, bridge.yarn.diagnostics = "FAILED", "AM Container exited with exitCode: 5"
    found = bridge.sessions(known).find(ID).running
    assert found.find is not None
    with pytest.raises(Unavailable, match="has ended on YARN, FAILED: AM Container exited with exitCode: 5"):
        found.find()
    assert list((known / "yarn").iterdir()) == []


@pytest.mark.parametrize("attempt", ["RUNNING", "ACCEPTED"])
def test_a_session_that_does_not_answer_is_killed_by_yarn_when_it_is_stopped(known: Path, attempt: str) -> None:
    """Also while no attempt of its JobManager is registered."""
    (known / "yarn" / ID / "rest").write_text("http://127.0.0.1:1")
    bridge = Bridge()
    bridge.yarn.states = [YarnApplicationState(attempt)]
    bridge.yarn.tracking_url = "http://127.0.0.1:1"
    bridge.staging.create()
    report = bridge.sessions(known).stop()
    assert bridge.yarn.killed == [ID]
    assert report.state is YarnApplicationState.KILLED
    assert not bridge.staging.exists
    assert list((known / "yarn").iterdir()) == []


def test_a_session_that_no_job_manager_has_registered_for_is_killed_when_it_is_stopped(tmp_path: Path) -> None:
    bridge = Bridge()
    bridge.yarn.states = [YarnApplicationState.ACCEPTED]
    bridge.staging.contents["cluster-secret"] = SECRET.encode()
    assert bridge.sessions(tmp_path).stop(f"yarn://{ID}").state is YarnApplicationState.KILLED
    assert bridge.yarn.killed == [ID]


@pytest.mark.parametrize("state", ["RUNNING", "FINISHED"])
def test_an_application_of_another_kind_is_never_stopped(known: Path, state: str) -> None:
    """A mistyped id: neither it, nor anything in its name, is touched."""
    bridge = Bridge()
    bridge.yarn.kind, bridge.yarn.states = "SPARK", [YarnApplicationState(state)]
    with pytest.raises(Refused, match="is an application of type 'SPARK', not of Flintlock"):
        bridge.sessions(known).stop("application_1700000000000_0002")
    assert (bridge.yarn.killed, bridge.staging.removals) == ([], 0)


def test_a_session_whose_files_are_elsewhere_is_not_killed(tmp_path: Path) -> None:
    """It may answer, if only it is asked with its secret."""
    bridge = Bridge()
    with pytest.raises(Refused, match=r"set yarn.staging-directory as it was when the cluster was started"):
        bridge.sessions(tmp_path).stop(ID)
    assert (bridge.yarn.killed, bridge.staging.removals) == ([], 0)


def test_a_session_whose_job_manager_refuses_is_not_killed(known: Path) -> None:
    bridge = Bridge()
    with serving({"DELETE /cluster": [(403, {"errors": ["only an admin may shut it down"]})]}) as server:
        bridge.yarn.tracking_url = server.url
        with pytest.raises(Refused, match="only an admin may shut it down"):
            bridge.sessions(known).stop()
    assert (bridge.yarn.killed, bridge.staging.removals) == ([], 0)


@pytest.mark.parametrize(("configured", "slots"), [({}, "2"), ({"taskmanager.numberOfTaskSlots": "4"}, "4")])
def test_a_program_is_staged_as_the_job_of_an_application_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, configured: dict[str, str], slots: str
) -> None:
    """Its container has a slot for its first job, too; the address is how other commands reach it."""
    (tmp_path / "yarn-site.xml").touch()
    (tmp_path / "nightly.py").write_text("print(1)")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    bridge = Bridge()
    package = with_job_id(read_program(tmp_path / "nightly.py", application=True).package())
    clusters = YarnJobClusters(
        Configuration(configured), tmp_path, lambda _: None, application=True, open_bridge=bridge.open
    )
    with serving({"GET /readyz": [(200, {})]}) as server:
        bridge.yarn.tracking_url = server.url
        cluster = clusters.start(package, (), attached=False)

    assert cluster.address == "yarn://application_1_0001"
    (submission,) = bridge.yarn.submitted
    assert submission.name == "nightly"
    assert json.loads(bridge.staging.contents["flintlock.yaml"])["taskmanager.numberOfTaskSlots"] == slots
    with tarfile.open(fileobj=io.BytesIO(bridge.staging.contents["job.tar"])) as tar:
        member = tar.extractfile("job/description.json")
        assert member is not None
        description = json.load(member)
    assert (description["application"], description["attached"]) == (True, False)
    assert not (tmp_path / "yarn" / "session").exists(), "it is no session"


def test_an_address_that_was_found_is_tried_however_long_it_took_to_find(known: Path) -> None:
    """The bridge to YARN takes seconds to start, and more on a busy machine."""
    (known / "yarn" / ID / "rest").write_text("http://127.0.0.1:1")
    bridge = Bridge()
    with serving({"GET /jobs/overview": [(200, {"jobs": []})]}) as server:
        bridge.yarn.tracking_url = server.url
        with bridge.sessions(known).find(ID).running.client() as client:
            assert client.http.call("GET", "/jobs/overview", patience_s=0.0).json() == {"jobs": []}
