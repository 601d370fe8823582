"""The shared storage directory beside ZooKeeper: payload files, copies of blobs, and its health."""
