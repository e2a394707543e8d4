"""Tensors of torch over loans and samples, and copies by torch."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._dtypes import element_bytes

if TYPE_CHECKING:
    from ._rgaps import Loan, Part, Recorded, Sample

#: DLPack's number for the host.
_CPU = 1


def _torch() -> Any:
    # Not an import statement: type checkers need no torch.
    return import_module("torch")


def is_tensor(value: object) -> bool:
    """Whether a value is a tensor of torch. Does not import torch: unless somebody has, there is no tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


class _Bits:
    """A loan or sample as integers of its elements' width, for a torch whose DLPack does not know
    the elements' type."""

    def __init__(self, exporter: Loan | Part | Recorded | Sample) -> None:
        self._exporter = exporter

    def __dlpack__(self, **wanted: Any) -> Any:
        return self._exporter._dlpack_bits(**wanted)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._exporter.__dlpack_device__()


def as_tensor(exporter: Loan | Part | Recorded | Sample) -> Any:
    """A tensor over the bytes, without a copy, ordered on torch's current stream."""
    kind, ordinal = exporter.__dlpack_device__()
    if kind == _CPU:
        return _as_tensor(exporter)
    # torch asks CUDA's runtime about the address, which initializes the current GPU: so make the tensor's GPU current.
    with _torch().cuda.device(ordinal):
        return _as_tensor(exporter)


def _as_tensor(exporter: Loan | Part | Recorded | Sample) -> Any:
    torch = _torch()
    try:
        return torch.from_dlpack(exporter)
    except (BufferError, RuntimeError):
        name = exporter.dtype or "uint8"
        dtype = getattr(torch, name, None)
        # torch has integers of up to 8 bytes, for _Bits.
        if not isinstance(dtype, torch.dtype) or (element_bytes(name) or 16) > 8:
            raise
    return torch.from_dlpack(_Bits(exporter)).view(dtype)


def to_fill(loan: Loan | Part) -> Any:
    """The tensor through which the user fills a loan in a with statement."""
    return as_tensor(loan)


def empty(tensor: Any) -> None:
    """Empties a tensor: it no longer refers to its bytes. Views of it still do."""
    with _torch().no_grad():
        tensor.set_()


def current_stream(ordinal: int) -> int:
    """The handle of the current stream of a GPU."""
    handle: int = _torch().cuda.current_stream(ordinal).cuda_stream
    return handle


def copies(tensor: Any, to_gpu: bool) -> bool:
    """Whether this torch can copy the tensor into a pool: not every build supports GPUs."""
    return bool(_torch().cuda.is_available() or not (to_gpu or tensor.is_cuda))


def copy(loan: Loan, tensor: Any, stream: object) -> None:
    """Copies a tensor of any device into a loan, on the given stream, or else on the current one. Waits for a copy to or from
    the host."""
    torch = _torch()
    tensor = tensor.detach()
    kind, ordinal = loan.__dlpack_device__()
    if kind == _CPU and not tensor.is_cuda:
        as_tensor(loan).copy_(tensor)
        return
    if kind == _CPU:
        ordinal = tensor.device.index
    if stream is None:
        used = torch.cuda.current_stream(ordinal)
    else:
        handle = getattr(stream, "cuda_stream", getattr(stream, "ptr", stream))
        used = torch.cuda.ExternalStream(handle, device=ordinal)
    with torch.cuda.stream(used):
        target = as_tensor(loan)
        if kind == _CPU or tensor.device in (target.device, torch.device("cpu")):
            target.copy_(tensor)
        else:
            # A pool's memory is mapped on its own GPU only, so torch copies the bytes of another GPU to its own memory there first.
            target.copy_(tensor.to(target.device))
        if tensor.is_cuda:
            # The tensor's memory may belong to another stream: torch must not reuse it before the copy has read it.
            tensor.record_stream(torch.cuda.current_stream(tensor.device))
