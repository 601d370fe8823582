"""Failures as users read them, and when one that recurs is logged."""
