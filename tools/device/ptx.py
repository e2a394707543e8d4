#!/usr/bin/env python3
"""Compiles rgaps/device.cuh, or rgaps/device_rdma.cuh and device_link.cuh, with each kind of group to PTX, and from that to machine code, for every GPU that nvcc knows, with
warnings as errors. Prints registers and sizes; nothing may spill.

Usage: tools/device/ptx.py [--suite device|rdma] [ARCHITECTURE...], such as 90; tools/setup.sh nvcc installs nvcc.
"""
import argparse, ast, concurrent.futures, json, os, re, subprocess, sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOLKIT = ROOT / ".cache/nvcc/nvidia/cu13"
OUT = ROOT / "target/device/ptx"
FLAGS = ["-std=c++17", "-O3", f"-I{ROOT}/crates/capi/include", "-Xcompiler", "-Wall,-Wextra", "-Werror", "all-warnings"]


def tool(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{command[0]}: {done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def compiled(architecture, suite):
    ptx, cubin = OUT / f"{suite}-{architecture}.ptx", OUT / f"{suite}-{architecture}.cubin"
    said = tool(TOOLKIT / "bin/nvcc", *FLAGS, f"-arch=compute_{architecture}", "-ptx", ROOT / "tests" / suite / "groups.cu", "-o", ptx)
    options = ["-v", "-Werror", "-warn-spills", "-warn-lmem-usage", f"-arch=sm_{architecture}"]
    said += tool(TOOLKIT / "bin/ptxas", *options, ptx, "-o", cubin)
    if re.search(r"warning", said, re.IGNORECASE):
        sys.exit(f"{suite} sm_{architecture}: {said}")
    # All that is shared is shared with other processes.
    for access in re.findall(r"^\s*((?:atom|red|fence|ld\.acquire|ld\.relaxed|st\.release|st\.relaxed|st\.mmio)\S*)", ptx.read_text(), re.MULTILINE):
        if ".sys" not in access:
            sys.exit(f"sm_{architecture}: {access} is not of system scope")
    registers = {}
    name = None
    for line in said.splitlines():
        if found := re.search(r"entry function '_Z\d+((?:publish|receive|post|share|egress|ingress)_by_[a-z_]+?)\d*rgaps", line):
            name = re.sub(r"\d+$", "", found[1])
        if found := re.search(r"Used (\d+) registers", line):
            registers[name] = int(found[1])
    return {"architecture": architecture, "ptx_bytes": ptx.stat().st_size, "cubin_bytes": cubin.stat().st_size, "registers": registers}


def example(architecture):
    """The kernel of the example with CuPy."""
    script = ast.parse((ROOT / "examples/python/device_topic_cupy.py").read_text())
    kernels = [node.value.value for node in script.body if isinstance(node, ast.Assign) and node.targets[0].id == "KERNEL"]
    source = OUT / f"example-{architecture}.cu"
    source.write_text(kernels[0])
    tool(TOOLKIT / "bin/nvcc", *FLAGS, f"-arch=compute_{architecture}", "-ptx", source, "-o", source.with_suffix(".ptx"))


def numba_example(wanted):
    """The example with Numba: its kernels, each linked with the functions that it calls. The linker refuses a function that is missing."""
    tool(ROOT / ".cache/numba/bin/python", ROOT / "tools/device/numba_ptx.py", OUT, *wanted)
    shim = ROOT / "examples/python/device_topic.cu"
    for architecture in wanted:
        functions = OUT / f"numba-functions-{architecture}.o"
        tool(TOOLKIT / "bin/nvcc", *FLAGS, f"-arch=sm_{architecture}", "-dc", shim, "-o", functions)
        for name in "send", "receive":
            kernel = OUT / f"numba-{name}-{architecture}.o"
            tool(TOOLKIT / "bin/ptxas", "-c", f"-arch=sm_{architecture}", kernel.with_suffix(".ptx"), "-o", kernel)
            tool(TOOLKIT / "bin/nvlink", f"-arch=sm_{architecture}", kernel, functions, "-o", kernel.with_suffix(".cubin"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--suite", choices=["device", "rdma"], default="device")
    parser.add_argument("architectures", nargs="*")
    options = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    known = re.findall(r"compute_(\d+)", tool(TOOLKIT / "bin/nvcc", "--list-gpu-arch"))
    wanted = options.architectures or sorted(known, key=int)
    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        rows = list(pool.map(lambda architecture: compiled(architecture, options.suite), wanted))
        if options.suite == "device":
            list(pool.map(example, wanted))
            numba_example(wanted)
    names = sorted(rows[0]["registers"])
    print("registers of each kernel; sizes of all together")
    print(f"{'':6} " + " ".join(f"{name.replace('_by_', ' '):>18}" for name in names) + f" {'PTX':>8} {'machine code':>13}")
    for row in rows:
        cells = " ".join(f"{row['registers'][name]:>18}" for name in names)
        print(f"sm_{row['architecture']:<4}" + cells + f" {row['ptx_bytes']:>8} {row['cubin_bytes']:>13}")
    print(json.dumps({"architectures": len(rows), "kernels": len(names), "warnings": 0}))


if __name__ == "__main__":
    main()
