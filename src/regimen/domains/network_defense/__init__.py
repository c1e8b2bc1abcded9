"""Defending a network of 13 hosts against a scripted intruder (CAGE challenge 2, scenario 2), simulated natively."""
