"""Readings of the machine, and the verdicts that people get on them."""
