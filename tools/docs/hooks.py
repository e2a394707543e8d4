"""What mkdocs does not do by itself: root documents as pages, links to source files, decisions in the navigation.

- `docs/design/architecture.md` and its like hold one line, `<!-- include: ARCHITECTURE.md -->`.
- A link from a page to a file of the repository outside docs/ becomes a link to the repository's site. It must exist.
- `<!-- source: FILE -->` becomes that source file as a code block.
- The documentation that rustdoc made (target/doc) is copied into the site.
- The theme's one script from another server is replaced by our copy.
- The records of docs/decisions are listed in the navigation by their titles.
"""

import os
import re
import shutil
from pathlib import Path

from mkdocs.exceptions import PluginError

ROOT = Path(__file__).resolve().parents[2]
INCLUDE = re.compile(r"<!-- include: (\S+) -->")
SOURCE = re.compile(r"<!-- source: (\S+) -->")
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
IFRAME_WORKER = "assets/iframe-worker.js"
FENCE = re.compile(r"^(```|~~~)", re.MULTILINE)


def on_config(config):
    records = sorted((ROOT / "docs/decisions").glob("[0-9][0-9][0-9][0-9]-*.md"))
    entries = ["decisions/README.md"]
    for record in records:
        title = re.search(r"^# (.+)$", record.read_text(), re.MULTILINE)
        if not title:
            raise PluginError(f"{record} has no title")
        entries.append({f"{record.name[:4]} {re.sub(r'^[0-9]{4}[:.]? *', '', title.group(1))}": f"decisions/{record.name}"})
    design = next(entry["Design"] for entry in config.nav if "Design" in entry)
    next(entry for entry in design if "Decisions" in entry)["Decisions"] = entries
    return config


def on_page_markdown(markdown, page, config, files):
    here = Path("docs") / page.file.src_uri
    include = INCLUDE.search(markdown)
    if include:
        here = Path(include.group(1))
        markdown = (ROOT / here).read_text()
        page.edit_url = f"{config.repo_url}/blob/main/{here}"
    outside = _included_pages(files)

    def link(match):
        before, target, anchor, after = match.groups()
        if re.match(r"[a-z]+:", target):
            return match.group(0)
        path = os.path.normpath(here.parent / target)
        if path in outside:
            path = outside[path]
        if path.startswith("docs/") and (ROOT / path).is_file():
            target = os.path.relpath(path, Path("docs") / Path(page.file.src_uri).parent)
        elif (ROOT / path).exists() and not path.startswith(("docs/", "..")):
            kind = "tree" if (ROOT / path).is_dir() else "blob"
            target = f"{config.repo_url}/{kind}/main/{path}"
        elif path == "docs/decisions":
            target = os.path.relpath("docs/decisions/README.md", Path("docs") / Path(page.file.src_uri).parent)
        return f"{before}{target}{anchor or ''}{after}"

    markdown = _outside_of_code(markdown, lambda text: LINK.sub(link, text))
    return SOURCE.sub(lambda match: _code(ROOT / match.group(1)), markdown)


def on_post_page(output, page, config):
    # The theme would load this script from another server.
    return output.replace("https://unpkg.com/iframe-worker/shim", _up(page) + IFRAME_WORKER)


def on_post_template(output_content, template_name, config):
    return output_content.replace("https://unpkg.com/iframe-worker/shim", IFRAME_WORKER)


def _up(page):
    return "../" * page.file.dest_uri.count("/")


def on_post_build(config):
    shutil.copytree(ROOT / "target/doc", Path(config.site_dir) / "rustdoc", dirs_exist_ok=True)


def _code(path):
    language = {".h": "c"}.get(path.suffix, path.suffix[1:])
    return f"```{language}\n{path.read_text()}```"


def _included_pages(files):
    """Which page shows a root document."""
    pages = {}
    for file in files.documentation_pages():
        source = Path(file.abs_src_path)
        if source.exists() and source.stat().st_size < 200:
            include = INCLUDE.search(source.read_text())
            if include:
                pages[include.group(1)] = f"docs/{file.src_uri}"
    return pages


def _outside_of_code(markdown, change):
    parts, inside = re.split(r"(^(?:```|~~~).*$)", markdown, flags=re.MULTILINE), False
    for number, part in enumerate(parts):
        if FENCE.match(part):
            inside = not inside
        elif not inside:
            parts[number] = change(part)
    return "".join(parts)
