"""Streaming queries: started from their checkpoints, followed, and described by what Spark reports of them."""
