"""`BlockPool`: the engine's blocks in device memory, shared by reference count; finished ones stay as a prefix cache.

A block is FREE (no bytes that count), CACHED (published under a key, nobody uses it) or REFERENCED. Sequences hold a
reference on each of their blocks, and so does a copy-out that is under way: what is referenced is never reused.
The engine's thread owns the pool; nothing here locks.
"""

from __future__ import annotations

import mmap
from collections import OrderedDict
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from hifc_ray.config import format_bytes
from hifc_ray.device.placement import choose
from hifc_ray.errors import ConfigError, ConservationBroken
from hifc_ray.layout import BlockLayout
from hifc_ray.messages import Purge
from hifc_ray.types import NOBODY, BoolArray, Key, Namespace, Owner

TORCH_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def check_room(layout: BlockLayout, gpu_bytes: int) -> None:
    """Raises `ConfigError` if not one block fits into `gpu_bytes`."""
    if gpu_bytes < layout.block_bytes:
        need = format_bytes(layout.block_bytes)
        raise ConfigError(f"engine.gpu_bytes is {gpu_bytes}; one block needs {layout.block_bytes} bytes ({need})")


class BlockPool:
    """As many blocks as fit into `gpu_bytes`, each with the same bytes as a slot. Raises `ConfigError` if none fits."""

    def __init__(self, layout: BlockLayout, gpu_bytes: int, device: torch.device | str = "cpu") -> None:
        self.layout = layout
        self.device = torch.device(device)
        check_room(layout, gpu_bytes)
        self.num_blocks = gpu_bytes // layout.block_bytes
        try:
            zeros = _zeroed(self.num_blocks * layout.block_bytes, self.device)
        except (OSError, torch.OutOfMemoryError) as error:
            what = f"{self.device} has no room for {format_bytes(gpu_bytes)}; allowed: what is free there"
            raise ConfigError(f"engine.gpu_bytes is {gpu_bytes}; {what}") from error
        self.bytes = zeros.view(self.num_blocks, -1)
        self.layers = [self._layer(index) for index in range(layout.layers)]
        self._references = np.zeros(self.num_blocks, np.int32)
        self._free = set(range(self.num_blocks))
        self._cached: OrderedDict[int, None] = OrderedDict()  # unreferenced, the first to leave first
        self._keys: dict[int, Key] = {}
        self._blocks: dict[Key, int] = {}
        self._owners: dict[int, tuple[Namespace, Owner]] = {}  # of published blocks

    def _layer(self, index: int) -> torch.Tensor:
        """[num_blocks, 2, kv_heads, block_tokens, head_dim] of one layer."""
        layout = self.layout
        values = self.bytes.view(-1).view(TORCH_DTYPES[layout.dtype])
        per_stripe = layout.stripe_bytes // values.element_size()
        heads, tokens, dim = layout.stripe_shape[1:]
        strides = (per_stripe * layout.layers, heads * tokens * dim, tokens * dim, dim, 1)
        return values.as_strided((self.num_blocks, *layout.stripe_shape), strides, index * per_stripe)

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` can give: free ones and cached ones."""
        return len(self._free) + len(self._cached)

    @property
    def num_cached(self) -> int:
        """Published blocks, in use or not."""
        return len(self._blocks)

    def find(self, keys: Sequence[Key]) -> list[int]:
        """The blocks of the leading run of `keys` that are published here. Takes nothing."""
        run: list[int] = []
        for key in keys:
            block = self._blocks.get(key)
            if block is None:
                break
            run.append(block)
        return run

    def holds(self, keys: Sequence[Key]) -> BoolArray:
        """[keys], True where a block is published here."""
        return np.fromiter((key in self._blocks for key in keys), np.bool_, len(keys))

    def block_of(self, key: Key) -> int:
        """The block published under a key that is here."""
        return self._blocks[key]

    def num_unreferenced(self, blocks: Iterable[int]) -> int:
        """How many of these distinct blocks nobody uses: taking them lowers `num_available` by so many."""
        return sum(1 for block in blocks if self._references[block] == 0)

    def take(self, blocks: Iterable[int]) -> None:
        """One more reference on each of these published or referenced blocks."""
        for block in blocks:
            if self._references[block] == 0 and block not in self._cached:
                raise ConservationBroken(f"block {block} is taken while it is free")
            self._cached.pop(block, None)
            self._references[block] += 1

    def allocate(self, count: int, after: int | None = None) -> list[int] | None:
        """`count` blocks with one reference each, ascending and side by side if it can be; None if there is no room.

        Cached blocks leave for them, least recently used first. `after` is the block that they should follow.
        """
        if count > self.num_available:
            return None
        while len(self._free) < count:
            self._evict()
        blocks = choose(self._free, count, after)
        self._free.difference_update(blocks)
        self._references[blocks] = 1
        return blocks

    def release(self, blocks: Sequence[int]) -> None:
        """Give a reference back on each, in order of position: of those last used together the deepest leave first."""
        for block in reversed(blocks):
            if self._references[block] < 1:
                raise ConservationBroken(f"block {block} is released with {self._references[block]} references")
            self._references[block] -= 1
            if self._references[block] == 0:
                if block in self._keys:
                    self._cached[block] = None
                else:
                    self._free.add(block)

    def publish(self, block: int, key: Key, namespace: Namespace, owner: Owner = NOBODY) -> bool:
        """Let others find a referenced block that is complete. False: the key is here already, with another block."""
        if self._references[block] < 1:
            raise ConservationBroken(f"block {block} is published without a reference")
        if key in self._blocks or block in self._keys:
            return False
        self._blocks[key] = block
        self._keys[block] = key
        self._owners[block] = namespace, owner
        return True

    def purge(self, what: Purge) -> int:
        """Let nobody find these blocks any more, and free those that nobody uses; returns how many there were."""
        purged = [block for block, names in self._owners.items() if what.covers(*names)]
        for block in purged:
            self._unpublish(block)
            if block in self._cached:
                del self._cached[block]
                self._free.add(block)
        return len(purged)

    def forget(self) -> int:
        """Free every published block that nobody uses; returns how many there were."""
        count = len(self._cached)
        while self._cached:
            self._evict()
        return count

    def check(self) -> None:
        """free + cached + referenced = blocks, each in one of them; or raises `ConservationBroken` with the numbers."""
        referenced = int((self._references > 0).sum())
        free, cached = len(self._free), len(self._cached)
        if free + cached + referenced != self.num_blocks or self._references.min(initial=0) < 0:
            raise ConservationBroken(
                f"{free} free + {cached} cached + {referenced} referenced of {self.num_blocks} blocks"
            )
        if len(self._keys) != len(self._blocks) or not self._cached.keys() <= self._keys.keys() == self._owners.keys():
            raise ConservationBroken(f"{len(self._keys)} blocks with keys, {len(self._blocks)} keys, {cached} cached")

    def _evict(self) -> None:
        block, _ = self._cached.popitem(last=False)
        self._unpublish(block)
        self._free.add(block)

    def _unpublish(self, block: int) -> None:
        del self._blocks[self._keys.pop(block)], self._owners[block]


def _zeroed(size: int, device: torch.device) -> torch.Tensor:
    """Page-aligned zeros, all pages touched: a first touch during a request would be measured as its latency."""
    if device.type != "cpu":
        return torch.zeros(size, dtype=torch.uint8, device=device)
    memory = mmap.mmap(-1, size)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8).zero_()
