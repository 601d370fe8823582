"""What the control plane receives is never unpickled: unpickling runs code."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import flintlock

SOURCE = Path(flintlock.__file__).parent
LOADERS = {"pickle", "_pickle", "cloudpickle", "marshal", "shelve", "dill", "joblib"}
#: What runs in task runners and Spark's workers, and the client, which writes pickles and reads none.
MAY_LOAD = {"spark", "client", "cli"}


def _imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def test_no_module_of_the_control_plane_imports_a_loader_of_pickles() -> None:
    checked = [path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).parts[0] not in MAY_LOAD]
    assert len(checked) > 100
    assert {str(path.relative_to(SOURCE)): names for path in checked if (names := _imports(path) & LOADERS)} == {}


def test_a_jobmanager_has_no_loader_of_user_code_in_memory() -> None:
    code = "import sys, flintlock.entrypoints.jobmanager; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "flintlock.dispatcher.endpoint" in loaded
    assert not {"cloudpickle", "dill", "joblib", "shelve"} & set(loaded)
    assert not [name for name in loaded if name.startswith(("pyspark", "flintlock.spark.runner.process"))]
