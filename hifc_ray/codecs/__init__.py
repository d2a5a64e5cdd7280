"""Codecs: stripes to encoded bytes and back, each named by one byte in the record header."""

from hifc_ray.codecs.base import Codec
from hifc_ray.codecs.raw import Raw
from hifc_ray.codecs.registry import by_code, by_name, names

__all__ = ["Codec", "Raw", "by_code", "by_name", "names"]
