"""The benches of `krappy bench`: they measure a broker."""
