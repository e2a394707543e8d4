"""Element types by name: the same names in messages, numpy (with ml_dtypes) and torch."""

from __future__ import annotations

import sys
from typing import Any

from . import _numpy
from ._errors import InvalidArgument

#: The size in bytes of each floating-point type.
_FLOAT_BYTES = {
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "bfloat16": 2,
    "float8_e3m4": 1,
    "float8_e4m3": 1,
    "float8_e4m3b11fnuz": 1,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
}
_BYTES = _FLOAT_BYTES | {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "complex32": 4,
    "complex64": 8,
    "complex128": 16,
    "float4_e2m1fn_x2": 1,
}


def dtype_name(dtype: object) -> str:
    """The name of an element type of torch or numpy, or of a name: 'bfloat16' for torch.bfloat16.

    Raises:
        InvalidArgument: rgaps carries no such element type.
    """
    if isinstance(dtype, str) and dtype in _BYTES:
        return dtype
    if is_torch(dtype):
        name = str(dtype).removeprefix("torch.")
    else:
        try:
            name = _numpy.dtype_name(dtype)
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"{dtype!r} is no element type: {error}") from None
    if name not in _BYTES:
        raise InvalidArgument(f"messages cannot carry elements of type {name}; convert them first")
    return name


def is_torch(dtype: object) -> bool:
    """Whether an object is an element type of torch."""
    torch = sys.modules.get("torch")  # a type of torch exists only where torch is loaded
    return torch is not None and isinstance(dtype, torch.dtype)


def element_bytes(name: str) -> int | None:
    """The size in bytes of an element of the type of that name; None if there is no such type."""
    return _BYTES.get(name)


def is_float(name: str) -> bool:
    """Whether the type of that name is a floating-point type of a single number."""
    return name in _FLOAT_BYTES


def numpy_dtype(name: str) -> Any:
    """numpy's type of that name.

    Raises:
        TypeError: numpy has none.
        ImportError: numpy has it only with ml_dtypes, which is not installed.
    """
    return _numpy.dtype_of(name)


def torch_dtype(name: str) -> Any:
    """torch's type of that name.

    Raises:
        TypeError: this torch has none.
    """
    from ._torch import _torch

    torch = _torch()
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise TypeError(f"torch {torch.__version__} has no {name}")
    return found
