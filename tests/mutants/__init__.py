"""Planted bugs: each `.patch` breaks one promise, and the simulation has to notice."""
