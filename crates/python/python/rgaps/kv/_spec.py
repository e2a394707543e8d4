"""The shape of a cache, and the hashes by which blocks are known.

A block has the keys and values of ``block_size`` tokens of a prompt, in all layers. The keys of a token depend on all
tokens before it, so the hash of a block covers its own tokens and the hash of the block before it (a hash chain, as in
vLLM's automatic prefix caching). The chain begins with a hash of the `Spec`, so blocks of two models never have the same hash.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from .._dtypes import dtype_name, element_bytes, is_torch, numpy_dtype
from .._errors import InvalidArgument

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

#: Bytes of a block's hash.
HASH_BYTES = 16
#: The longest name of a model, or of its version.
_NAME_MAX = 256
_SIZE_MAX = 1 << 20


@dataclass(frozen=True, init=False)
class Spec:
    """The shape of a KV cache, and the model that it belongs to. A worker and a decoder exchange blocks only if their specs are
    equal.

    Args:
        layers: Number of layers that have keys and values.
        kv_heads: Heads of keys and values of one layer (with grouped-query attention fewer than heads of queries).
        head_dim: Elements of one head.
        dtype: Element type, of numpy, of torch, or as text. With a type of torch, pools and loans are tensors of torch. Default:
            ``"float16"``, with arrays of numpy.
        block_size: Tokens of one block. Default: 16.
        model: Name of the model. At most 256 bytes. Default: empty.
        version: Version of its weights, at most 256 bytes. Change it whenever the weights change: keys of old weights are wrong for
            new ones. Default: empty.

    Raises:
        InvalidArgument: A size is not a positive number, a name is too long, or the element type is not known.
        ImportError: numpy has the element type only with ml_dtypes, which is not installed.
    """

    layers: int
    kv_heads: int
    head_dim: int
    dtype: str
    block_size: int
    model: str
    version: str
    _element: Any = field(repr=False, compare=False)
    _is_torch: bool = field(repr=False, compare=False)

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        dtype: object = "float16",
        *,
        block_size: int = 16,
        model: str = "",
        version: str = "",
    ) -> None:
        sizes = {"layers": layers, "kv_heads": kv_heads, "head_dim": head_dim, "block_size": block_size}
        for name, size in sizes.items():
            if not isinstance(size, int) or isinstance(size, bool) or not 0 < size <= _SIZE_MAX:
                raise InvalidArgument(f"{name} must be a number from 1 to {_SIZE_MAX}, not {size!r}")
        for name, text in {"model": model, "version": version}.items():
            if not isinstance(text, str) or len(text.encode()) > _NAME_MAX:
                raise InvalidArgument(f"{name} must be text of at most {_NAME_MAX} bytes")
        plain = dtype_name(dtype)
        element = dtype if is_torch(dtype) else numpy_dtype(plain)
        values: dict[str, object] = {**sizes, "model": model, "version": version, "dtype": plain}
        values |= {"_element": element, "_is_torch": is_torch(dtype)}
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def block_bytes(self) -> int:
        """The size of the keys and values of one block in bytes, over all layers."""
        return 2 * self.layers * math.prod(self._shape(1)) * (element_bytes(self.dtype) or 0)

    def blocks(self, tokens: int) -> int:
        """How many blocks a number of tokens needs.

        Args:
            tokens: Number of tokens.
        """
        return -(-tokens // self.block_size)

    def _shape(self, blocks: int) -> tuple[int, int, int, int]:
        return blocks, self.block_size, self.kv_heads, self.head_dim

    def _array(self, shape: tuple[int, ...], device: object) -> Any:
        """Zeros, of torch or numpy."""
        if self._is_torch:
            from .._torch import _torch

            return _torch().zeros(shape, dtype=self._element, device=device)
        if device is not None:
            raise InvalidArgument("a device needs a Spec with a dtype of torch, such as torch.float16")
        import numpy as np

        return np.zeros(shape, dtype=self._element)

    def _describe(self) -> dict[str, object]:
        return {each.name: getattr(self, each.name) for each in fields(self) if each.compare}

    def _differences(self, other: dict[str, object]) -> list[str]:
        """A text for each field in which a peer's spec differs. The peer's values are only shown as text."""
        return [
            f"{name} is {mine!r} here and {str(other.get(name))[:80]!r} there"
            for name, mine in self._describe().items()
            if other.get(name) != mine
        ]


def as_tokens(tokens: Sequence[int] | npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """A copy of token ids that nobody else can change.

    Raises:
        InvalidArgument: There is no token, or one is not a number from 0 to 2^32 - 1.
    """
    import numpy as np

    given = np.asarray(tokens)
    if given.ndim != 1 or not given.size or given.dtype.kind not in "iu":
        raise InvalidArgument(f"a prompt is a list of token ids, not {given.dtype} of shape {given.shape}")
    if given.min() < 0 or given.max() > 0xFFFF_FFFF:
        raise InvalidArgument("token ids are from 0 to 2^32 - 1")
    return given.astype("<u4", copy=True)


def block_hashes(spec: Spec, tokens: Sequence[int] | npt.NDArray[Any]) -> list[bytes]:
    """The hashes of the full blocks of a prompt, 16 bytes each, in order. A last block that is not full has none.

    Args:
        spec: The shape of the cache. Specs that differ give other hashes.
        tokens: Token ids, from 0 to 2^32 - 1.

    Raises:
        InvalidArgument: There is no token, or one is no such number.
    """
    ids, size = as_tokens(tokens), spec.block_size
    parent = hashlib.sha256(repr(sorted(spec._describe().items())).encode()).digest()[:HASH_BYTES]
    hashes = []
    for end in range(size, len(ids) + 1, size):
        parent = hashlib.sha256(parent + ids[end - size : end].tobytes()).digest()[:HASH_BYTES]
        hashes.append(parent)
    return hashes
