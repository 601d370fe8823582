from __future__ import annotations

from flintlock.host.user_environment import user_environment


def test_user_code_inherits_what_programs_need_and_no_credentials() -> None:
    environ = {
        "PATH": "/bin",
        "LC_ALL": "C",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "FLINTLOCK_CONF": "/etc/flintlock.yaml",
        "SECRET_DB": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "GITHUB_TOKEN": "x",
    }
    assert set(user_environment(environ)) == {"PATH", "LC_ALL", "SPARK_LOCAL_IP"}
    assert set(user_environment(environ, ("AWS_*",))) == {"PATH", "LC_ALL", "SPARK_LOCAL_IP", "AWS_SECRET_ACCESS_KEY"}
