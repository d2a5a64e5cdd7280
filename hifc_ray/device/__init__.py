"""Blocks in device memory: the pool, copies to and from host slots, attention over blocks. torch, no transformers."""
