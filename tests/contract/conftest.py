"""A real ZooKeeper server, started when the first test asks for it."""

from tests.zookeeper.servers import zookeeper

__all__ = ["zookeeper"]
