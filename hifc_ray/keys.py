"""Tokens to a chain of block keys: H(previous key, token ids), seeded by the namespace.

Token ids are hashed as fixed-width little-endian, so that no two token sequences share a byte string.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b

import numpy as np

from hifc_ray.types import KEY_BYTES, Key, Namespace

LAYOUT_VERSION = 1  # rises whenever the bytes of a stored block change their meaning


def chain(namespace: Namespace, tokens: Sequence[int], block_tokens: int) -> list[Key]:
    """Keys of the full blocks of `tokens`, in order; a rest shorter than a block has no key."""
    ids = np.asarray(tokens, dtype="<u4")
    keys: list[Key] = []
    previous: bytes = namespace
    for start in range(0, len(ids) - block_tokens + 1, block_tokens):
        previous = extend(previous, ids[start : start + block_tokens].tobytes())
        keys.append(Key(previous))
    return keys


def extend(previous: bytes, token_bytes: bytes) -> bytes:
    """The key after `previous` for one block given as little-endian uint32 token ids."""
    return blake2b(previous + token_bytes, digest_size=KEY_BYTES, person=b"hifc-key").digest()


def tenant_tag(salt: str) -> int:
    """The tag of a tenant's salt, uint64, by which its blocks are counted and purged; 0 for the empty salt."""
    return _tag(salt, b"hifc-tenant")


def session_tag(session: str) -> int:
    """The tag of a conversation's name, uint64, by which its blocks are purged; 0 for no name."""
    return _tag(session, b"hifc-session")


def _tag(text: str, person: bytes) -> int:
    # Names come from users: none may fail a request, so half a surrogate pair is a name like another.
    digest = blake2b(text.encode(errors="surrogatepass"), digest_size=8, person=person).digest()
    return int.from_bytes(digest, "little") or 1 if text else 0


def namespace(parts: Mapping[str, str | bytes]) -> Namespace:
    """Digest of named parts (weights, dtype, layout, shard, tenant salt); order and boundaries are unambiguous."""
    digest = blake2b(digest_size=KEY_BYTES, person=b"hifc-namespace")
    for name in sorted(parts):
        value = parts[name]
        for piece in (name.encode(), value.encode() if isinstance(value, str) else value):
            digest.update(len(piece).to_bytes(8, "little") + piece)
    return Namespace(digest.digest())
