"""Searching discrete and permutation spaces whose candidates must be trained before they can be judged."""
