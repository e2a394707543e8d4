"""The code blocks of a page, and what the page says about running them.

A comment `<!-- test: WORDS -->` right before a block says how the block is run; words are separated by `;`:

    shared         the page's python blocks are one program, with one namespace; given once, before the first
    file NAME      the block is written to that file, for a later block to run
    background     the command is started and runs until the page's end
    output         what the block before printed; `...` stands for anything
    prints         how the output of the program in the background that was started last begins; waits for it
    on HOST        on that host, of those that the page's first comment names: `hosts robot 10.0.0.1 desk 10.0.0.2`
    clone          at the top: the page's folder looks like a clone, its home is that folder, and nothing names what is built
    gpu            on CUDA's test driver, without a GPU (at the top: the whole page)
    needs MODULE   where that module of Python is installed
    skip REASON    not run, for that reason, which the run counts and prints; the last of the words
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^(?P<indent> *)(?P<fence>```+|~~~+) *(?P<language>[\w-]*)(?P<rest>.*)$")
COMMENT = re.compile(r"^ *<!-- test: (?P<words>.*) -->$")
#: Languages that are run, and those that a page only shows.
#: Pages whose blocks are not run here, and why.
ELSEWHERE = {"docs/reference/cli.md": "a test of crates/cli parses its examples (args::examples)"}
RUN = {"python", "sh", "console", "rust", "c", "toml"}
SHOWN = {"text", "yaml", "ini", "json", "dockerfile"}


@dataclass
class Block:
    page: str
    line: int
    language: str
    text: str
    words: dict[str, str] = field(default_factory=dict)

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass
class Page:
    name: str
    words: dict[str, str]
    blocks: list[Block]


def pages() -> list[str]:
    """All documents for users. Decision records tell of their time, and generated pages have no code."""
    found = [path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*.md")]
    names = [str(path) for path in found if path.parts[1] != "decisions"]
    names = [name for name in names if name not in ELSEWHERE]
    return ["README.md", "crates/rgaps/README.md", "crates/python/README.md", "packaging/README.md", "demo/README.md", *sorted(names)]


def parse(name: str, text: str | None = None) -> Page:
    lines = (ROOT / name).read_text().split("\n") if text is None else text.split("\n")
    page = Page(name, {}, [])
    words: dict[str, str] = {}
    at = 0
    while at < len(lines):
        line = lines[at]
        if comment := COMMENT.match(line):
            words = _words(comment["words"])
            for word in ("hosts", "shared", "gpu", "clone"):
                if word in words and not page.blocks:
                    page.words[word] = words[word]
        elif opening := FENCE.match(line):
            end = at + 1
            while not (lines[end].strip().startswith(opening["fence"]) and not lines[end].strip().strip("`~")):
                end += 1
                if end == len(lines):
                    raise ValueError(f"{name}:{at + 1}: the block has no end")
            code = textwrap.dedent("\n".join(lines[at + 1 : end])) + "\n"
            page.blocks.append(Block(name, at + 1, opening["language"], code, words))
            words = {}
            at = end
        elif line.strip():
            words = {}
        at += 1
    return page


def _words(text: str) -> dict[str, str]:
    found = {}
    text, skip, reason = text.partition("skip")
    if skip:
        found["skip"] = reason.strip()
    for part in filter(str.strip, text.split(";")):
        word, _, rest = part.strip().partition(" ")
        if word not in {"shared", "file", "background", "output", "prints", "on", "hosts", "gpu", "needs", "clone"}:
            raise ValueError(f"<!-- test: {text} -->: {word!r} is no word that tests/docs/page.py knows")
        found[word] = rest.strip()
    return found
