"""Every example of README and of the pages below docs/ is run as it stands."""

import re
from collections import Counter

import pytest
from page import ROOT, Page, pages, parse
from running import Failed, Runner


@pytest.mark.parametrize("name", pages())
def test_every_example_runs(name, tally):
    run(parse(name), tally)


def run(page: Page, tally):
    runner = Runner(page, *tally)
    try:
        runner.run()
    finally:
        runner.end()


WRONG = {
    "an exception": "```python\nraise SystemExit(1)\n```\n",
    "a name that rgaps lacks": "```python\nimport rgaps\nrgaps.publish\n```\n",
    "a command that fails": "```sh\nfalse | cat\n```\n",
    "other output": "```sh\necho this\n```\n<!-- test: output -->\n```text\nthat\n```\n",
    "other output on a console": "```console\n$ echo this\nthat\n```\n",
    "a key that does not exist": "```toml\n[links]\nport = 1\n```\n",
    "Rust that does not compile": "```rust\nlet node = rgaps::Node::new(1)?;\n```\n",
    "C that fails": "```c\nint main(void) { return 1; }\n```\n",
    "no language": "```\nrgaps up\n```\n",
    "no reason to skip": "<!-- test: skip -->\n```sh\ntrue\n```\n",
    "a program in the background that prints something else": (
        "<!-- test: background -->\n```sh\nbash -c 'echo this; sleep 60'\n```\n<!-- test: prints -->\n```text\nthat\n```\n"
    ),
    "a program in the background that prints less": (
        "<!-- test: background -->\n```sh\necho this\n```\n<!-- test: prints -->\n```text\nthis\n...\n```\n"
    ),
    "a program in the background that fails": (
        "<!-- test: background -->\n```sh\nbash -c 'echo $$ > began; exit 3'\n```\n"
        "```sh\nuntil [ -s began ]; do :; done; while grep -q '^State:.[RSD]' /proc/$(cat began)/status; do :; done\n```\n"
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_example_fails(what):
    with pytest.raises(Failed):
        run(parse("made up for a test", WRONG[what]), (Counter(), []))


def test_a_word_that_nobody_knows_is_an_error():
    with pytest.raises(ValueError, match="no word"):
        parse("made up for a test", "<!-- test: hide -->\n```sh\ntrue\n```\n")


def test_the_page_of_errors_has_all_that_python_raises():
    source = (ROOT / "crates/python/python/rgaps/_errors.py").read_text()
    named = set(re.findall(r"^class (\w+)\(", source, re.MULTILINE)) - {"Error"}
    exported = (ROOT / "crates/python/python/rgaps/__init__.py").read_text()
    names = {name for name in named if f"\"{name}\"" in exported}
    page = (ROOT / "docs/troubleshooting.md").read_text()
    assert len(names) > 20 and [name for name in sorted(names) if f"`{name}`" not in page] == []


#: Where the messages are that a program or command gets from an operation.
MESSAGES = [
    "client/src/error.rs",
    "client/src/parts.rs",
    "client/src/header.rs",
    "client/src/tensor.rs",
    "client/src/client/error.rs",
    "layout/src/dtype.rs",
    "layout/src/domain.rs",
    "layout/src/tensor_type.rs",
    "pool/src/segment.rs",
    "session/src/access.rs",
    "session/src/config/mod.rs",
    "session/src/config/size.rs",
    "session/src/launch.rs",
    "session/src/lock.rs",
    "session/src/path.rs",
]


def fixed_words(message: str) -> str:
    """The first part of a message that is the same each time; empty where another error says everything."""
    text = re.sub(r"\\\n\s*", "", message).replace('\\"', '"')
    parts = (part.strip(" '\",()") for part in re.split(r"\{[^}]*\}|[;:.] ", text))
    return next((part for part in parts if len(part) > 8), "")


def test_the_page_of_errors_has_every_message():
    string = r'"((?:[^"\\]|\\.)*)"'
    found = [
        message
        for source in MESSAGES
        for message in re.findall(r"#\[error\(\s*" + string, (ROOT / "crates" / source).read_text())
    ]
    for source in (ROOT / "crates/engine/src").rglob("*.rs"):
        found += re.findall(
            r"LimitReached,\s*(?:message: )?(?:&?format!\(\s*)?" + string, source.read_text()
        )
    words = {fixed_words(message) for message in found} - {""}
    page = " ".join((ROOT / "docs/troubleshooting.md").read_text().split())
    assert len(words) > 50 and [text for text in sorted(words) if text not in page] == []


def test_the_reference_of_python_has_all_that_is_public():
    package = ROOT / "crates/python/python/rgaps"
    names = re.search(r"^__all__ = \[(.*?)\]", (package / "__init__.py").read_text(), re.DOTALL | re.MULTILINE)[1]
    names = set(re.findall(r'"(\w+)"', names)) - {"__version__"}
    # These are listed by the module that has them.
    names -= set(re.findall(r"^class (\w+)\(", (package / "_errors.py").read_text(), re.MULTILINE))
    page = (ROOT / "docs/reference/python.md").read_text()
    assert len(names) > 10
    assert [name for name in sorted(names) if not re.search(rf"^::: rgaps(\._\w+)?\.{name}$", page, re.MULTILINE)] == []


def test_the_units_of_the_page_say_what_those_of_the_source_say():
    blocks = re.findall(r"```(?:ini|text)\n(.*?)```", (ROOT / "docs/how-to/systemd.md").read_text(), re.DOTALL)
    units = ROOT / "packaging/systemd"
    for name in ("rgapsd.service", "rgaps.sysusers", "user/rgapsd.service"):
        source = set((units / name).read_text().splitlines())
        assert any(set(filter(None, block.splitlines())) <= source for block in blocks), name
