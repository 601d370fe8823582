"""Handlers of Spark's own UI of an engine: a link to it, and its pages, which the TaskManager's engine answers."""

from __future__ import annotations

from typing import Final

from flintlock.api.cluster import SparkUiLink
from flintlock.model.diagnostics import EngineUiPage, ReadEngineUi
from flintlock.model.errors import NotFound, Unavailable
from flintlock.model.ids import TaskManagerId
from flintlock.rest.server.http import HttpResponse, RestCall, json_response, no_such
from flintlock.security.spark_ui_links import LIFETIME_MS, SparkUiLinks

#: No origin, and nothing from elsewhere: what a job's texts bring into a page reaches nothing of the reader.
_POLICY: Final = (
    "sandbox allow-scripts allow-forms; default-src 'self' 'unsafe-inline'; img-src 'self' data:;"
    " font-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    # Its own scripts read its own data, and have no origin. The path contains the pass.
    "Access-Control-Allow-Origin": "*",
}
#: A page without an origin has no storage, which Spark's scripts require: this one forgets with the page.
_STORAGE: Final = b"""<head><script>
for (const name of ["localStorage", "sessionStorage"]) {
  const items = new Map();
  Object.defineProperty(window, name, {value: {
    getItem: key => items.get(key) ?? null,
    setItem: (key, value) => void items.set(key, String(value)),
    removeItem: key => void items.delete(key),
  }});
}
</script>"""
_FOR_AN_HOUR: Final = "private, max-age=3600"


async def make_link(call: RestCall) -> HttpResponse:
    """Make a link to Spark's own UI of a TaskManager's engine; it can be used for an hour."""
    task_manager = TaskManagerId(call.path("taskmanagerid"))
    overview = await call.services.resource_manager.task_managers()
    if task_manager not in {each.id for each in overview.task_managers}:
        raise no_such("TaskManager", task_manager)
    made = _links(call).make(task_manager, call.services.clock_ms())
    link = SparkUiLink(path=f"/spark-ui/{made}/", expires_in=LIFETIME_MS // 1000)
    return json_response(link, 201, {"Cache-Control": "no-store"})


async def page(call: RestCall) -> HttpResponse:
    """A page, a script or an image of Spark's own UI of an engine."""
    given = call.path("pass")
    task_manager = _links(call).task_manager(given, call.services.clock_ms())
    asked = _asked(call, given)
    answer = await call.services.resource_manager.query_task_manager(
        ReadEngineUi(task_manager=task_manager, path=asked, root=f"/spark-ui/{given}")
    )
    if not isinstance(answer, EngineUiPage):
        raise Unavailable(f"TaskManager {task_manager} answered something else")
    headers = {**_HEADERS, "Cache-Control": _FOR_AN_HOUR if asked.startswith("/static/") else "no-store"}
    if answer.location:
        headers["Location"] = answer.location
    body = answer.body.replace(b"<head>", _STORAGE, 1) if answer.content_type.startswith("text/html") else answer.body
    return HttpResponse(
        body=body, status=answer.status, content_type=answer.content_type, headers=headers, any_page=True
    )


def _asked(call: RestCall, given: str) -> str:
    """Return the path and the query for Spark's UI, as the client has encoded them."""
    scope = call.request.scope
    path = scope["raw_path"].decode("latin-1").partition(given)[2] or "/"
    query = scope["query_string"].decode("latin-1")
    return f"{path}?{query}" if query else path


def _links(call: RestCall) -> SparkUiLinks:
    if call.services.spark_ui_links is None:
        raise NotFound("this cluster has no links to Spark's UI")
    return call.services.spark_ui_links
