#!/usr/bin/env python3
"""Compiles the kernels of examples/python/device_topic_numba.py to PTX with Numba, which needs no GPU for it: numba_ptx.py FOLDER ARCHITECTURE...

Writes FOLDER/numba-KERNEL-ARCHITECTURE.ptx. The Python of .cache/numba has Numba (tools/setup.sh numba).
"""
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples/python"))

import device_topic_numba as example
from numba import cuda

for architecture in sys.argv[2:]:
    cc = int(architecture[:-1]), int(architecture[-1])
    for kernel, signature in (example.send, example.SEND), (example.receive, example.RECEIVE):
        ptx, _ = cuda.compile_ptx(kernel, signature.args, device=False, cc=cc)
        (Path(sys.argv[1]) / f"numba-{kernel.__name__}-{architecture}.ptx").write_text(ptx)
