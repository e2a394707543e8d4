"""rgaps.kv with tensors of torch: on the CPU with the system's torch (tools/pytest.sh), and on a GPU where there is one."""

import warnings

import pytest

import rgaps
from rgaps import kv
from test_kv import LIMIT, SPEC, check, serve

torch = pytest.importorskip("torch", reason="torch is not installed here")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_tensors_of_torch(node, dtype):
    spec = kv.Spec(2, 2, 8, getattr(torch, dtype))
    pool = kv.BlockPool(spec, 8, device="cpu")
    with (
        kv.PrefillWorker(spec, name="p0", node=node) as worker,
        kv.Decoder(pool, name="d0", workers=["p0"], node=node) as decoder,
    ):
        load = decoder.start_load_kv(range(20))
        wanted = torch.randn(2, 2, 20, 2, 8).to(getattr(torch, dtype))
        request = worker.recv(LIMIT)
        with warnings.catch_warnings():
            warnings.simplefilter("error", rgaps.CopyWarning)
            for layer in range(2):
                with request.layer(layer) as (keys, values):
                    keys.copy_(wanted[layer, 0])
                    values.copy_(wanted[layer, 1])
                assert keys.numel() == values.numel() == 0
        request.wait_for_save()
        load.wait(LIMIT)
        for layer in range(2):
            for cache, each in zip((pool.keys, pool.values), wanted[layer], strict=True):
                got = cache[layer, load.block_table].reshape(-1, 2, 8)
                assert torch.equal(got[:20], each) and not got[20:].any()


def test_blocks_on_a_gpu_never_leave_it(node):
    if not torch.cuda.is_available() or len(rgaps.domains()) < 2:
        pytest.skip("no GPU that torch can use")
    spec = kv.Spec(2, 2, 8, torch.bfloat16)
    pool = kv.BlockPool(spec, 8, device="cuda:0")
    with (
        kv.PrefillWorker(spec, name="p0", node=node, domain="cuda:0") as worker,
        kv.Decoder(pool, name="d0", workers=["p0"], node=node) as decoder,
    ):
        load = decoder.start_load_kv(range(20))
        wanted = torch.randn(2, 2, 20, 2, 8, device="cuda:0").to(torch.bfloat16)
        request = worker.recv(LIMIT)
        for layer in range(2):
            with request.layer(layer) as (keys, values):
                assert keys.is_cuda and values.is_cuda
                keys.copy_(wanted[layer, 0])
                values.copy_(wanted[layer, 1])
        request.wait_for_save()
        load.wait(LIMIT)
        for layer in range(2):
            for cache, each in zip((pool.keys, pool.values), wanted[layer], strict=True):
                assert cache.is_cuda
                got = cache[layer, load.block_table].reshape(-1, 2, 8)
                assert torch.equal(got[:20], each) and not got[20:].any()


def test_a_numpy_and_a_torch_side_exchange_blocks(node):
    pool = kv.BlockPool(kv.Spec(3, 2, 4, torch.int32, model="toy", version="1"), 8)
    with (
        kv.PrefillWorker(SPEC, name="p0", node=node) as worker,
        kv.Decoder(pool, name="d0", workers=["p0"], node=node) as decoder,
    ):
        load = decoder.start_load_kv(range(20))
        serve(worker)
        load.wait(LIMIT)
        check(load)
