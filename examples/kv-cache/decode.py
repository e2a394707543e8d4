"""The decode host: loads prompts from prefill workers, generates tokens, and compares each with those of one process.

`play.py` starts it three times: `reference` computes the prompts in one process, without rgaps; `prove` loads them from other
hosts while cables are pulled and workers are killed; `measure` takes turns between `rgaps.kv` and other ways.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

import torch

from model import Model, load, one_thread
from prefill import TOPIC, spec_of
from rgaps import kv
from tokenizer import Tokenizer
from ways import ConsolidatedClient, Done, Fetched, GlooClient, Landing, LocalClient, PickleClient, join

#: Tokens that are generated for each prompt.
NEW_TOKENS = 24
#: Blocks of the decoder's pool: three of the longest prompts, and prefixes.
POOL_BLOCKS = 640
#: Prompts that are loaded at a time.
IN_FLIGHT = 3
LIMIT_S = 120


def say(**what: object) -> None:
    """To `play.py`, one line of JSON."""
    print(json.dumps(what), flush=True)


def generate(model: Model, first: int, position: int, keys: torch.Tensor, values: torch.Tensor, table: list[int]) -> list[int]:
    tokens = [first]
    while len(tokens) < NEW_TOKENS:
        tokens.append(model.decode(tokens[-1], position, keys, values, table))
        position += 1
    return tokens


def reference(model: Model, prompts: list[dict[str, Any]]) -> None:
    landing, local = Landing(model), LocalClient(model)
    for prompt in prompts:
        landing.clear()
        first = local.fetch(prompt["tokens"], landing).done.token
        answer = generate(model, first, len(prompt["tokens"]), landing.keys, landing.values, landing.table)
        say(number=prompt["number"], answer=answer)


class Proof:
    """Loads all prompts, three at a time; a prompt that is to be disturbed is alone."""

    def __init__(self, model: Model, prompts: list[dict[str, Any]], workers: list[str]) -> None:
        self.model = model
        self.pool = kv.BlockPool(spec_of(model), POOL_BLOCKS)
        self.decoder = kv.Decoder(self.pool, name="d0", workers=workers, topic=TOPIC)
        self.waiting = deque(prompts)
        self.started: deque[tuple[dict[str, Any], kv.Load]] = deque()

    def run(self) -> None:
        with self.decoder:
            while self.waiting or self.started:
                while self.waiting and self._may_start():
                    prompt = self.waiting.popleft()
                    self.started.append((prompt, self.decoder.start_load_kv(prompt["tokens"])))
                self._finish(*self.started.popleft())

    def _may_start(self) -> bool:
        if not self.started:
            return True
        alone = "disturb" in self.waiting[0] or "disturb" in self.started[0][0]
        return len(self.started) < IN_FLIGHT and not alone

    def _finish(self, prompt: dict[str, Any], load: kv.Load) -> None:
        try:
            late = self._disturb(prompt, load)
            load.wait(LIMIT_S)
            load.reserve(len(load.tokens) + NEW_TOKENS)
        except kv.KvError as error:
            self.decoder.request_finished(load)
            say(number=prompt["number"], lost=str(error))
            return
        table, n = load.block_table, len(load.tokens)
        first = load.result.get("token")
        if first is None:
            # The pool had all blocks: the last token once more, without writing its block.
            first = self.model.decode(int(load.tokens[-1]), n - 1, self.pool.keys, self.pool.values, table, write=False)
        answer = generate(self.model, first, n, self.pool.keys, self.pool.values, table)
        say(number=prompt["number"], answer=answer, attempts=load.attempts, reused=load.reused, late=late)
        self.decoder.request_finished(load)

    def _disturb(self, prompt: dict[str, Any], load: kv.Load) -> bool:
        """Asks for the disturbance in mid-transfer: two layers are here. Returns whether the last layer came after its end."""
        if "disturb" not in prompt:
            return False
        load.wait_for_layer_load(1, LIMIT_S)
        say(disturb=prompt["disturb"], worker=load.worker)
        load.wait(LIMIT_S)
        arrived_ns = time.monotonic_ns()
        return arrived_ns > int(json.loads(sys.stdin.readline())["over_ns"])


class Kv:
    """`rgaps.kv` as a way: layers are published as they are computed, and copied into blocks as they come."""

    def __init__(self, model: Model) -> None:
        self.pool = kv.BlockPool(spec_of(model), POOL_BLOCKS)
        self.decoder = kv.Decoder(self.pool, name="d1", workers=["p0"], topic=TOPIC)
        self.load: kv.Load | None = None

    def fetch(self, tokens: list[int]) -> Fetched:
        self.load = load = self.decoder.start_load_kv(tokens)
        load.wait(LIMIT_S)
        arrived = time.monotonic_ns()
        load.reserve(len(tokens) + NEW_TOKENS)
        done = load.result
        prefilled = done["prefilled_ns"]
        return Fetched(Done(done["token"], done["began_ns"], prefilled, prefilled), arrived, time.monotonic_ns())

    def finish(self) -> None:
        if self.load is not None:
            self.decoder.request_finished(self.load)
        # The next way's turn is the same prompt: all of it shall cross again.
        self.pool.forget_prefixes()
        self.pool.keys.zero_()
        self.pool.values.zero_()


def wrong_layers(model: Model, keys: torch.Tensor, values: torch.Tensor, table: list[int], right: Landing, n: int) -> int:
    """How many arrays of keys or values differ from those of one process in any bit."""
    blocks = torch.tensor(table)
    wrong = 0
    for layer in range(model.shape.layers):
        for have, want in zip((keys, values), right.layer(layer, n)):
            found = have[layer].index_select(0, blocks).flatten(0, 1)[:n]
            wrong += not torch.equal(found.contiguous().view(torch.int32), want.contiguous().view(torch.int32))
    return wrong


class Measurement:
    """Every way in turn for each prompt, in an order that rotates. Every byte and token is compared outside the times."""

    def __init__(self, model: Model, tokenizer: Tokenizer, address: str, here: str) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.right, self.landing = Landing(model), Landing(model)
        self.local = LocalClient(model)
        join(0, here)
        self.kv = Kv(model)
        self.clients: dict[str, Any] = {
            "local": self.local,
            "consolidated": ConsolidatedClient(),
            "pickle": PickleClient(address),
            "gloo": GlooClient("gloo"),
            "gloo-layers": GlooClient("gloo-layers"),
        }

    def run(self, prompts: list[dict[str, Any]]) -> None:
        ways = ["kv", *self.clients]
        for way in ways:  # connections are made and memory is touched before the first time counts
            self._fetch(way, self.tokenizer.encode(prompts[-1]["text"]))
            self._finish(way)
        for turn, prompt in enumerate(prompts):
            tokens = self.tokenizer.encode(prompt["text"])
            self.right.clear()
            first = self.local.fetch(tokens, self.right).done.token
            right = generate(self.model, first, len(tokens), self.right.keys, self.right.values, self.right.table)
            for at in range(len(ways)):
                self._one(ways[(turn + at) % len(ways)], prompt, right)
        for name in ("gloo", "gloo-layers"):
            self.clients[name].close()
        self.kv.decoder.close()

    def _fetch(self, way: str, tokens: list[int]) -> tuple[Fetched, torch.Tensor, torch.Tensor, list[int]]:
        """What came, and where it is: keys, values, block table."""
        if way != "kv":
            got = self.clients[way].fetch(tokens, self.landing)
            return got, self.landing.keys, self.landing.values, self.landing.table
        got = self.kv.fetch(tokens)
        assert self.kv.load is not None
        return got, self.kv.pool.keys, self.kv.pool.values, self.kv.load.block_table

    def _finish(self, way: str) -> None:
        if way == "kv":
            self.kv.finish()
        else:
            self.landing.clear()

    def _one(self, way: str, prompt: dict[str, Any], right: list[int]) -> None:
        began = time.monotonic_ns()
        tokens = self.tokenizer.encode(prompt["text"])
        encoded = time.monotonic_ns()
        got, keys, values, table = self._fetch(way, tokens)
        ready = time.monotonic_ns()
        answer = generate(self.model, got.done.token, len(tokens), keys, values, table)
        decoded = time.monotonic_ns()
        done = got.done
        ns = {
            "tokenise": encoded - began,
            "prefill": done.prefilled_ns - done.began_ns,
            "consolidate": done.sending_ns - done.prefilled_ns,
            "transfer": got.arrived_ns - done.sending_ns,
            "reconstruct": got.ready_ns - got.arrived_ns,
            "ttft": ready - began,
        }
        wrong = wrong_layers(self.model, keys, values, table, self.right, len(tokens))
        self._finish(way)
        say(
            way=way, group=prompt["group"], tokens=len(tokens), ms={name: each / 1e6 for name, each in ns.items()},
            tokens_per_s=(NEW_TOKENS - 1) / ((decoded - ready) / 1e9), corrupt=wrong,
            wrong_tokens=sum(one != other for one, other in zip(answer, right)), new_tokens=len(answer),
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["reference", "prove", "measure"])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--workers", default="p0,p1")
    parser.add_argument("--here", help="address of this host")
    parser.add_argument("--there", help="address of the prefill host")
    arguments = parser.parse_args()
    one_thread()
    model, tokenizer = load(arguments.model)
    prompts = json.loads(arguments.prompts.read_text())
    if arguments.what == "reference":
        reference(model, prompts)
    elif arguments.what == "prove":
        Proof(model, prompts, arguments.workers.split(",")).run()
    else:
        Measurement(model, tokenizer, arguments.there, arguments.here).run(prompts)


if __name__ == "__main__":
    main()
