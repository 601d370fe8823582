from __future__ import annotations

from pathlib import Path

import pytest

from flintlock.config.files import cache_directory, load, state_directory, variable_of
from flintlock.config.options import HEARTBEAT_INTERVAL, OPTIONS, REST_ADDRESS, REST_PORT, TM_SLOTS
from flintlock.model.errors import Invalid


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_flags_override_the_environment_which_overrides_the_file_and_defaults(tmp_path: Path) -> None:
    write(tmp_path / "flintlock.yaml", "rest:\n  port: 1\n  address: file\nheartbeat.interval: 3 s\n")
    environ = {"FLINTLOCK_REST_PORT": "2", "FLINTLOCK_REST_ADDRESS": "environment"}

    settings = load(["rest.port=3"], environ=environ, directory=tmp_path)

    assert settings.configuration.get(REST_PORT) == 3
    assert settings.configuration.get(REST_ADDRESS) == "environment"
    assert settings.configuration.get(HEARTBEAT_INTERVAL) == 3.0
    assert not settings.configuration.has(TM_SLOTS)
    assert settings.places == {
        "rest.port": "-D rest.port=3",
        "rest.address": "FLINTLOCK_REST_ADDRESS",
        "heartbeat.interval": f"{tmp_path}/flintlock.yaml:4:1",
    }


def test_the_file_is_searched_for_in_order(tmp_path: Path) -> None:
    home, here = tmp_path / "config", tmp_path / "here"
    here.mkdir()
    environ = {"XDG_CONFIG_HOME": str(home)}
    assert load(environ=environ, directory=here).file is None

    at_home = write(home / "flintlock" / "flintlock.yaml", "rest.port: 1\n")
    assert load(environ=environ, directory=here).file == at_home

    at_hand = write(here / "flintlock.yaml", "# only comments\n\n")
    assert load(environ=environ, directory=here).file == at_hand

    named = write(tmp_path / "named.yaml", "")
    assert load(environ={**environ, "FLINTLOCK_CONF": str(named)}, directory=here).file == named
    assert load(environ={**environ, "FLINTLOCK_CONF": "x"}, conf=Path("../named.yaml"), directory=here).file == named
    with pytest.raises(Invalid, match=r"there is no configuration file 'x\.yaml'"):
        load(environ={"FLINTLOCK_CONF": "x.yaml"}, directory=here)


def test_all_mistakes_are_reported_at_once_with_their_places(tmp_path: Path) -> None:
    file = write(
        tmp_path / "flintlock.yaml",
        "rest.prot: 1\nheartbeat.interval: soon\nrest:\n  port: 99999\ncluster.id: [a]\nspark.anything: goes\n",
    )
    with pytest.raises(Invalid) as caught:
        load(["rest.port", "restart-strategy.type=often"], environ={"HOME": "/h"}, directory=tmp_path)

    assert caught.value.problems == (
        f"{file}:5:1: 'cluster.id': needs one value",
        f"{file}:1:1: 'rest.prot': unknown option; did you mean 'rest.port'?",
        (
            f"{file}:2:1: 'heartbeat.interval': 'soon' is not a duration such as '10 s' or '500 ms' "
            "(the option takes a duration, such as '10 s')"
        ),
        f"{file}:4:3: 'rest.port': 99999 is not from 0 to 65535 (the option takes a whole number)",
        "-D rest.port: must have the form key=value",
        (
            "-D restart-strategy.type=often: 'restart-strategy.type': 'often' is not one of none, off, disable, "
            "fixed-delay, failure-rate, exponential-delay "
            "(the option takes none, fixed-delay, failure-rate or exponential-delay)"
        ),
    )


def test_a_variable_that_is_no_setting_is_ignored_with_a_warning(tmp_path: Path) -> None:
    environ = {"FLINTLOCK_REST_PROT": "1", "FLINTLOCK_SPARK_SQL_X": "1", "FLINTLOCK_JAVA_HOME": "/java", "HOME": "/h"}
    environ["FLINTLOCK_BANANA"] = "1"  # of another program: like no variable of ours

    loaded = load(environ=environ, directory=tmp_path)

    assert loaded.configuration.as_dict() == {}
    assert loaded.warnings == (
        "FLINTLOCK_BANANA is ignored: it sets no option",
        "FLINTLOCK_REST_PROT is ignored: it sets no option; did you mean 'FLINTLOCK_REST_PORT'?",
        "FLINTLOCK_SPARK_SQL_X is ignored: Spark's settings are set in flintlock.yaml or with -D",
    )


def test_the_variables_of_a_kubernetes_service_are_ignored_without_a_word(tmp_path: Path) -> None:
    """Those of Services `flintlock` and `flintlock-rest`, in each pod beside them."""
    service = {
        f"{prefix}_{name}": value
        for prefix in ("FLINTLOCK", "FLINTLOCK_REST")
        for name, value in {
            "SERVICE_HOST": "10.0.0.1",
            "SERVICE_PORT": "8081",
            "SERVICE_PORT_HTTP": "8081",
            "PORT": "tcp://10.0.0.1:8081",
            "PORT_8081_TCP": "tcp://10.0.0.1:8081",
            "PORT_8081_TCP_PROTO": "tcp",
            "PORT_8081_TCP_PORT": "8081",
            "PORT_8081_TCP_ADDR": "10.0.0.1",
        }.items()
    }

    loaded = load(environ={**service, "HOME": "/h"}, directory=tmp_path)

    assert (loaded.configuration.as_dict(), loaded.warnings) == ({}, ())
    own = load(environ={"FLINTLOCK_REST_PORT": "9", "HOME": "/h"}, directory=tmp_path)
    assert own.configuration.as_dict() == {"rest.port": "9"}


def test_a_key_set_flat_and_nested_is_set_twice(tmp_path: Path) -> None:
    file = write(tmp_path / "flintlock.yaml", "rest.port: 1\nrest:\n  port: 2\n")

    with pytest.raises(Invalid, match=rf"{file}:3:3: 'rest.port': is set already, at {file}:1:1"):
        load(environ={}, directory=tmp_path)


def test_every_option_has_its_own_variable() -> None:
    assert variable_of("taskmanager.numberOfTaskSlots") == "FLINTLOCK_TASKMANAGER_NUMBEROFTASKSLOTS"
    assert len({variable_of(option.key) for option in OPTIONS}) == len(OPTIONS)


def test_the_cache_directory() -> None:
    assert cache_directory({"HOME": "/home/a"}) == Path("/home/a/.cache/flintlock")
    assert cache_directory({"HOME": "/home/a", "XDG_CACHE_HOME": "/c"}) == Path("/c/flintlock")


def test_the_state_directory(tmp_path: Path) -> None:
    settings = load(["cluster.id=blue"], environ={}, directory=tmp_path)

    assert state_directory(settings, environ={"HOME": "/home/a"}) == Path("/home/a/.local/state/flintlock/blue")
    assert state_directory(settings, environ={"XDG_STATE_HOME": "/s"}) == Path("/s/flintlock/blue")
    assert state_directory(settings, environ={"FLINTLOCK_STATE_DIR": "/x"}) == Path("/x")
    assert state_directory(settings, "/y", environ={"FLINTLOCK_STATE_DIR": "/x"}) == Path("/y")
