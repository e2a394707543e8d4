#!/usr/bin/env python3
"""Writes the licences of all crates that are linked into what the wheel carries: which crate has which, where its source
is, and the texts, each once. Whoever passes on the programs must pass these on, too.

    tools/third-party.py FILE PACKAGE...
"""

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

TARGET = "x86_64-unknown-linux-gnu"
NAMES = ("license", "licence", "copying", "notice", "copyright", "unlicense")
LINE = "-" * 80
#: What licences ask for besides their texts.
SENTENCES = {"IJG": "This software is based in part on the work of the Independent JPEG Group."}


def cargo(*arguments: str) -> str:
    run = subprocess.run(["cargo", *arguments, "--locked"], stdout=subprocess.PIPE, text=True)
    if run.returncode:
        sys.exit(f"third-party.py: 'cargo {' '.join(arguments)}' failed")
    return run.stdout


def linked(packages: list[str]) -> set[tuple[str, str]]:
    """Names and versions of what ends up in the programs; not what only builds or tests them."""
    named = [word for package in packages for word in ("-p", package)]
    tree = cargo("tree", *named, "-e", "normal", "--target", TARGET, "--prefix", "none", "--no-dedupe", "--format", "{p}")
    found = {tuple(line.split()[:2]) for line in tree.splitlines() if line.strip()}
    return {(name, version.removeprefix("v")) for name, version in found}


def texts(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file() and path.name.lower().startswith(NAMES))


def main() -> None:
    out, packages = Path(sys.argv[1]), sys.argv[2:]
    wanted = linked(packages)
    known = json.loads(cargo("metadata", "--format-version", "1", "--filter-platform", TARGET))["packages"]
    crates = [each for each in known if each["source"] and (each["name"], each["version"]) in wanted]
    crates.sort(key=lambda each: (each["name"], each["version"]))
    users: dict[str, list[str]] = defaultdict(list)
    lines = [
        "rgaps is linked with these crates, which have licences and owners of their own. Their sources are at the addresses",
        "beside them, and on https://crates.io.",
        "",
    ]
    for each in crates:
        title = f"{each['name']} {each['version']}"
        source = each["repository"] or f"https://crates.io/crates/{each['name']}"
        lines.append(f"{title}: {each['license'] or 'see below'}; {source}")
        for path in texts(Path(each["manifest_path"]).parent):
            users[path.read_text(errors="replace").strip()].append(title)
    asked = {sentence for name, sentence in SENTENCES.items() for each in crates if name in (each["license"] or "")}
    lines += ["", *sorted(asked)]
    for text, titles in sorted(users.items(), key=lambda item: item[1]):
        lines += ["", LINE, "Of " + ", ".join(dict.fromkeys(titles)), LINE, "", text]
    out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
