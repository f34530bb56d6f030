"""Measurements made by hand: no test, and nothing that CI runs."""
