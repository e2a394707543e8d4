"""What the with statement over a loan gives, and takes back at its end."""

import ctypes
import gc
import warnings

import numpy as np
import pytest

import rgaps


def address(array):
    return array.__array_interface__["data"][0]


@pytest.mark.parametrize("dtype", [np.float32, np.dtype("<i8"), np.dtype("bool"), np.complex64])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), 5, (2, 3, 4), (1,) * 8])
def test_a_numpy_type_gives_an_array_in_place(pair, dtype, shape):
    pub, sub = pair
    loan = pub.loan(shape, dtype, tag=7)
    where = loan.address
    with loan as array:
        assert isinstance(array, np.ndarray) and array.dtype == dtype
        assert array.shape == loan.shape and array.flags.writeable
        assert array.size == 0 or address(array) == where
        array[...] = 1
    sample = sub.recv(60)
    assert (sample.numpy() == 1).all() and (sample.shape, sample.tag) == (loan.shape, 7)
    # In place: the same block, although the variable is still there. It has no bytes any more.
    assert sample.dtype == array.dtype.name and array.shape == (0,)


@pytest.mark.parametrize("dtype", ["float32", None])
def test_other_types_give_the_loan(pair, dtype):
    pub, sub = pair
    with pub.loan(4, dtype) as loan:
        assert isinstance(loan, rgaps.Loan)
        np.from_dlpack(loan)[:] = 3
    assert (sub.recv(60).numpy() == 3).all()


def test_a_type_of_ml_dtypes(pair):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    pub, sub = pair
    for dtype in (ml_dtypes.bfloat16, np.dtype(ml_dtypes.float8_e5m2)):
        with pub.loan((2, 3), dtype) as array:
            assert array.dtype == dtype
            array[...] = 2
        assert (sub.recv(60).numpy().astype("f4") == 2).all() and array.shape == (0,)


def test_an_exception_discards_the_loan(node):
    with node.subscriber("t") as sub, node.publisher("t", max_loans=1) as pub:
        for _ in range(3):  # a loan that stays open is one too many
            with pytest.raises(ZeroDivisionError):
                with pub.loan(3, np.uint8) as array:
                    array[:] = 1
                    1 / 0
        assert array.shape == (0,) and sub.try_recv() is None
        pub.put(b"x")
        assert sub.recv(60).sequence == 0


@pytest.mark.parametrize(
    "keep",
    [
        lambda array: array[1:],
        lambda array: array.reshape(2, 2)[0],
        memoryview,
        lambda array: (array, memoryview(array)),
        lambda array: [array],
        lambda array: (ctypes.c_char * 4).from_buffer(array),
        lambda array: np.asarray(array)[::2].T,
        lambda array: array.flat,
    ],
    ids=["slice", "reshaped", "memoryview", "both", "list", "ctypes", "strided", "iterator"],
)
def test_what_is_kept_of_the_array_makes_a_copy(pair, keep):
    """Whoever keeps something writable over the bytes cannot change what others read."""
    pub, sub = pair
    with pytest.warns(rgaps.CopyWarning):
        with pub.loan(4, np.uint8) as array:
            array[:] = 1
            kept = keep(array)
    sample = sub.recv(60)
    array[...] = 9
    if isinstance(kept, np.ndarray):
        kept[...] = 9
    assert sample.tobytes() == b"\1" * 4
    del kept


def test_a_view_made_and_dropped_makes_no_copy(pair):
    pub, sub = pair
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pub.loan((3, 4), np.int32) as array:
            for row in array:
                row[:] = 5
            del row
            memoryview(array)[0, 0] = 6
    assert sub.recv(60).numpy()[0].tolist() == [6, 5, 5, 5]


def test_what_is_kept_is_still_good_after_all_is_closed():
    """The memory stays mapped for whoever sees it."""
    node = rgaps.Node("short")
    pub = node.publisher("t")
    with pytest.warns(rgaps.CopyWarning):
        with pub.loan(1 << 20, np.uint8) as array:
            array[:] = 3
            kept = array[5:10]
    pub.close()
    node.close()
    del pub, node, array
    gc.collect()
    assert kept.tolist() == [3] * 5


def test_the_array_can_be_published_or_discarded_within_the_block(pair):
    pub, sub = pair
    loan = pub.loan(3, np.uint8)
    with loan as array:
        array[:] = 4
        del array
        assert loan.publish() == 0
    assert sub.recv(60).tobytes() == b"\4" * 3
    loan = pub.loan(3, np.uint8)
    with loan as array:
        loan.discard()
        array[:] = 1  # nobody reads it
    assert sub.try_recv() is None


def test_blocks_come_back_over_many_blocks(node):
    """An array that is emptied holds nothing: the pool would be full otherwise."""
    with node.subscriber("t") as sub, node.publisher("t", max_loans=1) as pub:
        kept = []
        for number in range(100):
            with pub.loan(8 << 20, np.uint8) as array:
                array[:2] = number
            kept.append(array)
            assert sub.recv(60).numpy()[1] == number
        assert all(array.shape == (0,) for array in kept)


@pytest.mark.parametrize("dtype", ["uint8", np.uint8])
def test_strides(pair, dtype):
    pub, sub = pair
    # A picture whose rows lie 64 bytes apart, and one in column-major order.
    for shape, strides, spans in [((3, 50), (64, 1), 178), ((3, 50), (1, 3), 150), ((), (), 1)]:
        loan = pub.loan(shape, dtype, strides=strides)
        assert (loan.shape, loan.strides) == (shape, strides)
        data = np.arange(int(np.prod(shape)), dtype="u1").reshape(shape)
        with loan:
            loan.numpy()[...] = data
        sample = sub.recv(60)
        assert (sample.shape, sample.strides, sample.nbytes) == (shape, strides, spans)
        for array in (sample.numpy(), np.from_dlpack(sample), np.from_dlpack(sample, copy=True)):
            assert array.strides == strides and array.tolist() == data.tolist()
        assert np.array(memoryview(sample)).tolist() == data.tolist()
    for wrong in [(1,), (-1, 1), (1, 2, 3)]:
        with pytest.raises(rgaps.InvalidArgument):
            pub.loan((3, 50), dtype, strides=wrong)
    with pytest.raises(rgaps.InvalidArgument, match="multiple"):
        pub.loan((3, 50), "int32", strides=(200, 3))


def test_put_makes_strides_row_major(pair):
    pub, sub = pair
    data = np.arange(24, dtype="i4").reshape(2, 3, 4)
    for given in (data.T, data[:, ::2], data[::-1], np.asfortranarray(data)):
        pub.put(given)
        sample = sub.recv(60)
        assert memoryview(sample).c_contiguous and sample.numpy().tolist() == given.tolist()
