"""Benchmarks and long runs: `make bench-…`, `make fuzz-wire`."""
