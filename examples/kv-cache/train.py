"""Trains the model on licences that Debian's base-files ships. Takes 2 to 3 minutes; the same seed gives the same steps."""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import torch
from torch.nn import functional

from model import Model, Shape, one_thread, save
from tokenizer import Tokenizer

#: Folder of the texts, and their names.
LICENCES = Path("/usr/share/common-licenses")
NAMES = ["Apache-2.0", "GPL-2", "GPL-3", "LGPL-2.1"]
#: Steps with sequences of so many tokens, that many at a time. Long ones last: they are slow.
SCHEDULE = [(440, 128, 8), (40, 512, 2), (4, 2048, 1)]
WARM_UP = 20
RATE = 3e-3


def corpus() -> str:
    """The text, with single spaces: lines and pages are of no use."""
    missing = [name for name in NAMES if not (LICENCES / name).exists()]
    if missing:
        raise SystemExit(f"{LICENCES} lacks {', '.join(missing)}; on Debian and Ubuntu the package base-files has them")
    return "\n".join(" ".join((LICENCES / name).read_text(encoding="utf-8", errors="replace").split()) for name in NAMES)


def train(model: Model, tokens: torch.Tensor, seed: int) -> float:
    """Returns the mean loss of the last steps."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.05)
    plan = [(length, batch) for steps, length, batch in SCHEDULE for _ in range(steps)]
    losses: list[float] = []
    began = time.monotonic()
    for step, (length, batch) in enumerate(plan):
        rate = RATE * min((step + 1) / WARM_UP, 0.5 * (1 + math.cos(math.pi * step / len(plan))) + 0.02)
        for group in optimizer.param_groups:
            group["lr"] = rate
        starts = torch.randint(0, len(tokens) - length - 1, (batch,), generator=generator)
        rows = torch.stack([tokens[start : start + length + 1] for start in starts.tolist()])
        loss = functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss))
        if step % 20 == 0 or step + 1 == len(plan):
            mean = sum(losses[-20:]) / len(losses[-20:])
            print(f"  step {step + 1} of {len(plan)}, loss {mean:.2f}, {time.monotonic() - began:.0f} s", flush=True)
    return sum(losses[-20:]) / 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    one_thread()
    text = corpus()
    tokenizer = Tokenizer.learn(text, Shape.vocabulary)
    tokens = torch.tensor(tokenizer.encode(text))
    model = Model(Shape())
    parameters = sum(each.numel() for each in model.parameters())
    print(f"training {parameters / 1e6:.1f} million parameters on {len(tokens)} tokens of {', '.join(NAMES)}", flush=True)
    loss = train(model, tokens, arguments.seed)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    save(arguments.out, model, tokenizer, {"loss": loss, "seed": arguments.seed})


if __name__ == "__main__":
    main()
