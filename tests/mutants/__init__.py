"""Planted bugs: each `.patch` breaks one guarantee, and the simulation or the tests that it names have to find it."""
