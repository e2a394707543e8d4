"""The memory of a decoder, in blocks, and who may access each block.

| a block is | who may read | who may write | until |
|---|---|---|---|
| free | nobody | nobody | `BlockPool.allocate` gives it out |
| private: one table has it, it has no hash | its owner | its owner | it is registered or released |
| shared: it has a hash, and tables have it | its owners | nobody | the last owner releases it |
| cached: it has a hash, and no table has it | nobody | nobody | a prompt matches it, or its memory is needed |

Blocks are memory of this process. No worker can write them: bytes arrive in messages, and the decoder copies them. So the
blocks of a failed load are free at once, whatever its worker still sends.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from typing import Any

from .._errors import InvalidArgument
from ._errors import NoFreeBlocks
from ._spec import Spec


class BlockPool:
    """A paged KV cache. One thread or event loop at a time may use it.

    ``keys`` and ``values`` are arrays of shape ``[layers, blocks, block_size, kv_heads, head_dim]``; a block table has
    numbers of blocks, so the keys of a prompt in layer ``l`` are ``pool.keys[l, table]``.

    Args:
        spec: The shape of the cache.
        blocks: Number of blocks.
        device: Where torch puts the arrays, such as ``"cuda:0"``. Only with a spec that has a dtype of torch. Default: the host,
            or torch's default device.

    Raises:
        InvalidArgument: ``blocks`` is below 1, or a device is given for arrays of numpy.
    """

    keys: Any
    values: Any

    def __init__(self, spec: Spec, blocks: int, *, device: object = None) -> None:
        if blocks < 1:
            raise InvalidArgument(f"a pool has at least one block, not {blocks}")
        self.spec = spec
        self.blocks = blocks
        shape = (spec.layers, *spec._shape(blocks))
        self.keys = spec._array(shape, device)
        self.values = spec._array(shape, device)
        self._owners = [0] * blocks
        self._hash_of: list[bytes | None] = [None] * blocks
        self._by_hash: dict[bytes, int] = {}
        self._free = deque(range(blocks))
        # Cached blocks that no table has, the least recently used first.
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def free(self) -> int:
        """The number of blocks that can be allocated: free ones, and those that only the prefix cache keeps."""
        return len(self._free) + len(self._cached)

    @property
    def cached(self) -> int:
        """The number of blocks that the prefix cache knows by their hash, in a table or not."""
        return len(self._by_hash)

    def match(self, hashes: Sequence[bytes]) -> list[int]:
        """The blocks of the longest prefix of ``hashes`` that the pool has, in order. Does not take ownership: `share` does.

        Args:
            hashes: Hashes of a prompt's blocks, from `block_hashes`.
        """
        found = []
        for each in hashes:
            block = self._by_hash.get(each)
            if block is None:
                break
            found.append(block)
        return found

    def share(self, blocks: Iterable[int]) -> None:
        """Makes the caller one more owner of blocks that have an owner or are cached.

        Args:
            blocks: Numbers of blocks, such as those from `match`.

        Raises:
            InvalidArgument: A block has no owner and is not cached. Then no block got a new owner.
        """
        blocks = list(blocks)
        for block in blocks:
            if not 0 <= block < self.blocks or not (self._owners[block] or block in self._cached):
                raise InvalidArgument(f"block {block} has no owner and is not cached")
        for block in blocks:
            self._owners[block] += 1
            self._cached.pop(block, None)

    def allocate(self, count: int) -> list[int]:
        """Allocates private blocks, and returns their numbers: free ones first, then the least recently used of the prefix cache.

        Args:
            count: How many blocks.

        Raises:
            NoFreeBlocks: There are fewer than ``count``. Nothing was allocated.
        """
        if count > self.free:
            raise NoFreeBlocks(f"{count} blocks are needed, and {self.free} of {self.blocks} are free")
        taken = []
        for _ in range(count):
            if self._free:
                block = self._free.popleft()
            else:
                block, _ = self._cached.popitem(last=False)
                self._forget(block)
            self._owners[block] = 1
            taken.append(block)
        return taken

    def register(self, block: int, block_hash: bytes) -> None:
        """Makes a full private block known by its hash. Nobody may write it from now on. If another block has this hash
        already, that one stays the known one, and ``block`` stays private.

        Args:
            block: Number of the block.
            block_hash: Its hash, from `block_hashes`.

        Raises:
            InvalidArgument: The block has no owner.
        """
        if not 0 <= block < self.blocks or not self._owners[block]:
            raise InvalidArgument(f"block {block} has no owner")
        if self._hash_of[block] is None and block_hash not in self._by_hash:
            self._by_hash[block_hash] = block
            self._hash_of[block] = block_hash

    def release(self, blocks: Sequence[int]) -> None:
        """Ends the caller's ownership of each block. The prefix cache reuses the last blocks of a prompt first, since its
        beginning is more useful.

        Args:
            blocks: Numbers of the blocks, in the order of the prompt.

        Raises:
            InvalidArgument: A block has no owner. Nothing was released.
        """
        for block in blocks:
            if not 0 <= block < self.blocks or not self._owners[block]:
                raise InvalidArgument(f"block {block} has no owner")
        for block in reversed(blocks):
            self._owners[block] -= 1
            if self._owners[block]:
                continue
            if self._hash_of[block] is None:
                self._free.append(block)
            else:
                self._cached[block] = None

    def forget_prefixes(self) -> None:
        """Empties the prefix cache, for example after new weights. Blocks in tables keep their owners."""
        for block in list(self._by_hash.values()):
            self._forget(block)
        self._free.extend(self._cached)
        self._cached.clear()

    def _forget(self, block: int) -> None:
        block_hash = self._hash_of[block]
        if block_hash is not None:
            del self._by_hash[block_hash]
            self._hash_of[block] = None

    def _write(self, layer: int, blocks: Sequence[int], keys: Any, values: Any) -> None:
        """Copies keys and values, ``[len(blocks), block_size, kv_heads, head_dim]`` each, into private blocks."""
        if not self.spec._is_torch:
            self.keys[layer, blocks] = keys
            self.values[layer, blocks] = values
            return
        from .._torch import _torch

        torch, device = _torch(), self.keys.device
        where = torch.tensor(blocks, device=device)
        self.keys[layer].index_copy_(0, where, keys.to(device))
        self.values[layer].index_copy_(0, where, values.to(device))
