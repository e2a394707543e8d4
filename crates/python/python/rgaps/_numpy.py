"""Arrays of numpy over loans and samples, and conversions of numpy's element types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ._rgaps import Loan, Part, Recorded, Sample

#: Element types that numpy gets from the package ml_dtypes.
_ML_DTYPES = frozenset(
    {
        "bfloat16",
        "float8_e3m4",
        "float8_e4m3",
        "float8_e4m3b11fnuz",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
    }
)
#: Advice for arrays whose elements are not numbers, by numpy's letter of their kind.
_REMEDIES = {
    "M": "publish array.view('int64'), and its unit in the header",
    "m": "publish array.view('int64'), and its unit in the header",
    "U": "publish the texts in the header, or one text as bytes (text.encode())",
    "S": "publish array.view('uint8')",
    "O": "publish numbers (array.astype('float64')), or pickle.dumps(array)",
}
#: Element types that numpy lacks.
_TORCH_ONLY = frozenset({"complex32", "float4_e2m1fn_x2"})


def as_array(exporter: Loan | Part | Recorded | Sample) -> npt.NDArray[Any]:
    """An array over the bytes, without a copy."""
    if exporter.domain != "host":
        raise TypeError(
            f"the bytes are in {exporter.domain}, where numpy cannot read them; use "
            "torch.from_dlpack() or cupy.from_dlpack(), or tobytes() for a copy on the host"
        )
    name = exporter.dtype
    if name in _TORCH_ONLY:
        raise TypeError(f"numpy has no {name}; use torch.from_dlpack(), or memoryview() for the bytes")
    try:
        import numpy as np
    except ModuleNotFoundError as error:
        if error.name != "numpy":
            raise
        raise ImportError(
            "numpy is not installed: install it (pip install numpy), or read and write the bytes by memoryview()"
        ) from error
    if name not in _ML_DTYPES:
        return np.asarray(exporter)
    # The buffer protocol has no letter for these types, so rgaps exports bytes.
    return np.ndarray(
        exporter.shape,
        dtype=_ml_dtype(name),
        buffer=memoryview(exporter),
        strides=exporter.strides,
    )


def to_fill(loan: Loan | Part) -> npt.NDArray[Any]:
    """The array through which the user fills a loan in a with statement."""
    # A view of an array over the bytes: views of the view refer to that array, not to the view, so the view can be emptied.
    return as_array(loan).view()


def empty(array: Any) -> None:
    """Empties an array: it no longer refers to its bytes. Views of it still do."""
    array.__setstate__((1, (0,), array.dtype, False, b""))


def dtype_of(name: str) -> np.dtype[Any]:
    """The type of that name, from numpy or ml_dtypes."""
    import numpy as np

    if name in _TORCH_ONLY:
        raise TypeError(f"numpy has no {name}; use torch")
    return _ml_dtype(name) if name in _ML_DTYPES else np.dtype(name)


def _ml_dtype(name: str) -> np.dtype[Any]:
    import numpy as np

    try:
        import ml_dtypes
    except ModuleNotFoundError as error:
        if error.name != "ml_dtypes":
            raise
        raise ImportError(
            f"numpy has no {name} of its own; install ml_dtypes (pip install rgaps[ml-dtypes])"
        ) from error
    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return found


def dtype_name(dtype: object) -> str:
    """numpy's name of an element type: 'float32' for 'f4', float32 or '<f4'."""
    import numpy as np

    found: np.dtype[Any] = np.dtype(dtype)  # type: ignore[call-overload]
    if not found.isnative:
        raise ValueError(f"{dtype!r} has the other byte order; convert it to the native one")
    return found.name


def as_bytes(array: object) -> tuple[Any, str, tuple[int, ...]] | None:
    """Bytes, type and shape of an array whose type the buffer protocol cannot express; None for other objects."""
    dtype = getattr(array, "dtype", None)
    name = getattr(dtype, "name", None)
    remedy = _REMEDIES.get(getattr(dtype, "kind", ""))
    if remedy is not None:
        raise TypeError(f"a message cannot have elements of numpy's {name}: {remedy}")
    if name not in _ML_DTYPES:
        return None
    import numpy as np

    whole: npt.NDArray[Any] = np.asarray(array, order="C")
    return whole.reshape(-1).view(np.uint8), name, tuple(whole.shape)
