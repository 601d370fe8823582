"""Executors on other machines: how many a driver has, when they end without it, and which paths they see."""
