"""A consumer of DLPack capsules that looks at every field, in ctypes."""

import ctypes

READ_ONLY = 1
IS_COPIED = 2


class Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("id", ctypes.c_int32)]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", Device),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Managed(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class ManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


_api = ctypes.pythonapi
_api.PyCapsule_GetName.restype = ctypes.c_char_p
_api.PyCapsule_GetName.argtypes = [ctypes.py_object]
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]


class Capsule:
    """A consumed capsule. `delete` calls the deleter without the interpreter's lock."""

    #: Kept, since a capsule keeps only the pointer to its name.
    _USED = {b"dltensor": b"used_dltensor", b"dltensor_versioned": b"used_dltensor_versioned"}

    def __init__(self, capsule):
        name = _api.PyCapsule_GetName(capsule)
        self._pointer = _api.PyCapsule_GetPointer(capsule, name)
        self.versioned = name == b"dltensor_versioned"
        kind = ManagedVersioned if self.versioned else Managed
        self._managed = kind.from_address(self._pointer)
        _api.PyCapsule_SetName(capsule, self._USED[name])
        tensor = self._managed.tensor
        self.version = (self._managed.major, self._managed.minor) if self.versioned else None
        self.flags = self._managed.flags if self.versioned else None
        self.device = (tensor.device.kind, tensor.device.id)
        self.dtype = (tensor.code, tensor.bits, tensor.lanes)
        self.shape = tuple(tensor.shape[: tensor.ndim])
        self.strides = tuple(tensor.strides[: tensor.ndim])
        self.data = (tensor.data or 0) + tensor.byte_offset

    def delete(self):
        # A function of CFUNCTYPE is called without the interpreter's lock.
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._managed.deleter)(self._pointer)
