"""The kit's benchmarks: each compares in one run and returns plain data."""
