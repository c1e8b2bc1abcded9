"""Benchmarks with hybrid actions: a discrete choice together with the numbers that go with it."""
