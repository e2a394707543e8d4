"""The decode host of two virtual machines: a few short prompts, and the result. tests/vm/demo-kv.sh starts it. See README.md."""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from model import load
from train import corpus

HERE = Path(__file__).parent
#: Emulated machines are slow.
LENGTHS = [16, 33, 64, 100, 150, 200, 256, 48]


def said(what: str, model: Path, prompts: Path) -> list[dict[str, Any]]:
    command = [sys.executable, str(HERE / "decode.py"), what, "--workers", "p0", "--model", str(model), "--prompts", str(prompts)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=700)
    return [json.loads(line) for line in done.stdout.splitlines()]


def peer(programs: Path) -> dict[str, Any]:
    """What the links say of the other machine."""
    done = subprocess.run([str(programs / "rgaps"), "peers", "--json"], check=True, stdout=subprocess.PIPE, timeout=60)
    (found,) = json.loads(done.stdout)["peers"]
    return dict(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--programs", type=Path, required=True, help="folder of rgaps")
    arguments = parser.parse_args()
    _, tokenizer = load(arguments.model)
    tokens, chance = tokenizer.encode(corpus()), random.Random(1)
    prompts = []
    for number, length in enumerate(LENGTHS):
        start = chance.randrange(len(tokens) - length)
        prompts.append({"number": number, "tokens": tokens[start : start + length]})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "prompts.json"
        path.write_text(json.dumps(prompts))
        right = {each["number"]: each["answer"] for each in said("reference", arguments.model, path)}
        began = time.monotonic()
        found = said("prove", arguments.model, path)
    seconds = time.monotonic() - began
    answers = [each for each in found if "answer" in each]
    wrong = sum(one != other for each in answers for one, other in zip(each["answer"], right[each["number"]]))
    of = peer(arguments.programs)
    print(f"{len(found)} prompts of {min(LENGTHS)} to {max(LENGTHS)} tokens in {seconds:.0f} s; {of['lanes']} lanes over {of['over']}; {of['path']}")
    result = {"prompts": len(found), "tokens": sum(len(each["answer"]) for each in answers), "wrong_tokens": wrong}
    result |= {"lost": len(prompts) - len(answers), "path": of["path"]}
    print(json.dumps(result))
    return 1 if wrong or result["lost"] or of["path"] != "rdma" else 0


if __name__ == "__main__":
    sys.exit(main())
