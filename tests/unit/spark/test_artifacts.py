"""A job's files, by name in a directory, importable."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark import cloudpickle as connect_pickle

from flintlock.model.ids import BlobKey, JobId
from flintlock.model.jobgraph import Artifact, ArtifactKind, JobGraph
from flintlock.model.operations import ForeachBatch, Function
from flintlock.model.tasks import FailureKind
from flintlock.spark.region.artifacts import Artifacts
from flintlock.spark.region.errors.failures import TaskError

JOB = JobId("ab" * 16)


@pytest.fixture(autouse=True)
def own_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in [name for name in sys.modules if name.startswith("flintlock_sample")]:
        monkeypatch.delitem(sys.modules, name)


@pytest.fixture
def install(tmp_path: Path) -> Callable[..., Artifacts]:
    def installed(kind: ArtifactKind = ArtifactKind.PY_FILE, **files: bytes) -> Artifacts:
        blobs = tmp_path / "blobs"
        blobs.mkdir()
        contents: dict[str, str] = {}
        for number, (name, data) in enumerate(files.items()):
            blob = blobs / f"sha256-{number}"
            blob.write_bytes(data)
            contents[name] = str(blob)
        scratch = tmp_path / "scratch"
        scratch.mkdir()
        artifacts = Artifacts(scratch)
        graph = JobGraph(
            job_id=JOB,
            name="j",
            artifacts=tuple(Artifact(name=name, blob=BlobKey("x"), kind=kind) for name in files),
        )
        artifacts.install(graph, contents)
        return artifacts

    return installed


def archive(tmp_path: Path, **files: str) -> bytes:
    path = tmp_path / "made.zip"
    with zipfile.ZipFile(path, "w") as made:
        for name, text in files.items():
            made.writestr(name, text)
    return path.read_bytes()


def test_a_module_is_imported_and_sent_to_the_workers(install: Callable[..., Artifacts]) -> None:
    artifacts = install(**{"libs/flintlock_sample_one.py": b"def f(): return 1\n"})
    function = artifacts.function(Function(reference="flintlock_sample_one:f"))
    assert function() == 1
    assert [path.name for path in artifacts.uploads] == ["flintlock_sample_one.py"]
    assert artifacts.path("libs/flintlock_sample_one.py").is_file()


@pytest.mark.parametrize(
    ("name", "upload"),
    [("two.zip", "two.zip"), ("two", "two.zip"), ("two-1.0-py3-none-any.whl", "two-1.0-py3-none-any.whl.zip")],
)
def test_packages_come_in_archives(install: Callable[..., Artifacts], tmp_path: Path, name: str, upload: str) -> None:
    data = archive(
        tmp_path, **{"flintlock_sample_two/__init__.py": "", "flintlock_sample_two/x.py": "class C:\n  g = len\n"}
    )
    artifacts = install(**{name: data})
    assert artifacts.function(Function(reference="flintlock_sample_two.x:C.g"))("abc") == 3
    assert [path.name for path in artifacts.uploads] == [upload]


def test_a_folder_that_travels_as_a_zip_is_one_again(install: Callable[..., Artifacts], tmp_path: Path) -> None:
    """Its modules find their data files; PySpark's own entries on sys.path do not come before."""
    text = "from pathlib import Path\ndef f(): return (Path(__file__).parent / 'blob').read_text()\n"
    artifacts = install(**{"flintlock_sample_four.zip": archive(
        tmp_path, **{"flintlock_sample_four/__init__.py": text, "flintlock_sample_four/blob": "data"}
    )})  # fmt: skip
    copy = tmp_path / "copy" / "flintlock_sample_four.zip"
    sys.path.insert(0, str(copy))
    artifacts.hide_archives()

    assert str(copy) not in sys.path
    assert artifacts.function(Function(reference="flintlock_sample_four:f"))() == "data"
    assert [path.name for path in artifacts.uploads] == ["flintlock_sample_four.zip"]


def test_a_plain_file_is_in_the_directory_and_not_sent_to_workers(install: Callable[..., Artifacts]) -> None:
    artifacts = install(ArtifactKind.FILE, **{"data.csv": b"1"})
    assert (artifacts.directory / "data.csv").read_bytes() == b"1"
    assert artifacts.uploads == ()


def test_no_name_leads_out_of_the_directory(install: Callable[..., Artifacts]) -> None:
    artifacts = install(ArtifactKind.FILE, **{"../../etc/passwd": b"1", "/abs": b"2"})
    assert artifacts.path("../../etc/passwd") == artifacts.directory / "etc/passwd"
    assert artifacts.path("/abs") == artifacts.directory / "abs"


def test_a_missing_artifact_is_named(tmp_path: Path) -> None:
    graph = JobGraph(job_id=JOB, name="j", artifacts=(Artifact(name="lib.zip", blob=BlobKey("sha256-x")),))
    with pytest.raises(TaskError, match=r"'lib.zip' \(sha256-x\)") as caught:
        Artifacts(tmp_path).install(graph, {})
    assert caught.value.kind is FailureKind.MISSING_ARTIFACT


def test_a_missing_attribute_is_named(install: Callable[..., Artifacts]) -> None:
    artifacts = install(**{"flintlock_sample_three.py": b"x = 1\n"})
    with pytest.raises(TaskError, match="there is no 'nope' in module 'flintlock_sample_three'"):
        artifacts.function(Function(reference="flintlock_sample_three:nope"))
    with pytest.raises(TaskError, match="is a int, not a function"):
        artifacts.function(Function(reference="flintlock_sample_three:x"))


def test_only_a_class_of_spark_is_a_data_source(install: Callable[..., Artifacts]) -> None:
    artifacts = install(**{"flintlock_sample_source.py": b"class Numbers:\n    pass\n"})
    with pytest.raises(TaskError, match="'flintlock_sample_source:Numbers' is no subclass of"):
        artifacts.data_source("flintlock_sample_source:Numbers")


def test_a_missing_module_is_an_error_of_user_code(install: Callable[..., Artifacts]) -> None:
    with pytest.raises(ModuleNotFoundError):
        install().function(Function(reference="flintlock_sample_nowhere:f"))


def test_a_function_for_batches_works_in_a_process_that_gets_no_files_of_the_job(
    install: Callable[..., Artifacts],
) -> None:
    """With a module that it imports when it is called, too."""
    text = "import flintlock_sample_names as names\n"
    text += "def write(batch, batch_id):\n    import flintlock_sample_late as late\n"
    artifacts = install(
        **{
            "flintlock_sample_batches.py": f"{text}    print(names.NAME, late.LATE, batch_id)\n".encode(),
            "flintlock_sample_names.py": b"NAME = 'own'\n",
            "flintlock_sample_late.py": b"LATE = 'late'\n",
        }
    )
    function = artifacts.batch_function(ForeachBatch(reference="flintlock_sample_batches:write"))
    program = "import sys; from pyspark import cloudpickle; cloudpickle.loads(sys.stdin.buffer.read())(None, 7)"

    called = subprocess.run(
        [sys.executable, "-P", "-c", program], input=connect_pickle.dumps(function), capture_output=True, check=True
    )

    assert called.stdout == b"own late 7\n"
