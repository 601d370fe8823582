from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from flintlock.client.authoring.job import Job
from flintlock.client.authoring.package import JobPackage, Overrides
from flintlock.client.authoring.targets import read_target
from flintlock.model.errors import Invalid
from flintlock.model.operations import Function

LOCK = threading.Lock()


def opened_elsewhere(package: JobPackage, step: str, call: str, path: Path) -> str:
    """Open a step's function in a fresh interpreter that knows nothing of the job's file, and call it there."""
    operation = package.graph.vertex(step).operation
    assert isinstance(operation, Function)
    assert operation.pickle is not None
    content = package.files[operation.pickle]
    assert isinstance(content, bytes)
    (path / "function.pickle").write_bytes(content)
    code = f"import pickle; f = pickle.load(open('function.pickle', 'rb')); print({call})"
    done = subprocess.run([sys.executable, "-c", code], cwd=path, capture_output=True, text=True, check=False)
    return done.stdout.strip() or done.stderr


def job_file(path: Path, text: str) -> Path:
    file = path / "pricing_job.py"
    file.write_text("import flintlock as fl\n" + text)
    return file


def test_functions_of_the_jobs_file_are_pickled_with_their_helpers(tmp_path: Path) -> None:
    file = job_file(
        tmp_path,
        "RATE = 3\n"
        "def helper(x): return x * RATE\n"
        "job = fl.Job('j')\n"
        "@job.step\n"
        "def base(spark): return helper(spark)\n"
        "@job.step(inputs=[base])\n"
        "def more(base): return base + helper(1)\n"
        "job.result('r', more)\n",
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    package = read_target(f"{file}:job").package()

    assert opened_elsewhere(package, "base", "f(spark=7)", elsewhere) == "21"
    assert opened_elsewhere(package, "more", "f(1)", elsewhere) == "4"


def test_a_step_function_may_call_another_one(tmp_path: Path) -> None:
    file = job_file(
        tmp_path,
        "job = fl.Job('j')\n"
        "@job.step\n"
        "def base(spark): return spark\n"
        "@job.step(inputs=[base])\n"
        "def again(x): return globals()['base'](x) + 1 if False else base(x) + 1\n"
        "job.result('r', again)\n",
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    assert opened_elsewhere(read_target(f"{file}:job").package(), "again", "f(1)", elsewhere) == "2"


def test_modules_of_py_files_are_imported_where_the_function_runs(tmp_path: Path) -> None:
    (tmp_path / "lib_prices").mkdir()
    (tmp_path / "lib_prices" / "score.py").write_text("def score(x): return x + 1\n")
    file = job_file(
        tmp_path,
        "from lib_prices.score import score\n"
        "job = fl.Job('j', py_files=['lib_prices'])\n"
        "@job.step\n"
        "def base(spark): return score(spark)\n"
        "job.result('r', base)\n",
    )
    package = read_target(f"{file}:job").package()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    assert "No module named 'lib_prices'" in opened_elsewhere(package, "base", "f(spark=1)", elsewhere)
    content = package.files["lib_prices.zip"]
    assert isinstance(content, bytes)
    (elsewhere / "lib_prices.zip").write_bytes(content)
    with_zip = (
        "(__import__('sys').path.insert(0, 'lib_prices.zip'), pickle.load(open('function.pickle', 'rb')))[1](spark=1)"
    )
    code = f"import pickle; print({with_zip})"
    done = subprocess.run([sys.executable, "-c", code], cwd=elsewhere, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "2", done.stderr


def test_a_module_that_stays_behind_is_found_before_anything_is_sent(tmp_path: Path) -> None:
    (tmp_path / "left_behind.py").write_text("def score(x): return x + 1\n")
    file = job_file(
        tmp_path,
        "import left_behind\n"
        "job = fl.Job('j')\n"
        "@job.step\n"
        "def base(spark): return left_behind.score(spark)\n"
        "job.result('r', base)\n",
    )
    job = read_target(f"{file}:job")

    with pytest.raises(Invalid, match=r"step 'base', field 'function': uses the module 'left_behind' .*py_files"):
        job.package()
    assert "left_behind.py" in job.package(Overrides(py_files=(tmp_path / "left_behind.py",))).files


def uses_lock() -> object:
    return LOCK


def test_what_cannot_be_pickled_is_named_with_its_step() -> None:
    job = Job("locked")

    @job.step
    def guarded(spark: object) -> object:
        return uses_lock(), spark

    job.result("r", guarded)
    with pytest.raises(Invalid) as caught:
        job.package()
    assert "step 'guarded', field 'function': cannot be pickled" in caught.value.public
    assert "the variable 'LOCK' (lock) (used by 'uses_lock')" in caught.value.public
    assert isinstance(caught.value.__cause__, TypeError)


def test_a_step_function_cannot_take_the_job_or_a_source_along() -> None:
    job = Job("whole")
    orders = job.source("orders", format="csv", path="x")

    @job.step
    def greedy(spark: object) -> object:
        return spark, job.params

    @job.step
    def curious(spark: object) -> object:
        return spark, orders

    job.result("r", greedy)
    with pytest.raises(Invalid, match="cannot use the Job itself: take an argument `params`"):
        job.package()
    with pytest.raises(TypeError, match="name it in inputs"):
        pickle.dumps(orders)
    assert curious.name == "curious"
