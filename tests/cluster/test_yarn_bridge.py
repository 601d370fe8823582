"""The bridge to YARN as a process, without YARN: what its file system lists, and what becomes of it when it hangs."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from flintlock.model.errors import NotFound, Unavailable
from flintlock.yarn.bridge import YarnJvm, running_bridge, start_bridge
from flintlock.yarn.bridge_watch import watch_bridge
from flintlock.yarn.client_bridge import BridgedStaging, launch_context, submission_context
from flintlock.yarn.master_bridge import BridgedApplicationMaster
from flintlock.yarn.messages import ApplicationSubmission, Container, ContainerSize, Launch

ID = "application_1700000000000_0001"
CONTAINER = Container(id="container_1700000000000_0001_01_000002", node="node:1", node_name="node")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Variables with a Hadoop configuration: YARN is nowhere, files are local ones."""
    conf_dir = tmp_path / "conf"
    conf_dir.mkdir()
    (conf_dir / "yarn-site.xml").write_text("<configuration/>")
    return {**os.environ, "HADOOP_CONF_DIR": str(conf_dir)}


@pytest.fixture
def process(environ: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    started = start_bridge(environ)
    try:
        yield started
    finally:
        if started.poll() is None:
            started.kill()
            started.wait()


def test_directories_that_are_provided_are_listed_with_all_that_is_in_them(
    environ: dict[str, str], tmp_path: Path
) -> None:
    inner = tmp_path / "provided" / "package" / "inner"
    inner.mkdir(parents=True)
    for path in (inner / "module.py", inner / ".hidden", tmp_path / "provided" / "a b#.txt"):
        path.write_text("four")
    with running_bridge(environ) as jvm:
        staging = BridgedStaging(jvm, ID, str(tmp_path / "staging"))
        found = staging.provided(f"file://{tmp_path}/provided/", at_most=10)
        assert {file.name for file in found} == {"package/inner/module.py", "package/inner/.hidden", "a b#.txt"}
        assert {(file.size, file.is_provided) for file in found} == {(4, True)}
        assert len(staging.provided(f"{tmp_path}/provided", at_most=2)) == 2
        with pytest.raises(NotFound):
            staging.provided(f"{tmp_path}/nowhere", at_most=10)
        with pytest.raises(NotFound, match="is not a directory"):
            staging.provided(str(inner / "module.py"), at_most=10)

        staging.create()
        staging.put(".hidden", inner / ".hidden")
        own = Path(staging.url.removeprefix("file:"))
        (own / ".b.unfinished").touch()
        (own / "work").mkdir()
        (own / "work" / "result").touch()
        assert [file.name for file in staging.files()] == [".hidden"], "nothing of blocking results"


def test_delegation_tokens_are_part_of_a_launch(environ: dict[str, str]) -> None:
    with running_bridge(environ) as jvm:
        assert launch_context(jvm, Launch(command="true", tokens=b"four")).getTokens().remaining() == 4
        assert launch_context(jvm, Launch(command="true")).getTokens() is None


def test_a_submission_has_its_queue_its_node_label_its_priority_and_its_tags(environ: dict[str, str]) -> None:
    submission = ApplicationSubmission(
        id=ID,
        name="nightly",
        queue="reports",
        size=ContainerSize(memory_mb=768, vcores=1),
        launch=Launch(command="true"),
        attempts=2,
        attempt_failures_validity_ms=600_000,
        priority=3,
        tags=("a", "b"),
        node_label="gpu",
        rolled_logs="job-.*",
    )
    with running_bridge(environ) as jvm:
        made: Any = submission_context(jvm, submission)
        assert (made.getQueue(), made.getNodeLabelExpression(), made.getPriority().getPriority()) == (
            "reports", "gpu", 3,
        )  # fmt: skip
        assert set(made.getApplicationTags()) == {"a", "b"}
        assert made.getLogAggregationContext().getRolledLogsIncludePattern() == "job-.*"
        plain: Any = submission_context(jvm, structs.replace(submission, node_label="", priority=-1))
        assert (plain.getNodeLabelExpression(), plain.getPriority()) == (None, None), "as the queue has them"


def test_a_jvm_that_hangs_is_noticed_and_ended(environ: dict[str, str], process: subprocess.Popen[str]) -> None:
    with running_bridge(environ, process) as jvm:
        master = _Registered(jvm)
        master.check_bridge()
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(Unavailable, match=r"the bridge to YARN has not answered for 1 s, and was ended"):
            asyncio.run(watch_bridge(master, 1.0))
        assert process.wait(10) == -signal.SIGKILL
        with pytest.raises(Unavailable, match="the bridge to YARN does not answer: its JVM has ended with -9"):
            master.check_bridge()


def test_a_jvm_that_hangs_does_not_keep_its_process_from_ending(
    environ: dict[str, str], process: subprocess.Popen[str]
) -> None:
    with running_bridge(environ, process) as jvm:
        jvm.check()
        process.send_signal(signal.SIGSTOP)
    assert process.returncode == -signal.SIGKILL


def test_a_container_that_was_given_back_is_not_launched(environ: dict[str, str]) -> None:
    """It may be released before its launch has begun. YARN is not asked."""
    with running_bridge(environ) as jvm, pytest.raises(Unavailable, match="it was given back"):
        _Registered(jvm).launch(CONTAINER, Launch(command="true"))


class _Registered(BridgedApplicationMaster):
    """An ApplicationMaster that has opened its bridge; there is no YARN to register with."""

    def __init__(self, jvm: YarnJvm) -> None:
        super().__init__(lambda: jvm)
        self._yarn = jvm
