"""`flintlock run --module package.module`: a module as a program, as `python -m` runs it."""

from __future__ import annotations

import zipfile
from io import BytesIO
from pathlib import Path

import pytest

from flintlock.client.authoring.targets import read_target
from flintlock.model.errors import Invalid, Refused
from flintlock.model.jobgraph import EngineKind
from flintlock.model.operations import Program


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with a module to run, one with RDDs that it does not import, and modules beside it."""
    monkeypatch.chdir(tmp_path)
    files = {
        "shop/__init__.py": "",
        "shop/words.py": "import beside_shop\n",
        "shop/rates.json": "{}",
        "shop/old.py": "from pyspark import SparkContext\n",
        "shop/jobs/__init__.py": "from . import names\n",
        "shop/jobs/names.py": "",
        "shop/jobs/daily.py": "from ..words import x\nfrom json import loads\n",
        "shop/jobs/rdds.py": "from .. import old\n",
        "shop/jobs/broken.py": "def\n",
        "tool/__init__.py": "",
        "tool/__main__.py": "import shop.words\n",
        "beside_shop.py": "",
        "unused.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def refusal(module: str) -> str:
    with pytest.raises(Refused) as caught:
        read_target(module, as_module=True)
    return caught.value.public


def test_a_module_is_sent_with_its_package_and_the_modules_beside_it_that_it_imports(shop: Path) -> None:
    package = read_target("shop.jobs.daily", ["--day", "1"], as_module=True).package()

    assert package.graph.name == "shop.jobs.daily"
    assert sorted(package.files) == ["beside_shop.py", "shop.zip"]
    archive = package.files["shop.zip"]
    assert isinstance(archive, bytes)
    with zipfile.ZipFile(BytesIO(archive)) as names:
        assert {"shop/jobs/daily.py", "shop/rates.json"} <= set(names.namelist())
    (vertex,) = package.graph.vertices
    assert vertex.operation == Program(
        file="shop.zip", args=("--day", "1"), module="shop.jobs.daily", path=str(shop / "shop")
    )
    assert vertex.operation.describe() == "program: shop.jobs.daily --day 1"


def test_only_what_the_module_reaches_by_imports_decides_whether_it_needs_a_driver() -> None:
    assert read_target("shop.jobs.daily", as_module=True).package().graph.engine is EngineKind.AUTO
    assert read_target("shop.jobs.rdds", as_module=True).package().graph.engine is EngineKind.DEDICATED


def test_a_package_is_run_by_its_main_module_and_a_single_file_by_its_name() -> None:
    tool = read_target("tool", as_module=True).package()
    assert sorted(tool.files) == ["beside_shop.py", "shop.zip", "tool.zip"]
    single = read_target("unused", as_module=True).package()
    assert sorted(single.files) == ["unused.py"]


def test_a_module_that_cannot_be_run_is_refused_with_the_remedy(shop: Path) -> None:
    assert refusal("shop.jobs.dayly") == (
        "there is no module 'shop.jobs.dayly' in the current directory; did you mean 'shop.jobs.daily'?"
    )
    assert refusal("shop.jobs") == (
        "the package 'shop.jobs' has no __main__.py, so it cannot be run; give one of its modules: "
        "shop.jobs.broken, shop.jobs.daily, shop.jobs.names, shop.jobs.rdds"
    )
    assert refusal("unused.py") == (
        "'unused.py' names a file: to run it, leave out --module; to run it as a module, give its name 'unused'"
    )
    assert refusal("shop/jobs/daily.py") == (
        "'shop/jobs/daily.py' names a file: to run it, leave out --module; "
        "to run it as a module, give its name 'shop.jobs.daily'"
    )
    assert (
        refusal("shop:job")
        == "'shop:job' is not the name of a module: --module takes package.module, as python -m does"
    )
    assert "SyntaxError" in refusal("shop.jobs.broken")
    (shop / "src" / "late").mkdir(parents=True)
    (shop / "src" / "late" / "job.py").write_text("")
    assert refusal("late.job") == "the module 'late.job' is in 'src': run the command in that directory"
    (shop / "bare" / "deep").mkdir(parents=True)
    (shop / "bare" / "deep" / "job.py").write_text("")
    assert refusal("bare.deep.job") == "the package 'bare' has no __init__.py, so it cannot be sent with the job"


def test_the_name_of_a_module_without_the_option_is_refused_with_the_option() -> None:
    with pytest.raises(Refused, match=r"'shop\.jobs\.daily' is a module: run it as a program with --module shop"):
        read_target("shop.jobs.daily")


def test_a_document_with_a_name_that_no_module_has_is_invalid(shop: Path) -> None:
    (shop / "j.yaml").write_text("steps: {p: {program: {file: unused.py, module: 'not a module'}}}\n")
    with pytest.raises(Invalid, match=r"'not a module' is not the name of a module, such as package\.module"):
        read_target("j.yaml").package()
