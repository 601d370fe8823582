"""Ended jobs: how they are queried, how long they are kept, and what is removed with them."""
