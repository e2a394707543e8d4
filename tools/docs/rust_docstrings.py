"""A griffe extension: the extension module's docstrings, from the Rust sources that define them.

The stub `_rgaps.pyi` has the signatures, the compiled module has the docstrings, which are the doc comments in
crates/python/src. Taking them from there, the site is built without the module, and each docstring is written once.
A public object of the stub without a docstring anywhere is an error.
"""

import re
from pathlib import Path

import griffe

ROOT = Path(__file__).resolve().parents[2]
DOC = r"((?:[ \t]*///[^\n]*\n)+)"
ATTRIBUTES = r"(?:[ \t]*(?:#\[(?:[^\[\]]|\[[^\]]*\])*\](?:[ \t]*//[^\n]*)?|[ \t]*//(?!/)[^\n]*)\n)"
CLASS = re.compile(rf"{DOC}?({ATTRIBUTES}+)[ \t]*pub(?:\(crate\))? (?:struct|enum) (\w+)")
FIELD = re.compile(rf"{DOC}[ \t]*#\[pyo3\(get\)\]\n[ \t]*(?:pub(?:\(crate\))? )?(\w+):")
METHODS = re.compile(r"#\[pymethods\]\nimpl (\w+) \{\n(.*?)^\}", re.DOTALL | re.MULTILINE)
# Methods that several classes have, which one class of the stub stands for: `dlpack_methods!` and `_Dlpack`.
SHARED = re.compile(r"macro_rules! (\w+)_methods \{.*?impl \$class \{\n(.*?)^        \}", re.DOTALL | re.MULTILINE)
FUNCTION = re.compile(rf"{DOC}{ATTRIBUTES}*[ \t]*(?:pub(?:\(crate\))? )?fn (?:r#)?(\w+)")
EXPORTED = re.compile(rf"{DOC}[ \t]*#\[pyfunction\]\n{ATTRIBUTES}*[ \t]*(?:pub(?:\(crate\))? )?fn (\w+)")


def _text(doc):
    return "\n".join(re.sub(r"^[ \t]*/// ?", "", line) for line in doc.rstrip("\n").split("\n"))


def docstrings(folder=ROOT / "crates/python/src"):
    """Docstrings by `Class`, `Class.member` and `function`."""
    found = {}
    for path in sorted(folder.rglob("*.rs")):
        source = path.read_text()
        names = {}
        for doc, attributes, rust in CLASS.findall(source):
            if "#[pyclass" not in attributes:
                continue
            name = re.search(r'name = "(\w+)"', attributes)
            names[rust] = name.group(1) if name else rust
            if doc:
                found[names[rust]] = _text(doc)
            start = source.index(f" {rust} {{")
            for field_doc, field in FIELD.findall(source[start : source.index("\n}", start)]):
                found[f"{names[rust]}.{field}"] = _text(field_doc)
        shared = [(f"_{name.capitalize()}", body) for name, body in SHARED.findall(source)]
        for rust, body in METHODS.findall(source) + shared:
            for doc, name in FUNCTION.findall(body):
                python = "__init__" if name == "new" else name
                found.setdefault(f"{names.get(rust, rust)}.{python}", _text(doc))
        for doc, name in EXPORTED.findall(source):
            found[name] = _text(doc)
    return found


class RustDocstrings(griffe.Extension):
    """Fills the docstrings of `rgaps._rgaps`."""

    def on_package(self, *, pkg, **_):
        if pkg.name != "rgaps":
            return
        found = docstrings()
        missing = []
        for member in pkg["_rgaps"].members.values():
            if not member.is_alias:
                self._fill(member, member.name, found, missing)
        for name in ("publisher", "subscriber"):
            # As `rgaps._default` does it for help().
            function = pkg["_default"][name]
            of_method = found[f"Node.{name}"]
            text = f"{function.docstring.value}\n\n{of_method[of_method.index('Args:') :]}"
            function.docstring = griffe.Docstring(text, parent=function, parser="google")
        if missing:
            raise RuntimeError(f"crates/python/src has no doc comment for: {', '.join(sorted(missing))}")

    def _fill(self, item, path, found, missing):
        public = not any(part.startswith("_") for part in path.split("."))
        if item.is_class and "__new__" in item.members:
            # griffe takes a class's parameters from `__init__` alone.
            made = item.members["__new__"]
            item.del_member("__new__")
            made.name = "__init__"
            item.set_member("__init__", made)
        if not item.docstring and path in found:
            # Without a parser, Args and Raises would be shown as plain text.
            item.docstring = griffe.Docstring(found[path], parent=item, parser="google")
        if not item.docstring and public and (item.is_function or item.is_class or "property" in item.labels):
            missing.append(path)
        if item.is_class:
            for member in list(item.members.values()):
                if not member.is_alias:
                    self._fill(member, f"{path}.{member.name}", found, missing)
