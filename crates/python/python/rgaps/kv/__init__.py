"""Moves a KV cache from prefill workers to decoders, for disaggregated inference.

A prefill worker computes the keys and values of a prompt and writes them straight into shared memory, one message per layer;
a decoder receives each layer while the worker computes the next one. Blocks that the decoder has from another prompt are not
sent. numpy suffices; with an element type of torch, arrays are tensors.

[KV cache](../how-to/kv-cache.md) shows how to use it, and how it maps to vLLM's KV connectors and NIXL's agents.
"""

from ._blocks import BlockPool
from ._decode import Decoder, Load
from ._errors import KvError, NoFreeBlocks, NoPrefillWorker, RequestAborted, SpecMismatch, TransferFailed
from ._prefill import Layer, PrefillRequest, PrefillWorker
from ._spec import Spec, block_hashes

__all__ = [
    "BlockPool",
    "Decoder",
    "KvError",
    "Layer",
    "Load",
    "NoFreeBlocks",
    "NoPrefillWorker",
    "PrefillRequest",
    "PrefillWorker",
    "RequestAborted",
    "Spec",
    "SpecMismatch",
    "TransferFailed",
    "block_hashes",
]
