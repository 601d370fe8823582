"""The environment of user code: what programs need to run, and nothing that belongs to the service.

A TaskManager is started with the credentials of the service that runs it. User code gets a list of variables that
are known to be harmless, and those that the operator names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Final

from flintlock.host.processes.process_tree import TAG_VARIABLE
from flintlock.model.application import APPLICATION_VARIABLE

_PASSED: Final = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "HOSTNAME", "TERM", "TZ", "LANG", "LANGUAGE", "LC_*",
    "TMPDIR", "TEMP", "TMP", "LD_LIBRARY_PATH", "LD_PRELOAD", "MALLOC_*", "*_NUM_THREADS", "*_MALLOC_CONF",
    "PYTHON*", "VIRTUAL_ENV", "CONDA_PREFIX", "COVERAGE_*", "JAVA_*", "JDK_*", "FLINTLOCK_JAVA_HOME",
    "PYSPARK_*", "SPARK_*", "HADOOP_*", "YARN_*", "HIVE_*", "ARROW_*", "GRPC_*",
    "SSL_CERT_*", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "http_proxy", "https_proxy", "no_proxy",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", TAG_VARIABLE, APPLICATION_VARIABLE,
)  # fmt: skip


def user_environment(environ: Mapping[str, str], passed: Iterable[str] = ()) -> dict[str, str]:
    """Return the variables that user code inherits; `passed` are further names, with `*` for any characters."""
    patterns = (*_PASSED, *passed)
    return {name: value for name, value in environ.items() if any(fnmatchcase(name, each) for each in patterns)}
