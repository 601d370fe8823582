"""A whole cluster on real ZooKeeper under faults: `make chaos`, and a short version among the tests."""
