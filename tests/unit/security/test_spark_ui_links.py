"""Links to Spark's UI: one TaskManager, one hour, one cluster."""

from __future__ import annotations

import pytest

from flintlock.model.errors import Forbidden
from flintlock.model.ids import TaskManagerId
from flintlock.security.cluster_secret import ClusterSecret
from flintlock.security.spark_ui_links import LIFETIME_MS, SparkUiLinks

LINKS = SparkUiLinks(ClusterSecret(b"a" * 32))
NOW_MS = 1_794_713_100_000


@pytest.mark.parametrize("name", ["tm-1", "host.example:4711", "a/b?c#d", "Größe"])
def test_a_pass_names_one_task_manager_and_fits_into_a_path(name: str) -> None:
    made = LINKS.make(TaskManagerId(name), NOW_MS)

    assert LINKS.task_manager(made, NOW_MS) == name
    assert all(character.isascii() and (character.isalnum() or character in "-_.") for character in made)


def test_a_pass_is_good_for_an_hour() -> None:
    made = LINKS.make(TaskManagerId("tm-1"), NOW_MS)

    assert LINKS.task_manager(made, NOW_MS + LIFETIME_MS - 1) == "tm-1"
    with pytest.raises(Forbidden, match="expired: run `flintlock spark-ui`"):
        LINKS.task_manager(made, NOW_MS + LIFETIME_MS)


def test_a_pass_of_another_cluster_or_for_another_task_manager_is_refused() -> None:
    made = LINKS.make(TaskManagerId("tm-1"), NOW_MS)
    other = SparkUiLinks(ClusterSecret(b"b" * 32)).make(TaskManagerId("tm-1"), NOW_MS)
    changed = LINKS.make(TaskManagerId("tm-2"), NOW_MS).rpartition(".")[0] + "." + made.rpartition(".")[2]

    for wrong in (other, changed, "", ".", "..", "x", made[:-1]):
        with pytest.raises(Forbidden, match="not made by this cluster"):
            LINKS.task_manager(wrong, NOW_MS)
