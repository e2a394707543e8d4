"""A complete version, as readers see it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from .._dtypes import numpy_dtype, torch_dtype
from .._torch import _torch
from . import _format
from ._errors import WeightsMismatch
from ._format import Entry, Header

if TYPE_CHECKING:
    from .._rgaps import Sample

Arrays = Literal["torch", "numpy"]


class Message:
    """One shard of a version. Its bytes stay unchanged as long as this object or a tensor over it lives."""

    def __init__(self, sample: Sample) -> None:
        self.header: Header = _format.decode_header(sample)
        self.entries: dict[str, Entry] = _format.decode_index(sample)
        self._part = sample.part("bytes")
        self.domain = sample.domain

    def view(self, entry: Entry, arrays: Arrays) -> Any:
        """A tensor, or a read-only array of numpy, over the bytes of an entry of this message."""
        span = slice(entry.offset, entry.offset + entry.nbytes)
        if arrays == "torch":
            return self._part.torch()[span].view(torch_dtype(entry.dtype)).view(entry.shape)
        return self._part.numpy()[span].view(numpy_dtype(entry.dtype)).reshape(entry.shape)


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor or piece, and the message that contains it."""

    entry: Entry
    message: Message


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """The description of a tensor, without its bytes.

    Args:
        dtype: The element type's name, such as ``"bfloat16"``.
        shape: The shape of the whole tensor.
        version: The version that brought its newest bytes: the full version, or a partial update after it.
        pieces: The number of its pieces; 1 for a whole tensor.
    """

    dtype: str
    shape: tuple[int, ...]
    version: int
    pieces: int


class Weights(Mapping[str, Any]):
    """One complete version: a read-only mapping from name to tensor. Get it from a `WeightsSubscriber`.

    Tensors are views of shared memory. Their bytes stay unchanged as long as this object or a tensor of it lives; drop both to
    return the memory to the trainer. numpy refuses writes; torch has no read-only tensors, so a write to host
    memory ends the process with SIGSEGV.
    """

    def __init__(self, header: Header, places: dict[str, tuple[Place, ...]], arrays: Arrays) -> None:
        self._header, self._places, self._arrays = header, places, arrays

    @property
    def version(self) -> int:
        """The number of the version."""
        return self._header.version

    @property
    def base(self) -> int | None:
        """The version that this one, a partial update, is based on; None for a full version."""
        return self._header.base

    @property
    def meta(self) -> dict[str, Any]:
        """The dictionary that the trainer gave with the version (with several ranks: rank 0)."""
        return dict(self._header.meta)

    @property
    def nbytes(self) -> int:
        """The size of all tensors, in bytes."""
        return sum(place.entry.nbytes for places in self._places.values() for place in places)

    def __getitem__(self, name: str) -> Any:
        """The tensor of that name: a view without a copy. For a tensor in pieces, each call assembles a new copy (`pieces` gives
        views)."""
        places = self._places[name]
        if places[0].entry.whole is None:
            return places[0].message.view(places[0].entry, self._arrays)
        return self._assemble(places)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __repr__(self) -> str:
        return f"<rgaps.weights.Weights version {self.version}: {len(self)} tensors, {self.nbytes} bytes>"

    def info(self, name: str) -> TensorInfo:
        """Type, shape and version of a tensor.

        Args:
            name: The name of the tensor.
        """
        places = self._places[name]
        newest = max(place.message.header.version for place in places)
        return TensorInfo(places[0].entry.dtype, places[0].entry.full_shape, newest, len(places))

    def pieces(self, name: str) -> list[tuple[tuple[int, ...], Any]]:
        """Where each piece of a tensor begins, and a view of it without a copy. A whole tensor is one piece.

        Args:
            name: The name of the tensor.
        """
        return [
            (each.entry.at or (0,) * len(each.entry.shape), each.message.view(each.entry, self._arrays))
            for each in self._places[name]
        ]

    def changed_since(self, version: int) -> list[str]:
        """The names of tensors that changed after a version.

        Args:
            version: The number of the version.
        """
        return [name for name in self if self.info(name).version > version]

    def load_into(self, module: Any, *, copy: bool = False) -> None:
        """Loads all tensors into a ``torch.nn.Module``. Checks everything first: an error leaves the module unchanged.

        Args:
            module: Its state dict has the same names and shapes.
            copy: False: the module's parameters become the shared bytes, with their element type, and need no gradient; the
                module may lie on the meta device before. Use it for inference only: whatever writes to them in place
                (an optimizer, batch norm in training) ends the process. True: the module keeps memory of its own, on
                its device and with its types, and the tensors are copied into it. Default: False.

        Raises:
            WeightsMismatch: Names or shapes differ; or without a copy the tensors are on another device than the module.
        """
        torch = _torch()
        own = module.state_dict(keep_vars=True)
        self._check(own, copy)
        with torch.no_grad():
            if copy:
                for name, tensor in own.items():
                    for at, piece in self._torch_pieces(name):
                        window = tuple(slice(begin, begin + n) for begin, n in zip(at, piece.shape, strict=True))
                        tensor[window].copy_(piece)
                return
            # Tied weights, several names of one tensor in the module, stay one tensor.
            loaded: dict[int, Any] = {}
            for name, tensor in own.items():
                if id(tensor) not in loaded:
                    shared = self._torch(name)
                    is_parameter = isinstance(tensor, torch.nn.Parameter)
                    loaded[id(tensor)] = torch.nn.Parameter(shared, requires_grad=False) if is_parameter else shared
            for name, tensor in own.items():
                _assign(module, name, loaded[id(tensor)])

    def _torch(self, name: str) -> Any:
        return Weights(self._header, {name: self._places[name]}, "torch")[name]

    def _torch_pieces(self, name: str) -> list[tuple[tuple[int, ...], Any]]:
        return Weights(self._header, {name: self._places[name]}, "torch").pieces(name)

    def _check(self, own: Mapping[str, Any], copy: bool) -> None:
        missing, unknown = sorted(own.keys() - self.keys()), sorted(self.keys() - own.keys())
        if missing or unknown:
            raise WeightsMismatch(
                f"version {self.version} and the module do not have the same tensors: the version lacks {missing[:5]}, "
                f"the module lacks {unknown[:5]}"
            )
        for name, tensor in own.items():
            shape = tuple(tensor.shape) if hasattr(tensor, "shape") else None
            if shape != self.info(name).shape:
                raise WeightsMismatch(f"{name!r} has shape {self.info(name).shape}, and {shape} in the module")
            # A type that this torch lacks fails here, before any tensor is loaded.
            torch_dtype(self.info(name).dtype)
            on_host = self._places[name][0].message.domain == "host"
            if copy and tensor.is_meta:
                raise WeightsMismatch(f"{name!r} is on the meta device, where nothing can be copied: use copy=False")
            if not copy and not tensor.is_meta and (tensor.device.type == "cpu") != on_host:
                raise WeightsMismatch(
                    f"{name!r} is on {tensor.device}, the weights are not: use copy=True, or a subscriber with domain="
                )

    def _assemble(self, places: tuple[Place, ...]) -> Any:
        first = places[0].entry
        if self._arrays == "torch":
            piece = places[0].message.view(first, "torch")
            whole: Any = _torch().empty(first.full_shape, dtype=piece.dtype, device=piece.device)
        else:
            import numpy as np

            whole = np.empty(first.full_shape, numpy_dtype(first.dtype))
        for place in places:
            at = place.entry.at or ()
            window = tuple(slice(begin, begin + n) for begin, n in zip(at, place.entry.shape, strict=True))
            whole[window] = place.message.view(place.entry, self._arrays)
        return whole


