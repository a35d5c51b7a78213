"""Measurements, each run by hand: `python -m benchmarks.NAME`."""
