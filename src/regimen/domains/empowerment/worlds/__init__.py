"""Worlds of humans and robots whose laws are known: models to plan in, and environments to train in."""
