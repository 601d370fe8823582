from __future__ import annotations

import re
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

from flintlock.config.extras import MODULES, Extra, install_command, missing_modules, require_extra
from flintlock.model.errors import Refused


def project() -> dict[str, Any]:
    return tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("extra", list(MODULES))
def test_an_extra_is_checked_by_the_packages_that_pyproject_names(extra: Extra) -> None:
    provided = packages_distributions()
    names = {name.lower().replace("_", "-") for module in MODULES[extra] for name in provided[module]}
    declared = {re.split(r"[^\w-]", requirement)[0] for requirement in project()["optional-dependencies"][extra]}

    # httptools is taken by uvicorn where it is installed, and not needed to start.
    assert declared - {"httptools"} == names


def test_what_is_installed_is_not_refused() -> None:
    assert missing_modules("cluster") == ()
    require_extra("cluster", "a test")


def test_a_missing_package_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODULES, "zookeeper", ("kazoo", "no_such_module"))  # pyright: ignore[reportArgumentType]

    with pytest.raises(Refused, match=r"a quorum needs packages .*\(no_such_module\): pip install 'flintlock\[zoo"):
        require_extra("zookeeper", "a quorum")
    assert install_command("zookeeper") == "pip install 'flintlock[zookeeper]'"


def test_the_operator_for_airflow_has_an_extra_that_is_in_no_pinned_environment() -> None:
    """Airflow pins hundreds of packages: it is never installed beside a cluster."""
    assert project()["optional-dependencies"]["airflow"] == ["apache-airflow-core>=3.3"]
    pinned = [path.read_text() for path in (Path(__file__).parents[3] / "requirements").glob("*.txt")]
    assert pinned
    assert not any("apache-airflow" in text for text in pinned)
