"""High availability on several machines: ZooKeeper elects and holds pointers, a shared directory the payloads."""
