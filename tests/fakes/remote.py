"""A holder in this process that speaks to a tier as one in another process does: by numbered calls that can be lost."""

from __future__ import annotations

import numpy as np

from hifc_ray.client import ChainQuery, Grant, LookupReply, StoreRequest
from hifc_ray.messages import CallHeader, GrantName, Held
from hifc_ray.tiering import TieredCache
from hifc_ray.tiering.holders import lock_holder_file
from hifc_ray.tiering.ledger import LeaseLedger
from hifc_ray.types import FloatArray


class Remote:
    """Its own holder file, ledger, open grants and call numbers. `incarnation` may be set to an old one."""

    def __init__(self, tier: TieredCache) -> None:
        self.tier = tier
        self.lock = lock_holder_file(tier._arena.path)
        self.info = tier.attach(str(self.lock.path))
        self.incarnation = self.info.incarnation
        self.ledger = LeaseLedger(tier.num_slots)
        self.open: list[Grant] = []
        self.lookups = self.stores = 0

    @property
    def number(self) -> int:
        """Its bit in the slot table."""
        holder = self.tier._serving._holders.named(self.info.holder)
        assert holder is not None
        return holder.number

    def lookup(self, query: ChainQuery | None, *, lost: bool = False, sequence: int = 0) -> LookupReply | None:
        """With `lost` the answer never arrives, so this holder knows nothing of what it was lent."""
        self.lookups += 1
        reply = self.tier.serve_lookup(self._header(sequence or self.lookups), self.ledger.held(), query)
        if reply is not None and not lost:
            self.ledger.add(reply.lease)
        return reply

    def reserve(self, request: StoreRequest, *, lost: bool = False, sequence: int = 0) -> Grant | None:
        self.stores += 1
        grant = self.tier.serve_reserve(self._header(sequence or self.stores), self.grants(), request)
        if grant is not None and not lost:
            self.open.append(grant)
        return grant

    def commit(
        self, grant: Grant, attention: FloatArray | None = None, *, named: bool = True, sequence: int = 0
    ) -> int | None:
        """Without `named` the grant is left out of the list of open ones."""
        self.stores += 1
        held = self.grants() if named else self.grants(without=grant)
        name = GrantName(grant.incarnation, grant.sequence)
        return self.tier.serve_commit(self._header(sequence or self.stores), held, name, attention)

    def grants(self, without: Grant | None = None) -> Held:
        """The slots of all open grants, as each store call carries them."""
        rows = [(g.slots[g.granted], g.generations[g.granted]) for g in self.open if g is not without]
        if not rows:
            return Held()
        return Held(np.concatenate([slots for slots, _ in rows]), np.concatenate([gens for _, gens in rows]))

    def die(self) -> None:
        """The lock goes, as with the process; the file stays."""
        self.lock.release()

    def _header(self, sequence: int) -> CallHeader:
        return CallHeader(self.info.holder, self.incarnation, sequence)
