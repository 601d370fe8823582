"""The figures that Flintlock promises, measured: `make bench`, `make bench ONLY=name`."""
