"""Checks the built site: every link within it leads somewhere, anchors included, and nothing is loaded from elsewhere.
The links of README.md and the other documents outside docs/ are checked, too: their files must exist.

No docstring is shown as plain text where it has sections (Args, Raises).

Links to the repository must name files that are there; other addresses are only checked for their form, since the
check needs no network. Usage: check.py target/site
"""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY = re.compile(r"https://github\.com/rgaps/rgaps/(?:blob|tree|edit|raw)/main/([^#?]+)")
# What a browser fetches by itself.
LOADED = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src")}
NOT_FETCHED = {"canonical", "prev", "next"}


# A section that mkdocstrings did not parse: its lines run together in one paragraph.
UNPARSED = re.compile(r"<p>(?:Args|Raises|Returns|Warns|Yields):")


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.anchors, self.links, self.loads = {""}, [], []
        self.unparsed = len(UNPARSED.findall(text))
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        for name in ("id", "name"):
            if attributes.get(name):
                self.anchors.add(attributes[name])
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"] or "")
        for name in ("src", "href"):
            if (tag, name) in LOADED and attributes.get(name):
                wanted = self.links if attributes.get("rel") in NOT_FETCHED else self.loads
                wanted.append(attributes[name])


def troubles(site):
    pages = {}

    def page(path):
        if path not in pages:
            pages[path] = Page(path.read_text(encoding="utf-8"))
        return pages[path]

    # rustdoc checks its own pages.
    ours = [path for path in sorted(site.rglob("*.html")) if "rustdoc" not in path.relative_to(site).parts[:1]]
    if not ours:
        yield f"{site}: no pages"
    checked = 0
    for path in ours:
        here = path.relative_to(site)
        if page(path).unparsed:
            yield f"{here}: {page(path).unparsed} sections of docstrings (Args:, Raises:) are shown as plain text"
        for url in page(path).loads:
            if urlsplit(url).scheme not in ("", "data") or url.startswith("//"):
                yield f"{here}: loads {url}, which needs a network"
        for url in page(path).links + page(path).loads:
            checked += 1
            parts = urlsplit(url)
            if in_repository := REPOSITORY.match(url):
                if not (ROOT / unquote(in_repository.group(1))).exists():
                    yield f"{here}: {url} names a file that is not in the repository"
            elif parts.scheme or url.startswith("//"):
                if parts.scheme not in ("http", "https", "mailto", "data") or not (parts.netloc or parts.path):
                    yield f"{here}: {url} is no address"
            else:
                target = path
                if parts.path:
                    target = (path.parent / unquote(parts.path)).resolve()
                    if here.name == "404.html" and parts.path.startswith("/"):
                        target = (site / parts.path.lstrip("/")).resolve()
                if target.is_dir():
                    target /= "index.html"
                if not target.is_file():
                    yield f"{here}: {url} leads nowhere"
                elif parts.fragment and target.suffix == ".html":
                    if unquote(parts.fragment) not in page(target).anchors:
                        yield f"{here}: {url}: that page has no such place"
    print(f"docs: {len(ours)} pages, {checked} links checked")


def troubles_outside():
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.split():
        if name.startswith("docs/") or not (ROOT / name).exists():
            continue
        for target in re.findall(r"\]\(([^)\s#]+)(?:#[^)]*)?\)", (ROOT / name).read_text()):
            if not re.match(r"[a-z]+:", target) and not (ROOT / name).parent.joinpath(target).exists():
                yield f"{name}: {target} leads nowhere"


def main():
    found = [*troubles(Path(sys.argv[1]).resolve()), *troubles_outside()]
    print("\n".join(found))
    sys.exit(f"docs: {len(found)} faults" if found else 0)


main()
