"""The stripe as it is: no copy on the way out, none on the way in."""

from __future__ import annotations

from hifc_ray.errors import CorruptRecord


class Raw:
    """Encoded bytes are the stripe's own memory."""

    name = "raw"
    code = 0
    verbatim = True

    def encode(self, stripe: memoryview) -> memoryview:
        return stripe

    def decode(self, encoded: memoryview, stripe: memoryview) -> None:
        if len(encoded) != len(stripe):
            raise CorruptRecord(f"raw stripe of {len(encoded)} bytes, expected {len(stripe)}")
        stripe[:] = encoded
