"""Codecs by name, for people, and by code, for record headers."""

from __future__ import annotations

from hifc_ray.codecs.base import Codec
from hifc_ray.codecs.raw import Raw
from hifc_ray.errors import ConfigError, CorruptRecord

_CODECS: tuple[Codec, ...] = (Raw(),)
_BY_NAME = {codec.name: codec for codec in _CODECS}
_BY_CODE = {codec.code: codec for codec in _CODECS}


def names() -> list[str]:
    """Names that `by_name` takes."""
    return list(_BY_NAME)


def by_name(name: str) -> Codec:
    """The codec of that name; raises `ConfigError` that says what is allowed."""
    try:
        return _BY_NAME[name]
    except KeyError:
        raise ConfigError(f"codec is {name!r}; allowed: {', '.join(_BY_NAME)}") from None


def by_code(code: int) -> Codec:
    """The codec of a record; raises `CorruptRecord` for a code that this release does not write."""
    try:
        return _BY_CODE[code]
    except KeyError:
        raise CorruptRecord(f"record has codec code {code}; known: {', '.join(map(str, _BY_CODE))}") from None
