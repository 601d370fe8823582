"""The list of options: what the reference page and `flintlock config` are made from."""

from __future__ import annotations

from typing import Any

import pytest

from flintlock.config import options
from flintlock.config.configuration import Option, Scope
from flintlock.config.options import OPTIONS

#: Options whose default is not a value that one could write down: the text says what it stands for.
IN_WORDS = {
    "yarn.application.id",
    "yarn.application.node-label",
    "yarn.application.priority",
    "yarn.tags",
    "yarn.application-attempts",
    "yarn.ship-files",
    "yarn.ship-archives",
    "yarn.provided.lib.dirs",
    "yarn.rolled-logs.include-pattern",
    "yarn.staging-directory",
    "yarn.python",
    "yarn.containers.vcores",
    "taskmanager.memory.process.size",
    "taskmanager.runner.user",
    "taskmanager.environment.passed",
    "security.secrets.directory",
    "taskmanager.numberOfTaskSlots",
    "taskmanager.resource-id",
    "taskmanager.warm-runners",
    "python.requirements",
    "execution.upgrade-of",
    "high-availability.zookeeper.quorum",
    "high-availability.cluster-id",
    "high-availability.storageDir",
    "execution.work-dir",
    "security.secret-file",
    "high-availability.zookeeper.client.credentials-file",
    "security.tls.certificate-file",
    "security.tls.ca-file",
    "security.oidc.issuer",
    "security.oidc.audience",
    "security.oidc.jwks-url",
    "security.token",
    "security.token-file",
    "security.allowed-hosts",
    "security.allowed-origins",
    "rest.bind-address",
    "jobmanager.bind-host",
    "taskmanager.bind-host",
    "jobmanager.failure-enrichers",
    "pipeline.jobvertex-parallelism-overrides",
    "job.timeout",
    "state.checkpoints.dir",
    "state.savepoints.dir",
    "execution.state-recovery.path",
    "restart-strategy.type",
    "slotmanager.number-of-slots.max",
    "slotmanager.max-total-resource.cpu",
    "slotmanager.max-total-resource.memory",
    "taskmanager.runner.memory",
    "taskmanager.python-worker.memory",
    "restart-strategy.exponential-delay.attempts-before-reset-backoff",
}


def test_every_option_is_in_the_list_once() -> None:
    """Keys are unique, and none is declared without being listed."""
    declared = [value.key for value in vars(options).values() if isinstance(value, Option)]

    assert sorted(declared) == sorted(option.key for option in OPTIONS)
    assert len(set(declared)) == len(declared)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key)
def test_a_default_equals_its_text(option: Option[Any]) -> None:
    """The documented default, when it is set, has the effect of the default."""
    text = option.default_text
    if option.key in IN_WORDS:
        assert option.unset
    else:
        assert option.parse(text) == option.default
        assert text == text.lower() or isinstance(option.default, str)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key)
def test_an_option_is_described(option: Option[Any]) -> None:
    """A sentence of description, a kind, and a key without blanks."""
    assert option.description.endswith(".")
    assert option.description[0].isupper()
    assert option.kind
    assert option.key == option.key.strip()
    assert not option.key.startswith("spark.")


def test_flinks_keys_keep_flinks_defaults() -> None:
    """Where the key is Flink's, the default is Flink's, too."""
    by_key = {option.key: option for option in OPTIONS}

    assert by_key["rest.port"].default == 8081
    assert by_key["heartbeat.timeout"].default == 50.0
    assert by_key["restart-strategy.fixed-delay.attempts"].default == 1
    assert by_key["restart-strategy.fixed-delay.delay"].default == 1.0
    assert by_key["restart-strategy.failure-rate.failure-rate-interval"].default == 60.0
    assert by_key["restart-strategy.exponential-delay.backoff-multiplier"].default == 1.5
    assert by_key["restart-strategy.exponential-delay.jitter-factor"].default == 0.1


def test_restart_strategies_can_be_set_by_jobs() -> None:
    """A job chooses how it is restarted; it cannot set ports and addresses."""
    job = {option.key for option in OPTIONS if option.scope is Scope.JOB}

    assert {option.key for option in OPTIONS if option.key.startswith("restart-strategy.")} <= job
    assert not any(key.startswith(("rest.", "jobmanager.", "taskmanager.", "high-availability.")) for key in job)
