"""The HA backends by name."""

from __future__ import annotations

import subprocess
import sys

import pytest

from flintlock.config.configuration import Configuration
from flintlock.config.options import HA_TYPE
from flintlock.ha.backends import BACKEND_NAMES, ha_backend
from flintlock.model.errors import Invalid


@pytest.mark.parametrize("name", BACKEND_NAMES)
def test_every_backend_can_be_configured(name: str) -> None:
    assert HA_TYPE.parse(name) == name
    assert name in HA_TYPE.kind
    assert ha_backend(Configuration({HA_TYPE.key: name})).leader_timeout.default > 0


def test_the_option_names_no_other_backend() -> None:
    with pytest.raises(ValueError, match="is not one of") as refusal:
        HA_TYPE.parse("etcd")
    assert str(refusal.value).endswith(", ".join(BACKEND_NAMES))


def test_clients_of_an_embedded_cluster_find_it_in_the_state_directory_only() -> None:
    configuration = Configuration({})
    backend = ha_backend(configuration)
    assert not backend.spans_hosts
    assert backend.leader_url(configuration, wait_s=0.0) is None


def test_required_options_are_named() -> None:
    configuration = Configuration({HA_TYPE.key: "zookeeper"})
    with pytest.raises(Invalid, match=r"high-availability\.zookeeper\.quorum has to be set"):
        ha_backend(configuration).leader_url(configuration, wait_s=0.0)


def test_choosing_a_backend_imports_no_client_library() -> None:
    unwanted = "kazoo", "fsspec", "sqlite3"
    code = f"import sys, flintlock.ha.backends; sys.exit(any(name in sys.modules for name in {unwanted}))"
    subprocess.run([sys.executable, "-c", code], check=True)
