from __future__ import annotations

import pytest

from flintlock.client.connection.versions import incompatibilities, own_versions, require_compatible
from flintlock.model.errors import Refused
from flintlock.model.jobgraph import Versions

HERE = Versions(flintlock="0.1.0", python="3.11", pyspark="4.3.0")


def test_what_runs_here_is_found_without_importing_pyspark() -> None:
    found = own_versions()

    assert found.python.startswith("3.")
    assert found.pyspark.startswith("4.")


def test_each_incompatible_version_is_named() -> None:
    there = Versions(flintlock="0.2.0", python="3.12", pyspark="4.2.1")

    with pytest.raises(Refused) as caught:
        require_compatible(HERE, there, pickles=True)

    assert "Flintlock is 0.1.0 here and 0.2.0 on the cluster" in caught.value.public
    assert "Python is 3.11 here and 3.12 on the cluster" in caught.value.public
    assert "PySpark is 4.3.0 here and 4.2.1 on the cluster" in caught.value.public


def test_without_pickles_only_flintlock_has_to_be_compatible() -> None:
    assert incompatibilities(HERE, Versions(flintlock="0.1.9", python="3.12", pyspark="4.2.1"), pickles=False) == ()
    assert len(incompatibilities(HERE, Versions(flintlock="0.2.0", python="3.11", pyspark="4.3.0"), pickles=False)) == 1


def test_the_last_number_may_differ() -> None:
    assert incompatibilities(HERE, Versions(flintlock="0.1.7", python="3.11", pyspark="4.3.2"), pickles=True) == ()
