"""A client of a cluster: `connect(url)`, then submit, find and list jobs."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import quote

import msgspec
from msgspec import structs

from flintlock.api.cluster import (
    ClusterOverview,
    ClusterResources,
    SparkUiLink,
    TaskManagersResponse,
    TaskManagerSummary,
)
from flintlock.api.jobs import (
    JobsOverviewEntry,
    JobsOverviewResponse,
    OperationResponse,
    SubmittedJob,
    TriggerResponse,
)
from flintlock.api.quarantine import QuarantineEntry, QuarantineListing
from flintlock.api.requests import DisposalRequest
from flintlock.api.tokens import CallerInfo, CreatedToken, CreateTokenRequest, LoginCode, TokenEntry, TokenListing
from flintlock.client.authoring.package import AS_WRITTEN, JobPackage, Overrides, Packable, given_overrides
from flintlock.client.authoring.sql_form import DEFAULT_ROWS, RESULT, SqlJob
from flintlock.client.connection.credentials import Credentials
from flintlock.client.connection.handle import POLL_OPERATION_S, JobHandle
from flintlock.client.connection.http import Discover, Http
from flintlock.client.connection.program_keys import next_program_key
from flintlock.client.connection.results import ResultHandle
from flintlock.client.connection.versions import own_versions, require_compatible
from flintlock.config.options import RESTORE_IGNORE_UNCLAIMED, UPGRADE_OF
from flintlock.model.access.principals import Role
from flintlock.model.errors import FlintlockError, NotFound, Refused
from flintlock.model.ids import JobId, is_job_id
from flintlock.model.jobgraph import Scalar, Versions
from flintlock.model.operations import ConfigValue

_PAGE: Final = 1000  # jobs that are requested at once
_LATEST: Final = "@latest"
_SHORTEST_PREFIX: Final = 4
_SHOWN_IDS: Final = 5


def connect(url: str | Sequence[str] = (), *, state_dir: str | Path | None = None) -> Client:
    """Return a client of the cluster at `url`: one address, or those of several JobManagers. Nothing is sent yet.

    Without addresses it is the configured cluster (with ZooKeeper, the leader that the quorum names), else the running
    one of the state directory, all of whose JobManagers are tried. The client follows the leader, and sends the
    configured token, else a credential of its own where this user runs the cluster. Raises Unavailable if there is no
    cluster.
    """
    urls = [url] if isinstance(url, str) else list(url)
    from flintlock.client.clusters.discovery import cluster_client
    from flintlock.config.files import load, state_directory

    settings = load()
    return cluster_client(settings, urls, state_directory(settings, state_dir))


class Client:
    """Submits jobs and finds them again. Use it in a `with` block, or close it."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        patience_s: float = 30.0,
        discover: Discover | None = None,
        replaceable: bool = False,
        credentials: Credentials | None = None,
        advice: str = "",
        own_cluster: bool = False,
    ) -> None:
        self._own_cluster: Final = own_cluster  # of the application whose program this is
        self.http: Final = Http(
            urls,
            patience_s=patience_s,
            discover=discover,
            replaceable=replaceable,
            credentials=credentials,
            advice=advice,
        )
        self._versions: Versions | None = None  # of the cluster; requested once

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Jobs keep running. Idempotent."""
        self.http.close()

    def submit(
        self,
        job: Packable | JobPackage,
        *,
        params: Mapping[str, object] | None = None,
        name: str | None = None,
        labels: Mapping[str, ConfigValue] | None = None,
        parallelism: int | None = None,
        config: Mapping[str, ConfigValue] | None = None,
        overrides: Overrides | None = None,
        idempotency_key: str | None = None,
    ) -> JobHandle:
        """Submit a job and return its handle once the cluster has made it durable.

        `params`, `name`, `labels`, `parallelism` and `config` replace or add to the job's own; `overrides` are all of
        them together. Versions are compared before anything is pickled. However often the request has to be repeated,
        it creates one job; with your own `idempotency_key`, that is true across processes too. In the program of an
        application, the n-th submission without a key is the n-th job, also when the program runs again.
        """
        given = given_overrides(name=name, params=params, parallelism=parallelism, config=config, labels=labels)
        if (given != AS_WRITTEN and (overrides is not None or isinstance(job, JobPackage))) or (
            overrides is not None and isinstance(job, JobPackage)
        ):
            raise Refused("give either overrides or single values, and none for a job that is packaged already")
        package = job if isinstance(job, JobPackage) else self.package(job, overrides or given)
        numbered = next_program_key() if self._own_cluster and idempotency_key is None else None
        headers = {"Idempotency-Key": idempotency_key or numbered or uuid.uuid4().hex}
        if not package.files:
            headers["Content-Type"] = "application/json"
        with ExitStack() as streams:
            response = self.http.call("POST", "/jobs", headers=headers, body=lambda: _body(package, streams))
        submitted = msgspec.json.decode(response.content, type=SubmittedJob)
        return JobHandle(self.http, JobId(submitted.jobid), package.spec.name)

    def upgrade(
        self,
        former: JobHandle,
        job: Packable,
        *,
        overrides: Overrides | None = None,
        allow_non_restored_state: bool = False,
        timeout_s: float | None = None,
    ) -> JobHandle:
        """Have a job take the place of a streaming job that runs, and return its handle once all its queries run.

        Where the new job does not fit the state of the former one, that is refused, and the former one is not changed.
        Else it is stopped with a savepoint, which the new job begins from. A new job that fails before its first batch
        is followed by the former one: raises JobFailed with the reason. `allow_non_restored_state` drops the state of
        queries that the new job does not have. Raises TimeoutError if it takes longer than `timeout_s`.
        """
        given = overrides or AS_WRITTEN
        config = {**given.config, UPGRADE_OF.key: former.id}
        if allow_non_restored_state:
            config[RESTORE_IGNORE_UNCLAIMED.key] = "true"
        new = self.submit(job, overrides=structs.replace(given, config=config))
        new.wait_until_running(timeout_s)
        return new

    def sql(
        self,
        query: str,
        *,
        params: Mapping[str, Scalar] | None = None,
        limit: int = DEFAULT_ROWS,
        timeout: float | None = None,
    ) -> ResultHandle:
        """Run a query to its end and return its rows, at most `limit` of them.

        Raises JobFailed, JobCanceled, or TimeoutError after `timeout` seconds; the query keeps running then.
        """
        return self.submit(SqlJob(query, params=params, limit=limit)).wait(timeout).result(RESULT)

    def job(self, job_id: str) -> JobHandle:
        """Return a handle of the job with this id. Raises Refused if it is not a job id; nothing is sent yet."""
        if not is_job_id(job_id):
            raise Refused(f"{job_id!r} is not a job id: they have 32 hexadecimal digits")
        return JobHandle(self.http, JobId(job_id))

    def jobs(
        self,
        *,
        ended: bool = True,
        limit: int | None = None,
        name: str | None = None,
        states: Collection[str] = (),
        labels: Mapping[str, str] | None = None,
        since: datetime | None = None,
    ) -> tuple[JobsOverviewEntry, ...]:
        """Return the jobs that the cluster knows, newest first; `ended=False`: only those that have not ended.

        `name` may have `*` in it. `states` are Flink's, and WAITING for jobs that wait for slots. Of `labels` a job has
        all; an empty value stands for any. The cluster selects the jobs.
        """
        conditions: dict[str, str] = {
            "name": name or "",
            "state": ",".join(states),
            "label": ",".join(f"{key}={value}" if value else key for key, value in (labels or {}).items()),
            "since": "" if since is None else str(int(since.timestamp() * 1000)),
        }
        return tuple(islice(self._jobs(conditions, ended=ended, limit=limit), limit))

    def find(self, text: str, *, unambiguous: bool = False) -> JobHandle:
        """Return the job with this id, the only one whose id begins so, or the latest job of this name.

        `latest` is the latest job of the cluster, and `NAME@latest` the latest one of that name. If `unambiguous`, a
        name alone must not stand for several jobs that have not ended. Raises NotFound, and Refused for several.
        """
        if is_job_id(text.lower()):
            return self.job(text.lower())
        name = text.removesuffix(_LATEST)
        if name == text and len(text) >= _SHORTEST_PREFIX and _is_hexadecimal(text):
            beginning = (job for job in self._jobs({"id": text.lower()}) if job.jid.startswith(text.lower()))
            prefixed = tuple(islice(beginning, _SHOWN_IDS + 1))
            if prefixed:
                return self._only(text, prefixed)
        wanted = {} if text == "latest" else {"name": name}
        named = (job for job in self._jobs(wanted) if text == "latest" or job.name == name)
        if unambiguous and name == text != "latest":
            active = (job for job in self._jobs(wanted, ended=False) if job.name == name)
            several = tuple(islice(active, _SHOWN_IDS + 1))
            if several:
                return self._only(text, several)
        latest = next(named, None)
        if latest is None and text == "latest":
            raise NotFound("the cluster has no jobs")
        if latest is None:
            raise NotFound(f"there is no job {name!r}; `flintlock list -a` shows all")
        return self._handle(latest)

    def _only(self, text: str, found: Sequence[JobsOverviewEntry]) -> JobHandle:
        if len(found) > 1:
            ids = ", ".join(job.jid for job in found[:_SHOWN_IDS]) + (" …" if len(found) > _SHOWN_IDS else "")
            by_name = any(job.name == text for job in found)
            remedy = f"use an id, or {text}{_LATEST} for the latest" if by_name else "use more of its digits"
            raise Refused(f"{text!r} matches several jobs; {remedy}: {ids}")
        return self._handle(found[0])

    def _handle(self, job: JobsOverviewEntry) -> JobHandle:
        return JobHandle(self.http, JobId(job.jid), job.name)

    def _jobs(
        self, conditions: Mapping[str, str], *, ended: bool = True, limit: int | None = None
    ) -> Generator[JobsOverviewEntry]:
        """Yield the jobs, page by page."""
        params: dict[str, str | int] = {"limit": min(limit or _PAGE, _PAGE)} | ({} if ended else {"ended": "false"})
        params |= {key: value for key, value in conditions.items() if value}
        while True:
            page = self.http.get("/jobs/overview", JobsOverviewResponse, params=params)
            yield from page.jobs
            if page.next is None:
                return
            params["after"] = page.next

    def quarantined(self) -> tuple[QuarantineEntry, ...]:
        """Return the jobs that are stored and cannot be run, with the reasons."""
        return self.http.get("/quarantine", QuarantineListing).jobs

    def dispose_savepoint(self, path: str) -> None:
        """Remove a savepoint of the cluster. Needs the role operator. Raises FlintlockError with the reason."""
        body = msgspec.json.encode(DisposalRequest(savepoint_path=path, trigger_id=uuid.uuid4().hex))
        headers = {"Content-Type": "application/json"}
        response = self.http.call("POST", "/savepoint-disposal", headers=headers, body=lambda: {"content": body})
        trigger_id = msgspec.json.decode(response.content, type=TriggerResponse).request_id
        while True:
            outcome = self.http.get(f"/savepoint-disposal/{trigger_id}", OperationResponse).operation
            if outcome is not None:
                break
            threading.Event().wait(POLL_OPERATION_S)
        if outcome.failure_cause is not None:
            raise FlintlockError(outcome.failure_cause.stack_trace)

    def create_token(self, *, name: str, role: Role, expires_in: str | None = None) -> CreatedToken:
        """Make an access token and return it; `expires_in` is a duration such as '30 d'. Needs the role admin."""
        body = msgspec.json.encode(CreateTokenRequest(name=name, role=role, expires_in=expires_in))
        headers = {"Content-Type": "application/json"}
        response = self.http.call("POST", "/tokens", headers=headers, body=lambda: {"content": body})
        return msgspec.json.decode(response.content, type=CreatedToken)

    def tokens(self) -> tuple[TokenEntry, ...]:
        """Return the access tokens that are valid. Needs the role admin."""
        return self.http.get("/tokens", TokenListing).tokens

    def revoke_token(self, token_id: str) -> None:
        """Revoke an access token. Needs the role admin. Raises NotFound."""
        self.http.call("DELETE", f"/tokens/{quote(token_id, safe='')}")

    def login_link(self) -> str:
        """Return a link that logs a browser in as the caller; it can be used once, within minutes."""
        response = self.http.call("POST", "/login/codes")
        return self.http.answering + msgspec.json.decode(response.content, type=LoginCode).path

    def spark_ui_link(self, task_manager: str) -> str:
        """Return a link to Spark's own UI of a TaskManager's engine; it can be used for an hour. Raises NotFound."""
        response = self.http.call("POST", f"/taskmanagers/{quote(task_manager, safe='')}/spark-ui")
        return self.http.answering + msgspec.json.decode(response.content, type=SparkUiLink).path

    def whoami(self) -> CallerInfo:
        """Return as whom the cluster knows the caller."""
        return self.http.get("/whoami", CallerInfo)

    def overview(self) -> ClusterOverview:
        """Return what the cluster has: TaskManagers, slots, how many jobs."""
        return self.http.get("/overview", ClusterOverview)

    def task_managers(self) -> tuple[TaskManagerSummary, ...]:
        """Return the TaskManagers that are registered."""
        return tuple(self.http.get("/taskmanagers", TaskManagersResponse).taskmanagers)

    def task_manager_log(self, task_manager: str, *, engine: bool = False) -> str:
        """Return the end of a TaskManager's log, or of its Spark engine's. Needs the role operator. Raises NotFound."""
        path = f"/taskmanagers/{quote(task_manager, safe='')}/{'engine-log' if engine else 'log'}"
        return self.http.call("GET", path).text

    def resources(self) -> ClusterResources:
        """Return the jobs that wait for slots, in order."""
        return self.http.get("/resources", ClusterResources)

    def shut_down(self) -> None:
        """Shut the cluster down; its jobs are suspended. A per-job cluster whose job has ended, ends for good."""
        self.http.call("DELETE", "/cluster")

    def versions(self) -> Versions:
        """Return what the cluster runs. Requested once."""
        if self._versions is None:
            self._versions = self.http.get("/versions", Versions)
        return self._versions

    def package(self, job: Packable, overrides: Overrides = AS_WRITTEN) -> JobPackage:
        """Return the job packaged for this cluster. Raises Refused for incompatible versions, Invalid."""
        require_compatible(own_versions(), self.versions(), job.pickles)
        return job.package(overrides)


def _body(package: JobPackage, streams: ExitStack) -> dict[str, Any]:
    """Return the body of a submission for httpx: plain JSON, or multipart with files."""
    document = msgspec.json.encode(package.spec)
    if not package.files:
        return {"content": document}
    parts: list[tuple[str, Any]] = [("request", (None, document, "application/json"))]
    for name, content in package.files.items():
        stream = streams.enter_context(content.open("rb")) if isinstance(content, Path) else content
        parts.append(("file", (name, stream, "application/octet-stream")))
    return {"files": parts}


def _is_hexadecimal(text: str) -> bool:
    return all(letter in "0123456789abcdef" for letter in text.lower())
