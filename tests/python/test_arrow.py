"""Messages as Arrow arrays, read by pyarrow, and on a GPU by ctypes: pyarrow's wheels know no CUDA."""

import ctypes
import gc
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import rgaps

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/python/arrow_node.py"


class Old:
    """An object that consumers of the C data interface know, and not that of devices."""

    def __init__(self, message):
        self.__arrow_c_array__ = message.__arrow_c_array__


def received(pair, data):
    pub, sub = pair
    pub.put(data)
    return sub.recv(60)


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"])
def test_numbers_are_where_the_message_is(pair, dtype):
    data = np.arange(100).astype(dtype)
    sample = received(pair, data)
    for array in (pa.array(sample), pa.Array._import_from_c_capsule(*sample.__arrow_c_array__())):
        array.validate(full=True)
        assert array.type == pa.from_numpy_dtype(data.dtype) and array.null_count == 0
        assert array.buffers()[1].address == sample.address
        assert array.to_numpy().tobytes() == data.tobytes()


def test_bytes_scalars_and_empty_arrays(pair):
    assert pa.array(received(pair, b"hello")).to_numpy().tobytes() == b"hello"
    assert pa.array(received(pair, np.float32(1.5).reshape(()))).to_pylist() == [1.5]
    assert pa.array(received(pair, np.empty((0,), "i4"))).to_pylist() == []
    assert len(pa.array(received(pair, np.empty((0, 3), "i4")))) == 0


def test_more_dimensions_are_tensors_of_rows(pair):
    data = np.arange(24, dtype="i2").reshape(2, 3, 4)
    sample = received(pair, data)
    array = pa.array(sample)
    array.validate(full=True)
    assert array.type == pa.fixed_shape_tensor(pa.int16(), (3, 4))
    assert array.to_numpy_ndarray().tolist() == data.tolist()
    assert array.storage.flatten().buffers()[1].address == sample.address
    table = pa.table({"rows": array})
    assert table.slice(1)["rows"].chunk(0).to_numpy_ndarray().tolist() == data[1:].tolist()


def test_booleans_stay_bytes(pair):
    array = pa.array(received(pair, np.array([True, False, True])))
    assert array.type == pa.bool8() and array.to_pylist() == [True, False, True]
    array = pa.array(received(pair, np.eye(3, dtype=bool)))
    assert array.type == pa.fixed_shape_tensor(pa.int8(), (3,))
    assert array.to_numpy_ndarray().tolist() == np.eye(3, dtype=int).tolist()


def test_a_part_is_an_array_and_a_message_of_parts_is_not(pair):
    sample = received(pair, {"points": np.ones((5, 3), "f4"), "time": np.arange(5.0)})
    times = pa.array(sample.part("time"))
    assert times.to_pylist() == list(range(5))
    assert times.buffers()[1].address == sample.address + sample.part("time").offset
    with pytest.raises(rgaps.InvalidArgument, match="'points'"):
        sample.__arrow_c_array__()


def test_what_arrow_cannot_have_is_refused(pair):
    pub, sub = pair
    with pytest.raises(BufferError, match="no type for complex64"):
        received(pair, np.ones(3, "c8")).__arrow_c_array__()
    with pub.loan((3, 4), "int32", strides=(4, 12)) as loan:
        loan.numpy()[:] = 1
    with pytest.raises(BufferError, match="strides"):
        sub.recv(60).__arrow_c_array__()


@pytest.mark.parametrize("shape", [(1000,), (10, 100)])
@pytest.mark.parametrize("consumer", [pa.array, lambda sample: pa.array(Old(sample))], ids=["device", "host"])
def test_the_last_array_ends_the_hold(node, shape, consumer):
    with node.subscriber("t") as sub, node.publisher("t", history=1) as pub:
        data = np.arange(1000, dtype="i4").reshape(shape)
        pub.put(data)
        with sub.recv(60) as sample:
            array = consumer(sample)
        for number in range(50):
            pub.put(np.full(shape, number, "i4"))
        while sub.try_recv() is not None:
            pass
        gc.collect()
        assert sub.held == 1
        # What remains is a slice of the innermost array, whose parents have gone.
        last = (array.storage.flatten() if len(shape) > 1 else array)[-3:]
        del array
        gc.collect()
        assert sub.held == 1 and last.to_pylist() == [997, 998, 999]
        del last
        gc.collect()
        assert sub.held == 0


def test_capsules_that_nobody_takes_end_the_hold(pair):
    pub, sub = pair
    sample = received(pair, np.ones((2, 3), "f4"))
    capsules = [sample.__arrow_c_array__(), sample.__arrow_c_device_array__(None, unknown=1)]
    # Their order is any.
    capsules = [half for pair_ in capsules for half in pair_]
    sample.release()
    assert sub.held == 1
    del sample, capsules
    assert sub.held == 0


def test_recorded_messages(node, tmp_path):
    file = str(tmp_path / "run.mcap")
    data = np.arange(12, dtype="f4").reshape(3, 4)
    with node.publisher("t", transient_local=True) as pub:
        pub.put(data)
        program = shutil.which("rgaps", path=str(Path(sys.executable).parent)) or "rgaps"
        subprocess.run([program, "record", "-o", file, "--count", "1", "t"], check=True, timeout=120)
    [(topic, message)] = rgaps.open(file)
    assert topic == "t" and pa.array(message).to_numpy_ndarray().tolist() == data.tolist()


class _DeviceArray(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("length", "null_count", "offset", "n_buffers", "n_children")),
        ("buffers", ctypes.POINTER(ctypes.c_void_p)),
        *((name, ctypes.c_void_p) for name in ("children", "dictionary", "release", "private_data")),
        ("device_id", ctypes.c_int64),
        ("device_type", ctypes.c_int32),
        ("sync_event", ctypes.c_void_p),
        ("reserved", ctypes.c_int64 * 3),
    ]


@pytest.mark.skipif(len(rgaps.domains()) < 2, reason="no GPU answers, and the test driver was not built")
def test_a_message_on_a_gpu_is_an_array_of_the_device_interface(node):
    with node.subscriber("t") as sub, node.publisher("t", domain="cuda") as pub:
        pub.put(np.arange(7, dtype="i4"))
        sample = sub.recv(60)
        with pytest.raises(BufferError, match="__arrow_c_device_array__"):
            sample.__arrow_c_array__()
        schema, capsule = sample.__arrow_c_device_array__()
        assert pa.DataType._import_from_c_capsule(schema) == pa.int32()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        array = _DeviceArray.from_address(pointer(capsule, b"arrow_device_array"))
        # ARROW_DEVICE_CUDA, and no event: the work is complete.
        assert (array.device_type, array.device_id, array.sync_event) == (2, 0, None)
        assert (array.length, array.n_buffers, array.buffers[0]) == (7, 2, None)
        assert array.buffers[1] == sample.address
        sample.release()
        assert sub.held == 1
        del capsule
        assert sub.held == 0


def test_the_example_node(realm):
    ran = subprocess.run([sys.executable, str(EXAMPLE), "--demo"], capture_output=True, text=True, timeout=120, check=True)
    lines = ran.stdout.splitlines()
    assert len(lines) == 3 and all("167 of 1000 nearer than 5 m" in line for line in lines)
