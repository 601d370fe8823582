"""Makes a new engine's first job fast, before there is one.

A JVM that has just started loads classes and compiles for seconds at its first query. So it is sent queries of the
usual kinds on the path that jobs take: over gRPC to the Connect server, in a session of its own. The client is the JVM
itself, with the Connect stubs that the server includes, controlled from here. Rejected: a PySpark client in this
process (100 MB that would stay) or in a child (a second of imports, on cores that the JVM needs for starting); a second
round (a third more of the warm-up's CPU time, for a first job that is hardly faster).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final, cast

from flintlock.spark.engine.driver import EngineDriver, JavaObject

#: The Spark user of the warm-up.
USER_ID: Final = "flintlock-warm-up"

#: Writes a Parquet file; {place} is a directory that the engine and its executors see.
INSERT: Final = """
INSERT OVERWRITE DIRECTORY '{place}' USING parquet
SELECT id, id % 7 AS k, cast(id AS string) AS v, current_timestamp() AS t FROM range(1000)
"""

#: Reads it back.
JOIN: Final = """
SELECT a.k, count(a.v) AS n, max(a.t) AS t
FROM parquet.`{place}` a JOIN range(7) b ON a.k = b.id
WHERE a.id > 10 AND a.v LIKE '%1%' GROUP BY a.k
"""


def warm_up(driver: EngineDriver, token: str, place: str) -> None:
    """Run some small queries: an aggregation with a shuffle, a Parquet file written to `place` and read, a join."""
    with connect_session(driver, token) as run:
        for query in queries(place):
            run(query)


@contextmanager
def connect_session(driver: EngineDriver, token: str) -> Generator[Callable[[str], None]]:
    """Open a session of the Connect server; yield what runs a query in it. Raises Py4JJavaError."""
    session_id = str(uuid.uuid4())
    channel = _channel(driver)
    try:
        stub = _stub(driver, channel, token)

        def run(query: str) -> None:
            responses = stub.executePlan(_request(driver, session_id, query))
            while responses.hasNext():
                responses.next()

        yield run
    finally:
        channel.shutdownNow()
        driver.release(USER_ID, session_id, 10.0)


def queries(place: str) -> tuple[str, ...]:
    """Return the queries; `place` is a directory for the file that they write."""
    return (
        "SELECT 1",
        "SELECT id % 7 AS k, count(*) AS n, sum(id) AS s FROM range(1000) GROUP BY 1 ORDER BY 2 DESC LIMIT 3",
        INSERT.format(place=place),
        JOIN.format(place=place),
    )


def _channel(driver: EngineDriver) -> JavaObject:
    builder = driver.jvm.org.sparkproject.connect.grpc.netty.NettyChannelBuilder
    return builder.forAddress("127.0.0.1", driver.connect_port).usePlaintext().build()


def _stub(driver: EngineDriver, channel: JavaObject, token: str) -> JavaObject:
    """Return a blocking stub that sends the token with each call."""
    grpc = driver.jvm.org.sparkproject.connect.grpc
    headers = grpc.Metadata()
    headers.put(grpc.Metadata.Key.of("authorization", grpc.Metadata.ASCII_STRING_MARSHALLER), f"Bearer {token}")
    interceptors = cast("JavaObject", driver.gateway.new_array(grpc.ClientInterceptor, 1))
    interceptors[0] = grpc.stub.MetadataUtils.newAttachHeadersInterceptor(headers)
    service = driver.jvm.org.apache.spark.connect.proto.SparkConnectServiceGrpc
    return service.newBlockingStub(channel).withInterceptors(interceptors)


def _request(driver: EngineDriver, session_id: str, query: str) -> JavaObject:
    proto = driver.jvm.org.apache.spark.connect.proto
    sql = proto.SQL.newBuilder().setQuery(query)
    plan = proto.Plan.newBuilder().setRoot(proto.Relation.newBuilder().setSql(sql))
    user = proto.UserContext.newBuilder().setUserId(USER_ID)
    request = proto.ExecutePlanRequest.newBuilder().setSessionId(session_id).setUserContext(user)
    return request.setPlan(plan).build()
