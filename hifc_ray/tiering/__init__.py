"""The only place where host memory, flash, transfer and policies meet."""

from hifc_ray.tiering.cache import TieredCache

__all__ = ["TieredCache"]
