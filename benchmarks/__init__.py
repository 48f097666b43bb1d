"""Benchmarks: what Tenure costs, beside its targets and its peers. Never part of a test's verdict."""
