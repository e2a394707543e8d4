"""A byte-level BPE tokenizer, learnt from a text: 256 bytes, then the pairs that are most frequent within words."""

from __future__ import annotations

import re
from collections import Counter

_WORDS = re.compile(r" ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+")


def _merged(parts: tuple[int, ...], pair: tuple[int, int], token: int) -> tuple[int, ...]:
    """The parts with each occurrence of a pair replaced by its token."""
    found: list[int] = []
    at = 0
    while at < len(parts):
        if parts[at : at + 2] == pair:
            found.append(token)
            at += 2
        else:
            found.append(parts[at])
            at += 1
    return tuple(found)


class Tokenizer:
    """Tokens 0 to 255 are bytes; token 256 + n is the n-th pair of ``merges``."""

    def __init__(self, merges: list[tuple[int, int]]) -> None:
        self.merges = [tuple(pair) for pair in merges]
        self._rank = {pair: rank for rank, pair in enumerate(self.merges)}
        self._bytes = [bytes([byte]) for byte in range(256)]
        for left, right in self.merges:
            self._bytes.append(self._bytes[left] + self._bytes[right])
        self._known: dict[str, tuple[int, ...]] = {}

    @classmethod
    def learn(cls, text: str, vocabulary: int) -> Tokenizer:
        words = {tuple(word.encode()): count for word, count in Counter(_WORDS.findall(text)).items()}
        merges: list[tuple[int, int]] = []
        while 256 + len(merges) < vocabulary:
            pairs: Counter[tuple[int, int]] = Counter()
            for parts, count in words.items():
                for pair in zip(parts, parts[1:]):
                    pairs[pair] += count
            if not pairs:
                break
            best = max(pairs, key=lambda pair: (pairs[pair], pair))
            token = 256 + len(merges)
            merges.append(best)
            words = {_merged(parts, best, token): count for parts, count in words.items()}
        return cls(merges)

    def encode(self, text: str) -> list[int]:
        return [token for word in _WORDS.findall(text) for token in self._encode_word(word)]

    def decode(self, tokens: list[int]) -> str:
        return b"".join(self._bytes[token] for token in tokens).decode(errors="replace")

    def _encode_word(self, word: str) -> tuple[int, ...]:
        parts = self._known.get(word)
        if parts is None:
            parts = tuple(word.encode())
            while len(parts) > 1:
                rank = min(self._rank.get(pair, len(self.merges)) for pair in zip(parts, parts[1:]))
                if rank == len(self.merges):
                    break
                parts = _merged(parts, self.merges[rank], 256 + rank)
            self._known[word] = parts
        return parts
