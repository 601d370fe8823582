"""Spark's own UI through the JobManager: a link, and pages that can reach nothing else of the cluster."""

from __future__ import annotations

import httpx
import pytest
from tests.unit.rest.rest_harness import RESOURCES, RestHarness

from flintlock.model.access.principals import Role
from flintlock.model.diagnostics import EngineUiPage, ReadEngineUi
from flintlock.model.ids import TaskManagerId
from flintlock.security.spark_ui_links import LIFETIME_MS

TASK_MANAGER = TaskManagerId("tm-1")
PAGE = EngineUiPage(status=200, content_type="text/html;charset=utf-8", body=b"<html>jobs</html>")
NO_ORIGIN = {"Origin": "null", "Sec-Fetch-Site": "cross-site"}


@pytest.fixture
def rest() -> RestHarness:
    made = RestHarness()
    made.resource_manager.seen = RESOURCES
    return made


def link(rest: RestHarness) -> str:
    """Return the path of a new link, without its last slash."""
    response = rest.call("POST", f"/taskmanagers/{TASK_MANAGER}/spark-ui")
    assert (response.status_code, response.json()["expires-in"]) == (201, 3600)
    assert response.headers["cache-control"] == "no-store"
    path: str = response.json()["path"]
    assert path.startswith("/spark-ui/")
    assert path.endswith("/")
    return path[:-1]


def answer(rest: RestHarness, root: str, path: str, page: EngineUiPage = PAGE) -> None:
    """Have the engine answer this request of its UI, and no other one."""
    rest.resource_manager.process_answers = {ReadEngineUi(task_manager=TASK_MANAGER, path=path, root=root): page}


def without_credential(rest: RestHarness, path: str, **headers: str) -> httpx.Response:
    """Request a path as a page without an origin does."""
    return rest.call("GET", path, headers={"Authorization": "", **NO_ORIGIN, **headers})


def test_a_link_shows_the_pages_of_one_engine_without_a_credential(rest: RestHarness) -> None:
    root = link(rest)
    answer(rest, root, "/")

    response = without_credential(rest, f"{root}/")

    assert (response.status_code, response.content) == (200, PAGE.body)


@pytest.mark.parametrize("path", ["/jobs/", "/jobs/job/?id=1&a=%20b", "/static/webui.js", "/SQL/execution/?id=%2F"])
def test_paths_and_queries_reach_spark_as_they_were_sent(rest: RestHarness, path: str) -> None:
    root = link(rest)
    answer(rest, root, path)

    assert without_credential(rest, f"{root}{path}").status_code == 200
    assert without_credential(rest, f"/v1{root}{path}").status_code == 200


def test_scripts_of_a_page_have_no_origin_and_nothing_of_the_cluster(rest: RestHarness) -> None:
    """A page shows texts of jobs: what a script in it sends has no cookie, and every other route refuses it."""
    root = link(rest)
    answer(rest, root, "/jobs/")

    response = without_credential(rest, f"{root}/jobs/")

    policy = response.headers["content-security-policy"]
    assert policy.startswith("sandbox allow-scripts allow-forms;")
    assert "allow-same-origin" not in policy
    assert "default-src 'self'" in policy
    # Its own scripts, images and data are requests of a page without an origin.
    assert response.headers["access-control-allow-origin"] == "*"
    assert response.headers.get_list("cross-origin-resource-policy") == ["cross-origin"]
    refused = rest.call("GET", "/jobs", headers=NO_ORIGIN)
    assert refused.status_code == 403
    assert refused.headers["cross-origin-resource-policy"] == "same-origin"
    assert "access-control-allow-origin" not in refused.headers
    assert rest.call("GET", "/jobs").headers["cross-origin-resource-policy"] == "same-origin"


def test_pages_get_a_storage_which_they_have_not_without_an_origin(rest: RestHarness) -> None:
    root = link(rest)
    body = b"<html><head><title>x</title></head></html>"
    answer(rest, root, "/jobs/", EngineUiPage(status=200, content_type="text/html;charset=utf-8", body=body))

    text = without_credential(rest, f"{root}/jobs/").text

    assert text.startswith("<html><head><script>")
    assert text.endswith("</script><title>x</title></head></html>")
    answer(rest, root, "/a.json", EngineUiPage(status=200, content_type="application/json", body=b'"<head>"'))
    assert without_credential(rest, f"{root}/a.json").text == '"<head>"'


def test_browsers_may_ask_whether_a_page_can_send_a_request(rest: RestHarness) -> None:
    """Spark's pages read their data with a header of their own, for which browsers ask first."""
    asked = {**NO_ORIGIN, "Access-Control-Request-Method": "GET", "Access-Control-Request-Headers": "x-requested-with"}

    allowed = rest.call("OPTIONS", f"{link(rest)}/api/v1/applications", headers=asked)
    refused = rest.call("OPTIONS", "/jobs", headers=asked)

    assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (204, "*")
    assert "x-requested-with" in allowed.headers["access-control-allow-headers"]
    assert (refused.status_code, refused.headers.get("access-control-allow-origin")) == (403, None)


def test_redirections_stay_below_the_link_and_pages_are_not_stored(rest: RestHarness) -> None:
    root = link(rest)
    answer(rest, root, "/", EngineUiPage(status=302, content_type="text/html", body=b"", location=f"{root}/jobs/"))

    response = without_credential(rest, f"{root}/")

    assert (response.status_code, response.headers["location"]) == (302, f"{root}/jobs/")
    assert response.headers["cache-control"] == "no-store"
    answer(rest, root, "/static/a.js")
    assert without_credential(rest, f"{root}/static/a.js").headers["cache-control"] == "private, max-age=3600"


def test_a_pass_is_needed_and_expires(rest: RestHarness) -> None:
    root = link(rest)
    answer(rest, root, "/jobs/")

    assert rest.refused(403, "GET", "/spark-ui/x/jobs/")[0].startswith("the link to Spark's UI was not made by this")
    rest.now_ms += LIFETIME_MS
    assert "has expired" in rest.refused(403, "GET", f"{root}/jobs/")[0]


def test_only_operators_make_links_and_only_to_registered_task_managers(rest: RestHarness) -> None:
    made = rest.call("POST", "/tokens", json={"name": "ana", "role": Role.SUBMITTER})
    header = {"Authorization": f"Bearer {made.json()['token']}"}

    assert rest.call("POST", f"/taskmanagers/{TASK_MANAGER}/spark-ui", headers=header).status_code == 403
    assert rest.refused(404, "POST", "/taskmanagers/tm-9/spark-ui") == ["TaskManager tm-9 was not found"]


def test_nothing_can_be_changed_through_a_link(rest: RestHarness) -> None:
    root = link(rest)

    assert rest.call("POST", f"{root}/jobs/job/kill/?id=1").status_code == 405
