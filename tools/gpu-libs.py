#!/usr/bin/env python3
"""Makes the libraries that a CUDA program loads in place of NVIDIA's, around librgaps_gpu.so.

  gpu-libs.py build CORE FOLDER   libcudart.so.13, libcudart.so.12, libcuda.so.1 in FOLDER, with CORE beside them
  gpu-libs.py table CORE          the table of docs/reference/gpu-remoting.md, to standard output

Each library has every symbol of the real one, with its version (crates/interpose/symbols has the names). A symbol is a jump to the
function of the core (rgaps_rt_NAME, rgaps_rt12_NAME where CUDA 12 differs, rgaps_cu_NAME), or to the one that says that NAME is not
supported. Needs cc and nm.
"""
import argparse, pathlib, platform, shutil, subprocess, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SYMBOLS = ROOT / "crates/interpose/symbols"
# Library, prefixes of the core's functions in the order in which they are looked for, the function for the rest, version.
LIBRARIES = [
    ("libcudart.so.13", ["rgaps_rt13_", "rgaps_rt_"], "rgaps_rt_unsupported", True),
    ("libcudart.so.12", ["rgaps_rt12_", "rgaps_rt_"], "rgaps_rt_unsupported", True),
    ("libcuda.so.1", ["rgaps_cu_"], "rgaps_cu_unsupported", False),
]
# A jump to the function `to`; one that passes the address of a name first.
JUMP = {
    "x86_64": ("jmp *{to}@GOTPCREL(%rip)", "lea {name}(%rip), %rdi\n\tjmp *{to}@GOTPCREL(%rip)"),
    "aarch64": (
        "adrp x16, :got:{to}\n\tldr x16, [x16, :got_lo12:{to}]\n\tbr x16",
        "adrp x0, {name}\n\tadd x0, x0, :lo12:{name}\n\tadrp x16, :got:{to}\n\tldr x16, [x16, :got_lo12:{to}]\n\tbr x16",
    ),
}


def symbols(library):
    return (SYMBOLS / library).read_text().split()


def exported(core):
    out = subprocess.run(["nm", "-D", "--defined-only", core], check=True, capture_output=True, text=True).stdout
    return {line.split()[-1] for line in out.splitlines()}


def target(symbol, prefixes, functions):
    """The core's function behind a symbol, or None."""
    return next((prefix + symbol for prefix in prefixes if prefix + symbol in functions), None)


def assembly(library, prefixes, rest, functions):
    forwarded, unsupported = JUMP[platform.machine()]
    lines, names = [".text"], []
    for number, symbol in enumerate(symbols(library)):
        to = target(symbol, prefixes, functions)
        name = f".Lname{number}"
        body = forwarded.format(to=to) if to else unsupported.format(to=rest, name=name)
        if not to:
            names.append(f'{name}: .asciz "{symbol}"')
        lines += [f".globl {symbol}", f".type {symbol}, %function", f"{symbol}:", f"\t{body}", f".size {symbol}, .-{symbol}"]
    lines += [".section .rodata", *names, '.section .note.GNU-stack,"",%progbits']
    return "\n".join(lines) + "\n"


def build(core, folder):
    folder.mkdir(parents=True, exist_ok=True)
    if core.resolve().parent != folder.resolve():
        shutil.copy(core, folder / "librgaps_gpu.so")
    functions = exported(core)
    with tempfile.TemporaryDirectory() as temporary:
        temporary = pathlib.Path(temporary)
        for library, prefixes, rest, versioned in LIBRARIES:
            source, script = temporary / "stub.s", temporary / "stub.map"
            source.write_text(assembly(library, prefixes, rest, functions))
            names = "".join(f"    {symbol};\n" for symbol in symbols(library))
            script.write_text(f"{library if versioned else ''} {{\n  global:\n{names}  local: *;\n}};\n")
            subprocess.run(
                ["cc", "-shared", "-nostdlib", "-o", folder / library, source, f"-Wl,-soname,{library}",
                 f"-Wl,--version-script,{script}", "-Wl,-rpath,$ORIGIN", "-Wl,-z,now", f"-L{folder}", "-l:librgaps_gpu.so"],
                check=True,
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("build")
    make.add_argument("core", type=pathlib.Path)
    make.add_argument("folder", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.command == "build":
        build(arguments.core, arguments.folder)


if __name__ == "__main__":
    sys.exit(main())
