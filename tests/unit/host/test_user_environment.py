from __future__ import annotations

from flintlock.host.user_environment import user_environment


def test_user_code_inherits_what_programs_need_and_no_credentials() -> None:
    environ = {
        "PATH": "/bin",
        "LC_ALL": "C",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "FLINTLOCK_CONF": "/etc/flintlock.yaml",
        "FLINTLOCK_APPLICATION_DIR": "/state",
        "SECRET_DB": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "GITHUB_TOKEN": "x",
    }
    usual = {"PATH", "LC_ALL", "SPARK_LOCAL_IP", "FLINTLOCK_APPLICATION_DIR"}  # the last one only an application has
    assert set(user_environment(environ)) == usual
    assert set(user_environment(environ, ("AWS_*",))) == {*usual, "AWS_SECRET_ACCESS_KEY"}