def _assign(module: Any, name: str, tensor: Any) -> None:
    """Replaces a parameter or buffer of the module by a tensor."""
    *path, last = name.split(".")
    for each in path:
        module = getattr(module, each)
    (module._parameters if last in module._parameters else module._buffers)[last] = tensor


def merge(messages: list[Message], arrays: Arrays, base: Weights | None) -> Weights:
    """Merges the messages of a version, one of each shard. ``base``: the version that a partial update is based on, else None.

    Raises:
        WeightsMismatch: The shards do not fit together, or not to the base.
    """
    header = messages[0].header
    found: dict[str, list[Place]] = {}
    for message in messages:
        for name, entry in message.entries.items():
            found.setdefault(name, []).append(Place(entry, message))
    if base is None:
        for name, places in found.items():
            _check_whole(name, places, header.version)
        return Weights(header, {name: tuple(places) for name, places in found.items()}, arrays)
    merged = dict(base._places)
    for name, places in found.items():
        merged[name] = _overlay(name, merged.get(name, ()), places, header.version)
    return Weights(header, merged, arrays)


def _check_whole(name: str, places: list[Place], version: int) -> None:
    """Raises WeightsMismatch unless the pieces of a tensor fill it without overlap."""
    first = places[0].entry
    for each in places[1:]:
        if (each.entry.dtype, each.entry.full_shape) != (first.dtype, first.full_shape) or each.entry.whole is None:
            raise WeightsMismatch(f"version {version}: shards disagree on {name!r}, or several have all of it")
    if first.whole is None:
        if len(places) > 1:
            raise WeightsMismatch(f"version {version}: shards disagree on {name!r}, or several have all of it")
        return
    filled = sum(math.prod(each.entry.shape) for each in places)
    if filled != math.prod(first.whole):
        raise WeightsMismatch(f"version {version}: the pieces of {name!r} have {filled} of {math.prod(first.whole)} elements")
    for number, one in enumerate(places):
        for other in places[:number]:
            if _overlap(one.entry, other.entry):
                raise WeightsMismatch(f"version {version}: pieces of {name!r} overlap")


def _overlap(one: Entry, other: Entry) -> bool:
    return all(
        max(a, b) < min(a + n, b + m)
        for a, n, b, m in zip(one.at or (), one.shape, other.at or (), other.shape, strict=True)
    )


def _overlay(name: str, before: tuple[Place, ...], changed: list[Place], version: int) -> tuple[Place, ...]:
    """The tensor with some of its pieces replaced by those of a partial update."""
    new = {(each.entry.at, each.entry.shape, each.entry.whole, each.entry.dtype): each for each in changed}
    kept = []
    for each in before:
        entry = each.entry
        kept.append(new.pop((entry.at, entry.shape, entry.whole, entry.dtype), each))
    if new:
        raise WeightsMismatch(f"version {version}: {name!r} has no such shape, piece or type in its base")
    return tuple(kept)
