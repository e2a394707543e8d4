"""A small decoder-only transformer: RMSNorm, rotary embeddings, grouped-query attention, gated feed-forward layers.

Keys and values of a token are the same bits whatever follows it, and whichever process computes them on the same kind of machine:

- `prefill` computes chunks of `CHUNK` tokens, and pads the last one. Every product of matrices then has a shape that depends on a
  token's position only, never on the length of the prompt; the order of additions depends on nothing else.
- Each process uses one thread (`one_thread`), since the number of threads changes that order, too.

So blocks that a decoder keeps from one prompt are right for another one, and two hosts give the tokens that one would give.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tokenizer import Tokenizer

#: Tokens that `prefill` computes at a time.
CHUNK = 64


@dataclass(frozen=True)
class Shape:
    """The sizes of a model."""

    vocabulary: int = 1024
    layers: int = 8
    width: int = 128
    heads: int = 4
    kv_heads: int = 2
    hidden: int = 256
    tokens_max: int = 2304

    @property
    def head_dim(self) -> int:
        return self.width // self.heads


#: Gives the arrays of a layer, ``[tokens, kv_heads, head_dim]``, to be filled until the with statement ends.
LayerOf = Callable[[int], AbstractContextManager[tuple[torch.Tensor, torch.Tensor]]]


def one_thread() -> None:
    torch.set_num_threads(1)


def _normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        wide, narrow = shape.width, shape.kv_heads * shape.head_dim
        self.attention_norm = nn.Parameter(torch.ones(wide))
        self.queries = nn.Linear(wide, wide, bias=False)
        self.keys = nn.Linear(wide, narrow, bias=False)
        self.values = nn.Linear(wide, narrow, bias=False)
        self.joined = nn.Linear(wide, wide, bias=False)
        self.feed_norm = nn.Parameter(torch.ones(wide))
        self.gate = nn.Linear(wide, shape.hidden, bias=False)
        self.up = nn.Linear(wide, shape.hidden, bias=False)
        self.down = nn.Linear(shape.hidden, wide, bias=False)

    def project(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values of ``x[..., tokens, width]``, before they are turned."""
        shape = self.shape
        normed = _normed(x, self.attention_norm)
        return (
            self.queries(normed).unflatten(-1, (shape.heads, shape.head_dim)),
            self.keys(normed).unflatten(-1, (shape.kv_heads, shape.head_dim)),
            self.values(normed).unflatten(-1, (shape.kv_heads, shape.head_dim)),
        )

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Attention of ``q[tokens, heads, head_dim]`` to keys and values ``[all, kv_heads, head_dim]``. Each head of keys serves a
        group of heads of queries. ``mask`` is added to the scores of the last tokens."""
        shape, tokens = self.shape, q.shape[0]
        group = shape.heads // shape.kv_heads
        grouped = q.view(tokens, shape.kv_heads, group, shape.head_dim).permute(1, 2, 0, 3)
        grouped = grouped.reshape(shape.kv_heads, group * tokens, shape.head_dim)
        scores = torch.matmul(grouped, k.permute(1, 2, 0)) / math.sqrt(shape.head_dim)
        if mask is not None:
            scores.view(shape.kv_heads, group, tokens, -1)[..., -tokens:] += mask
        mixed = torch.matmul(scores.softmax(-1), v.transpose(0, 1))
        mixed = mixed.view(shape.kv_heads, group, tokens, shape.head_dim).permute(2, 0, 1, 3)
        return mixed.reshape(tokens, shape.width)

    def finish(self, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """What comes after attention."""
        x = x + self.joined(attended)
        normed = _normed(x, self.feed_norm)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


class Model(nn.Module):
    cosines: torch.Tensor
    sines: torch.Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Parameter(torch.randn(shape.vocabulary, shape.width))
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.Parameter(torch.ones(shape.width))
        for layer in self.layers:
            for each in (layer.joined, layer.down):
                each.weight.data /= math.sqrt(2 * shape.layers)
        half = shape.head_dim // 2
        frequencies = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.outer(torch.arange(shape.tokens_max, dtype=torch.float64), frequencies)
        self.register_buffer("cosines", angles.cos().float().unsqueeze(1), persistent=False)
        self.register_buffer("sines", angles.sin().float().unsqueeze(1), persistent=False)

    def turn(self, x: torch.Tensor, first: int, into: torch.Tensor | None = None) -> torch.Tensor:
        """Rotary embeddings of ``x[..., tokens, heads, head_dim]``, the first token at position ``first``."""
        tokens = x.shape[-3]
        cosine, sine = self.cosines[first : first + tokens], self.sines[first : first + tokens]
        one, other = x.chunk(2, -1)
        turned = (one * cosine - other * sine, one * sine + other * cosine)
        return torch.cat(turned, -1) if into is None else torch.cat(turned, -1, out=into)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of ``tokens[batch, n]``, for training."""
        shape = self.shape
        batch, n = tokens.shape
        group = shape.heads // shape.kv_heads
        mask = torch.full((n, n), -math.inf).triu(1)
        x = self.embedding[tokens]
        for layer in self.layers:
            q, k, v = layer.project(x)
            q, k = self.turn(q, 0).transpose(1, 2), self.turn(k, 0).transpose(1, 2)
            k, v = (each.repeat_interleave(group, 1) for each in (k, v.transpose(1, 2)))
            scores = q @ k.transpose(-1, -2) / math.sqrt(shape.head_dim) + mask
            x = layer.finish(x, (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, n, shape.width))
        return self._logits(x)

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(_normed(x, self.norm))

    @torch.no_grad()
    def prefill(self, tokens: Sequence[int], layer_of: LayerOf, start: int = 0) -> int:
        """Computes a prompt, and returns the first token after it.

        Keys and values of the tokens from ``start`` on are written into the arrays that ``layer_of`` gives for each layer.
        """
        n = len(tokens)
        padded = -(-n // CHUNK) * CHUNK
        ids = torch.zeros(padded, dtype=torch.long)
        ids[:n] = torch.as_tensor(tokens, dtype=torch.long)
        x = self.embedding[ids]
        mask = torch.full((CHUNK, CHUNK), -math.inf).triu(1)
        own = torch.zeros(2, padded, self.shape.kv_heads, self.shape.head_dim)
        for number, layer in enumerate(self.layers):
            with layer_of(number) as (keys, values):
                for first in range(0, padded, CHUNK):
                    here = slice(first, first + CHUNK)
                    q, k, v = layer.project(x[here])
                    k_all, v_all = self._store(first, n, start, k, v, keys, values, own)
                    x[here] = layer.finish(x[here], layer.attend(self.turn(q, first), k_all, v_all, mask))
                del k_all, v_all, keys, values
        last = padded - CHUNK
        return int(self._logits(x[last:])[n - 1 - last].argmax())

    def _store(
        self, first: int, n: int, start: int, k: torch.Tensor, v: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, own: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Puts a chunk's keys and values where they belong; returns those that it attends to."""
        end = first + CHUNK
        if start == 0 and end <= n:
            # Straight into the layer's arrays, and read from there.
            self.turn(k, first, keys[first:end])
            values[first:end] = v
            return keys[:end], values[:end]
        # Padding, and tokens that the decoder has, are in no array but our own.
        if start == 0:
            own[0, :first], own[1, :first] = keys[:first], values[:first]
        self.turn(k, first, own[0, first:end])
        own[1, first:end] = v
        low, high = max(first, start), min(end, n)
        if low < high:
            keys[low - start : high - start] = own[0, low:high]
            values[low - start : high - start] = own[1, low:high]
        return own[0, :end], own[1, :end]

    @torch.no_grad()
    def decode(self, token: int, position: int, keys: torch.Tensor, values: torch.Tensor, table: Sequence[int], write: bool = True) -> int:
        """Computes one token, and returns the next one.

        ``keys`` and ``values`` are a paged cache, ``[layers, blocks, block_size, kv_heads, head_dim]``; ``table`` has the numbers of
        this prompt's blocks. The token's own keys and values go there, unless they are there (``write``).
        """
        size = keys.shape[2]
        block, offset = table[position // size], position % size
        x = self.embedding[token].unsqueeze(0)
        where = torch.as_tensor(table[: position // size + 1])
        for number, layer in enumerate(self.layers):
            q, k, v = layer.project(x)
            if write:
                keys[number, block, offset] = self.turn(k, position)[0]
                values[number, block, offset] = v[0]
            k_all, v_all = (
                each[number].index_select(0, where).flatten(0, 1)[: position + 1] for each in (keys, values)
            )
            x = layer.finish(x, layer.attend(self.turn(q, position), k_all, v_all, None))
        return int(self._logits(x)[0].argmax())


def save(path: Path, model: Model, tokenizer: Tokenizer, about: dict[str, Any]) -> None:
    new = path.with_suffix(".new")
    what = {"shape": asdict(model.shape), "weights": model.state_dict(), "merges": tokenizer.merges, "about": about}
    torch.save(what, new)
    new.replace(path)


def load(path: Path) -> tuple[Model, Tokenizer]:
    found = torch.load(path)
    model = Model(Shape(**found["shape"]))
    model.load_state_dict(found["weights"])
    return model.eval(), Tokenizer(found["merges"])
