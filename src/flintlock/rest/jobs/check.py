"""POST /jobs/check: what a job document would do, and everything that is wrong with it, as `flintlock info` says it.

Nothing is stored, nothing is sent to a TaskManager, and no code of the user is imported or run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

import msgspec
from msgspec import structs

from flintlock.api import jobs as shapes
from flintlock.api.requests import CheckRequest
from flintlock.config.job_problems import job_problems
from flintlock.model.checking.documents import document_problems
from flintlock.model.checking.jobspec import ArtifactSpec, SpecProblem, draft_graph, named_artifacts, read_spec
from flintlock.model.checking.limits import MAX_DOCUMENT_BYTES
from flintlock.model.checking.problems import MAX_MESSAGE, MAX_REPORTED, Problem, abbreviated, reported
from flintlock.model.errors import Invalid
from flintlock.model.ids import BlobKey, JobId
from flintlock.model.jobgraph import Artifact
from flintlock.model.regions import regions_of
from flintlock.rest.jobs import translate
from flintlock.rest.server.http import HttpResponse, RestCall, json_response
from flintlock.rest.server.request_body import decode, off_loop, read_document

#: Stands for the content of a file that will be sent with the submission.
_UNSENT: Final = BlobKey(f"sha256-{'0' * 64}")


async def check(call: RestCall) -> HttpResponse:
    """The plan of a job document, and everything that is wrong with it. Nothing is stored, and nothing runs."""
    body = await read_document(call.request, MAX_DOCUMENT_BYTES)
    job_id = call.services.new_job_id()
    return json_response(await off_loop(len(body), lambda: checked(decode(body), job_id)))


def checked(content: object, job_id: JobId) -> shapes.JobCheck:
    """Return the plan of the document, or its problems. Raises Invalid if the request is not one with a document."""
    wrong = reported(f"{'.'.join(path) or 'the body'}: {message}" for path, message in _request_problems(content))
    if wrong:
        raise Invalid("; ".join(wrong), problems=wrong)
    request = msgspec.convert(content, CheckRequest)
    spec, unread = read_spec(request.document)
    if spec is None:
        return _with_problems(unread)
    stored = [item.name for item in spec.artifacts if isinstance(item, ArtifactSpec) and item.blob is not None]
    known = {name: Artifact(name=name, blob=_UNSENT, size=0) for name in (*request.files, *stored)}
    spec = structs.replace(spec, job_id=None)
    graph, problems = draft_graph(spec, job_id, known)
    needed = {item.name for item in named_artifacts(spec)}
    problems = [*problems, *_needless(request.files, needed), *job_problems(graph)]
    if problems:
        return _with_problems(problems)
    regions = tuple(region.steps for region in regions_of(graph))
    return shapes.JobCheck(plan=translate.plan_of_graph(graph), regions=regions)


def _request_problems(content: object) -> Iterable[tuple[tuple[str, ...], str]]:
    try:
        msgspec.convert(content, CheckRequest)
    except msgspec.ValidationError as error:
        return list(document_problems(CheckRequest, content)) or [((), str(error))]
    return ()


def _needless(files: Collection[str], needed: Collection[str]) -> Iterable[Problem]:
    for name in files:
        if name not in needed:
            text = f"the file {abbreviated(name)!r} is not among the job's artifacts"
            yield Problem(field="artifacts", message=text)


def _with_problems(problems: Iterable[SpecProblem | Problem]) -> shapes.JobCheck:
    found = list(problems)
    shown = tuple(
        shapes.JobCheckProblem(path=problem.path, message=abbreviated(str(problem), MAX_MESSAGE))
        for problem in found[:MAX_REPORTED]
    )
    return shapes.JobCheck(problems=shown, omitted=len(found) - len(shown))
