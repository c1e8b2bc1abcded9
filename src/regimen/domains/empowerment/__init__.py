"""Robots that softly maximise the power of humans: the equations, exact solvers of them, and how they are reported."""
