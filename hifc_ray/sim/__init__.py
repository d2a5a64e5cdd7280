"""Replays of request traces through the policies, access history and reclaim rules that ship, on block names alone."""
