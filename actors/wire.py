"""A lookup and its reply as one string of bytes each.

Ray carries bytes as they are; a dataclass with a handful of arrays costs it more than the lookup itself.
"""

from __future__ import annotations

import struct

import numpy as np

from hifc_ray.client import NO_LEASE, ChainQuery, Lease, LookupReply, Missed
from hifc_ray.layout import DTYPE_BYTES, BlockLayout
from hifc_ray.messages import CallHeader, Held
from hifc_ray.types import KEY_BYTES, NO_SLOT, Fate, Key, Namespace, Owner

_HEADER = struct.Struct("<3q2I")  # holder, incarnation, sequence; slots held, keys asked for
_QUERY = struct.Struct("<4I?Bq32s2Q")  # layout, continued, dtype, turn, namespace, owner
_REPLY = struct.Struct("<IqB")  # keys; index of the first miss (-1: none), its fate
_DTYPES = tuple(DTYPE_BYTES)


def pack_lookup(header: CallHeader, held: Held, query: ChainQuery | None) -> bytes:
    """A lookup; without a query it only says what is held."""
    keys = query.keys if query is not None else ()
    parts = [
        _HEADER.pack(header.holder, header.incarnation, header.sequence, len(held.slots), len(keys)),
        held.slots.tobytes(),
        held.generations.tobytes(),
    ]
    if query is not None:
        layout = query.layout
        shape = (layout.layers, layout.kv_heads, layout.head_dim, layout.block_tokens)
        dtype = _DTYPES.index(layout.dtype)
        parts.append(_QUERY.pack(*shape, query.continued, dtype, query.turn, query.namespace, *query.owner))
        parts += [query.in_gpu.tobytes(), *keys]
    return b"".join(parts)


def unpack_lookup(data: bytes) -> tuple[CallHeader, Held, ChainQuery | None]:
    """The reverse of `pack_lookup`."""
    holder, incarnation, sequence, num_held, num_keys = _HEADER.unpack_from(data)
    at = _HEADER.size
    held = Held(
        np.frombuffer(data, np.int64, num_held, at), np.frombuffer(data, np.uint64, num_held, at + 8 * num_held)
    )
    at += 16 * num_held
    header = CallHeader(holder, incarnation, sequence)
    if at == len(data):
        return header, held, None
    fields = _QUERY.unpack_from(data, at)
    layers, kv_heads, head_dim, block_tokens, continued, dtype, turn, namespace, tenant, session = fields
    at += _QUERY.size
    in_gpu = np.frombuffer(data, np.bool_, num_keys, at)
    at += num_keys
    keys = tuple(Key(data[i : i + KEY_BYTES]) for i in range(at, at + num_keys * KEY_BYTES, KEY_BYTES))
    layout, owner = BlockLayout(layers, kv_heads, head_dim, block_tokens, _DTYPES[dtype]), Owner(tenant, session)
    return header, held, ChainQuery(Namespace(namespace), keys, in_gpu, layout, owner, turn, continued)


def pack_reply(reply: LookupReply | None) -> bytes:
    """A reply; no bytes at all for a call that was refused or asked for nothing."""
    if reply is None:
        return b""
    missed = reply.missed
    head = _REPLY.pack(
        len(reply.answers), missed.index if missed else -1, int(missed.fate) if missed else int(Fate.UNKNOWN)
    )
    arrays = (reply.slots, reply.generations, reply.answers, reply.tiers)
    return b"".join([head, *(array.tobytes() for array in arrays)])


def unpack_reply(data: bytes, query: ChainQuery) -> LookupReply | None:
    """The reverse of `pack_reply`, for the query that was sent."""
    if not data:
        return None
    n, index, fate = _REPLY.unpack_from(data)
    at = _REPLY.size
    slots = np.frombuffer(data, np.int64, n, at)
    generations = np.frombuffer(data, np.uint64, n, at + 8 * n)
    answers = np.frombuffer(data, np.uint8, n, at + 16 * n)
    tiers = np.frombuffer(data, np.uint8, n, at + 17 * n)
    named = (slots != NO_SLOT).nonzero()[0]
    lease = Lease(slots[named], generations[named]) if len(named) else NO_LEASE
    missed = None if index < 0 else Missed(index, query.keys[index], Fate(fate))
    return LookupReply(answers, slots, generations, tiers, lease, missed)
