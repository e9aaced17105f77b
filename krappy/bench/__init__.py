"""Measures a broker: what `krappy bench` runs."""
