"""The files of an attempt: where they are staged, and what a blocking result consists of."""
