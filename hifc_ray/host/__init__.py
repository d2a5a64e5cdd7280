"""Host memory of a node: the shared arena with its slot table, and the books that say what lies in it."""

from hifc_ray.host.arena import Arena
from hifc_ray.host.books import HostBooks

__all__ = ["Arena", "HostBooks"]
