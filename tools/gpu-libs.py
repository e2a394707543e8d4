#!/usr/bin/env python3
"""Makes the libraries that a CUDA program loads in place of NVIDIA's, around librgaps_gpu.so.

  gpu-libs.py build CORE FOLDER   libcudart.so.13, libcudart.so.12, libcuda.so.1, libcublas.so.13 and others in FOLDER, with CORE beside them
  gpu-libs.py table CORE          docs/reference/gpu-remoting.md, to standard output
  gpu-libs.py symbols CUDA CUDA12 tools/gpu-symbols, from the folders of the packages nvidia-cuda-runtime of CUDA 13 and 12
  gpu-libs.py properties CUDA CUDA12    crates/interpose/src/properties.rs, from the same
  gpu-libs.py errors CUDA         crates/interpose/src/errors.rs, from the same

Each library has every symbol of the real one, with its version (tools/gpu-symbols has the names). A symbol is a jump to the
function of the core (rgaps_rt_NAME, rgaps_rt12_NAME where CUDA 12 differs, rgaps_cu_NAME), or to the one that says that NAME is not
supported. A function of a library above the runtime passes its number in crates/remoting/src/math/functions.txt, and its registers, to one
function of the core. Needs cc and nm.
"""
import argparse, ctypes, pathlib, platform, re, shutil, subprocess, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SYMBOLS = ROOT / "tools/gpu-symbols"
# Library, prefixes of the core's functions in the order in which they are looked for, the function for the rest, version.
LIBRARIES = [
    ("libcudart.so.13", ["rgaps_rt13_", "rgaps_rt_"], "rgaps_rt_unsupported", True),
    ("libcudart.so.12", ["rgaps_rt12_", "rgaps_rt_"], "rgaps_rt_unsupported", True),
    ("libcuda.so.1", ["rgaps_cu_"], "rgaps_cu_unsupported", False),
    *[
        (library, ["rgaps_math_"], "rgaps_math_unsupported", True)
        for library in ("libcublas.so.13", "libcublas.so.12", "libcublasLt.so.13", "libcublasLt.so.12", "libcurand.so.10", "libcufft.so.12",
                        "libcufft.so.11", "libcudnn.so.9")
    ],
]
# Functions of the libraries above the runtime: a line each, whose number is what both ends call them by.
MATH = [
    line.split() for line in (ROOT / "crates/remoting/src/math/functions.txt").read_text().splitlines()
    if not line.startswith(("#", "library "))
]
NEWEST = ["libcublas.so.13", "libcublasLt.so.13", "libcurand.so.10", "libcufft.so.12", "libcudnn.so.9"]
MATH_NUMBERS = {words[0]: number for number, words in enumerate(MATH)}
# A jump to the function `to`; one that passes the address of a name first.
JUMP = {
    "x86_64": ("jmp *{to}@GOTPCREL(%rip)", "lea {name}(%rip), %rdi\n\tjmp *{to}@GOTPCREL(%rip)"),
    "aarch64": (
        "adrp x16, :got:{to}\n\tldr x16, [x16, :got_lo12:{to}]\n\tbr x16",
        "adrp x0, {name}\n\tadd x0, x0, :lo12:{name}\n\tadrp x16, :got:{to}\n\tldr x16, [x16, :got_lo12:{to}]\n\tbr x16",
    ),
}
# A jump that passes a number, to code that passes all registers with arguments, and the address of the arguments on the stack.
NUMBERED = {"x86_64": "mov ${number}, %eax\n\tjmp .Lenter", "aarch64": "mov w17, #{number}\n\tb .Lenter"}
ENTER = {
    "x86_64": [
        "push %rbp", "mov %rsp, %rbp", "sub $112, %rsp",
        *[f"mov %{register}, {8 * at}(%rsp)" for at, register in enumerate(["rdi", "rsi", "rdx", "rcx", "r8", "r9"])],
        *[f"movsd %xmm{at}, {48 + 8 * at}(%rsp)" for at in range(8)],
        "mov %eax, %edi", "mov %rsp, %rsi", "lea 16(%rbp), %rdx", "call *rgaps_math_called@GOTPCREL(%rip)", "leave", "ret",
    ],
    "aarch64": [
        "stp x29, x30, [sp, #-16]!", "mov x29, sp", "sub sp, sp, #128",
        *[f"stp x{at}, x{at + 1}, [sp, #{8 * at}]" for at in range(0, 8, 2)],
        *[f"stp d{at}, d{at + 1}, [sp, #{64 + 8 * at}]" for at in range(0, 8, 2)],
        "mov w0, w17", "mov x1, sp", "add x2, x29, #16", "adrp x16, :got:rgaps_math_called", "ldr x16, [x16, :got_lo12:rgaps_math_called]",
        "blr x16", "mov sp, x29", "ldp x29, x30, [sp], #16", "ret",
    ],
}

# Functions that ask the server nothing, once the session is there.
HERE = """
__cudaGetKernel __cudaInitModule __cudaPopCallConfiguration __cudaPushCallConfiguration __cudaRegisterFatBinary
__cudaRegisterFatBinaryEnd __cudaRegisterFunction __cudaRegisterManagedVar __cudaRegisterVar __cudaUnregisterFatBinary
cudaArrayGetInfo cudaCreateChannelDesc cudaGetChannelDesc cudaGetSurfaceObjectResourceDesc cudaGetTextureObjectResourceDesc
cudaGetTextureObjectResourceViewDesc cuArrayGetDescriptor_v2 cuArray3DGetDescriptor_v2 cuSurfObjectGetResourceDesc
cuTexObjectGetResourceDesc cuTexObjectGetResourceViewDesc
cudaCtxResetPersistingL2Cache cudaDeviceCanAccessPeer cudaDeviceGetAttribute cudaDeviceGetByPCIBusId
cudaDeviceGetCacheConfig cudaDeviceGetPCIBusId cudaDeviceGetSharedMemConfig cudaDeviceSetCacheConfig cudaDeviceSetSharedMemConfig
cudaDriverGetVersion cudaGraphAddChildGraphNode cudaGraphAddDependencies cudaGraphAddDependencies_v2 cudaGraphAddEmptyNode
cudaGraphAddEventRecordNode cudaGraphAddEventWaitNode cudaGraphAddHostNode cudaGraphAddMemcpyNode cudaGraphAddMemcpyNode1D
cudaGraphAddMemsetNode cudaGraphClone cudaGraphCreate cudaGraphDestroyNode cudaGraphEventRecordNodeSetEvent
cudaGraphEventWaitNodeSetEvent cudaGraphExecEventRecordNodeSetEvent cudaGraphExecEventWaitNodeSetEvent
cudaGraphExecHostNodeSetParams cudaGraphExecMemcpyNodeSetParams cudaGraphExecMemcpyNodeSetParams1D cudaGraphExecMemsetNodeSetParams
cudaGraphGetEdges cudaGraphGetEdges_v2 cudaGraphGetRootNodes cudaGraphHostNodeSetParams cudaGraphMemcpyNodeSetParams
cudaGraphMemcpyNodeSetParams1D cudaGraphMemsetNodeSetParams cudaGraphNodeFindInClone cudaGraphNodeGetDependencies
cudaGraphNodeGetDependencies_v2 cudaGraphNodeGetDependentNodes cudaGraphNodeGetDependentNodes_v2 cudaGraphNodeGetType
cudaGraphRemoveDependencies cudaGraphRemoveDependencies_v2 cudaMemAdvise cudaMemAdvise_v2 cudaMemPrefetchAsync
cudaMemPrefetchAsync_v2 cudaStreamAttachMemAsync cudaFuncGetName cudaFuncSetCacheConfig cudaFuncSetSharedMemConfig cudaGetDevice cudaGetDeviceCount
cudaChooseDevice cudaGetDeviceFlags cudaGetDeviceProperties cudaGetDeviceProperties_v2 cudaGetErrorName cudaGetErrorString cudaGetFuncBySymbol
cudaGetKernel cudaGetLastError cudaHostAlloc cudaHostGetFlags cudaHostRegister cudaInitDevice cudaMallocHost cudaPeekAtLastError
cudaPointerGetAttributes cudaProfilerStart cudaProfilerStop cudaRuntimeGetVersion cudaSetDevice cudaSetDeviceFlags
cudaSetValidDevices cudaStreamGetDevice cudaStreamGetFlags cudaStreamGetId cudaStreamGetPriority cudaStreamIsCapturing cudaThreadExchangeStreamCaptureMode
cuThreadExchangeStreamCaptureMode
cuCtxCreate_v2 cuCtxCreate_v3 cuCtxCreate_v4 cuCtxGetApiVersion cuCtxGetFlags cuDeviceComputeCapability cuDeviceGetByPCIBusId
cuDevicePrimaryCtxSetFlags_v2 cuFuncGetName cuFuncSetCacheConfig cuFuncSetSharedMemConfig cuKernelGetName cuMemHostGetFlags cuMemHostRegister_v2
cuStreamGetCtx cuStreamGetDevice cuStreamGetFlags cuStreamGetId cuStreamGetPriority
cuCtxGetCurrent cuCtxGetDevice cuCtxPopCurrent_v2 cuCtxPushCurrent_v2 cuCtxSetCurrent cuDeviceCanAccessPeer cuDeviceGet
cuDeviceGetAttribute cuDeviceGetCount cuDeviceGetName cuDeviceGetPCIBusId cuDeviceGetUuid cuDeviceGetUuid_v2
cuDevicePrimaryCtxGetState cuDevicePrimaryCtxRelease_v2 cuDevicePrimaryCtxRetain cuDeviceTotalMem_v2 cuDriverGetVersion
cuGetErrorName cuGetErrorString cuGetProcAddress cuGetProcAddress_v2 cuInit cuKernelGetFunction cuMemAllocHost_v2
cuMemGetAddressRange_v2 cuMemHostAlloc cuPointerGetAttribute
""".split()
# Exist only to refuse, with a word of their own.
REFUSED = ["cudaHostGetDevicePointer", "cuGetExportTable"]
# Functions of the runtime that nvcc's code calls, so that no source names them.
COMPILED = ["__cuda", "cudaLaunchKernel"]


def symbols(library):
    return (SYMBOLS / library).read_text().split()


def exported(core):
    out = subprocess.run(["nm", "-D", "--defined-only", core], check=True, capture_output=True, text=True).stdout
    return {line.split()[-1] for line in out.splitlines()}


def target(symbol, prefixes, functions):
    """The core's function behind a symbol, or None."""
    return next((prefix + symbol for prefix in prefixes if prefix + symbol in functions), None)


def is_math(prefixes):
    return prefixes == ["rgaps_math_"]


def is_forwarded(symbol, prefixes, functions):
    return bool(target(symbol, prefixes, functions)) or is_math(prefixes) and symbol in MATH_NUMBERS


def is_answered_here(symbol):
    """What is kept of a handle is given without asking."""
    return symbol in HERE or symbol in MATH_NUMBERS and any(word.startswith("k:") for word in MATH[MATH_NUMBERS[symbol]])


def assembly(library, prefixes, rest, functions):
    machine = platform.machine()
    forwarded, unsupported = JUMP[machine]
    lines, names = [".text"], []
    if is_math(prefixes):
        lines += [".Lenter:", *ENTER[machine]]
    for number, symbol in enumerate(symbols(library)):
        to = target(symbol, prefixes, functions)
        name = f".Lname{number}"
        if not to and is_math(prefixes) and symbol in MATH_NUMBERS:
            body = NUMBERED[machine].format(number=MATH_NUMBERS[symbol])
        elif to:
            body = forwarded.format(to=to)
        else:
            body = unsupported.format(to=rest, name=name)
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


def documented(core):
    """The page of what is forwarded."""
    functions = exported(core)
    sources = " ".join(path.read_text() for path in (ROOT / "tests/remote").rglob("*.cu"))
    sources += (ROOT / "tests/remote/case.h").read_text()
    page = [
        "# GPU remoting: functions", "",
        "Made by `tools/gpu-libs.py table`; `make test-remote` checks that it is true. What the words mean, and what differs from a GPU",
        "of this host, is in [GPUs of other hosts](../how-to/gpu-remoting.md).", "",
        "| | |", "|---|---|",
        "| server | the server's driver does it |",
        "| here | answered on the client, from what the server told at the beginning |",
        "| tested | a program of `tests/remote` calls it, on the test driver and (where a GPU was lent) compared with a GPU |",
        "| not supported | it exists, fails with `cudaErrorNotSupported`, `CUDA_ERROR_NOT_SUPPORTED` or its library's own status, and is named on standard error once |", "",
        "Forms that end in `_ptsz`, `_ptds` and `_64` are as those without.", "",
    ]
    for library, prefixes, _, _ in LIBRARIES:
        names = [name for name in symbols(library) if not name.endswith(("_ptsz", "_ptds", "_64"))]
        known = [name for name in names if is_forwarded(name, prefixes, functions) and name not in REFUSED]
        rows, tested = [], 0
        for name in known:
            called = re.sub(r"_v\d$", "", name) + r"(_v\d)?\b"
            is_tested = any(name.startswith(prefix) for prefix in COMPILED) or re.search(r"\b" + called, sources)
            tested += bool(is_tested)
            rows.append(f"| `{name}` | {'here' if is_answered_here(name) else 'server'} | {'yes' if is_tested else 'no'} |")
        page += [f"## {library}", f"{len(known)} of {len(names)} functions, of which {tested} are tested.", ""]
        # Earlier versions of a library have the same functions, or fewer.
        if not is_math(prefixes) or library in NEWEST:
            page += ["| function | answered | tested |", "|---|---|---|", *rows, ""]
            page += ["Not supported: " + ", ".join(f"`{name}`" for name in names if name not in known) + ".", ""]
    return "\n".join(page)


def write_symbols(cuda, cuda12):
    for folder, library in ((cuda, "libcudart.so.13"), (cuda12, "libcudart.so.12")):
        names = {name.split("@")[0] for name in exported(next(folder.rglob(library)))}
        (SYMBOLS / library).write_text("".join(f"{name}\n" for name in sorted(names) if name != library))
    header = next(cuda.rglob("cuda.h"))
    names = set()
    # All versions of the functions: the newest have the plain names in the source, by macros.
    for define in ([], ["-D__CUDA_API_VERSION_INTERNAL"], ["-DCUDA_API_PER_THREAD_DEFAULT_STREAM"]):
        command = ["cc", "-E", "-P", *define, f"-I{header.parent}", header]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        names |= set(re.findall(r"\bCUresult +(cu[A-Z]\w*)\(", text))
    (SYMBOLS / "libcuda.so.1").write_text("".join(f"{name}\n" for name in sorted(names)))


def errors(cuda):
    """Names and texts of the runtime's errors, which its library tells without a driver, and the driver's names."""
    runtime = ctypes.CDLL(str(next(cuda.rglob("libcudart.so.13"))))
    runtime.cudaGetErrorName.restype = runtime.cudaGetErrorString.restype = ctypes.c_char_p
    header = next(cuda.rglob("cuda.h")).read_text()
    numbers = re.search(r"typedef enum cudaError_enum \{(.*?)\} CUresult;", header, re.S).group(1)
    driver = {int(number): name for name, number in re.findall(r"(CUDA_\w+)\s*=\s*(\d+)", numbers)}
    lines = []
    for number in range(1000):
        name = runtime.cudaGetErrorName(number).decode()
        if name == "unrecognized error code":
            continue
        text = runtime.cudaGetErrorString(number).decode().replace('"', '\\"')
        ours = driver.get(number, "")
        lines.append(f'    ({number}, "{name}\\0", "{ours + chr(92) + "0" if ours else ""}", "{text}\\0"),')
    return "\n".join([
        "//! CUDA's names of its errors, and what it says of them: for the runtime from a run of its library, for the driver from `cuda.h`.",
        "//! Made by `tools/gpu-libs.py errors`.", "",
        "/// Number, name in the runtime, name in the driver (empty where it has none), text.",
        "pub(crate) const ERRORS: &[(i32, &str, &str, &str)] = &[", *lines, "];", ""])


# The attribute of the device behind each field of cudaDeviceProp.
ATTRIBUTES = {
    "sharedMemPerBlock": 8, "regsPerBlock": 12, "warpSize": 10, "memPitch": 11, "maxThreadsPerBlock": 1, "maxThreadsDim": [2, 3, 4],
    "maxGridSize": [5, 6, 7], "clockRate": 13, "totalConstMem": 9, "major": 75, "minor": 76, "textureAlignment": 14,
    "texturePitchAlignment": 51, "deviceOverlap": 15, "multiProcessorCount": 16, "kernelExecTimeoutEnabled": 17, "integrated": 18,
    "canMapHostMemory": 19, "computeMode": 20, "maxTexture1D": 21, "maxTexture1DMipmap": 77, "maxTexture1DLinear": 69,
    "maxTexture2D": [22, 23], "maxTexture2DMipmap": [73, 74], "maxTexture2DLinear": [70, 71, 72], "maxTexture2DGather": [45, 46],
    "maxTexture3D": [24, 25, 26], "maxTexture3DAlt": [47, 48, 49], "maxTextureCubemap": 52, "maxTexture1DLayered": [42, 43],
    "maxTexture2DLayered": [27, 28, 29], "maxTextureCubemapLayered": [53, 54], "maxSurface1D": 55, "maxSurface2D": [56, 57],
    "maxSurface3D": [58, 59, 60], "maxSurface1DLayered": [61, 62], "maxSurface2DLayered": [63, 64, 65], "maxSurfaceCubemap": 66,
    "maxSurfaceCubemapLayered": [67, 68], "surfaceAlignment": 30, "concurrentKernels": 31, "ECCEnabled": 32, "pciBusID": 33,
    "pciDeviceID": 34, "pciDomainID": 50, "tccDriver": 35, "asyncEngineCount": 40, "unifiedAddressing": 41, "memoryClockRate": 36,
    "memoryBusWidth": 37, "l2CacheSize": 38, "persistingL2CacheMaxSize": 108, "maxThreadsPerMultiProcessor": 39,
    "streamPrioritiesSupported": 78, "globalL1CacheSupported": 79, "localL1CacheSupported": 80, "sharedMemPerMultiprocessor": 81,
    "regsPerMultiprocessor": 82, "managedMemory": 83, "isMultiGpuBoard": 84, "multiGpuBoardGroupID": 85, "hostNativeAtomicSupported": 86,
    "singleToDoublePrecisionPerfRatio": 87, "pageableMemoryAccess": 88, "concurrentManagedAccess": 89, "computePreemptionSupported": 90,
    "canUseHostPointerForRegisteredMem": 91, "cooperativeLaunch": 95, "cooperativeMultiDeviceLaunch": 96, "sharedMemPerBlockOptin": 97,
    "pageableMemoryAccessUsesHostPageTables": 100, "directManagedMemAccessFromHost": 101, "maxBlocksPerMultiProcessor": 106,
    "accessPolicyMaxWindowSize": 109, "reservedSharedMemPerBlock": 111, "hostRegisterSupported": 99, "sparseCudaArraySupported": 112,
    "hostRegisterReadOnlySupported": 113, "timelineSemaphoreInteropSupported": 114, "memoryPoolsSupported": 115,
    "gpuDirectRDMASupported": 116, "gpuDirectRDMAFlushWritesOptions": 117, "gpuDirectRDMAWritesOrdering": 118,
    "memoryPoolSupportedHandleTypes": 119, "deferredMappingCudaArraySupported": 121, "ipcEventSupported": 125, "clusterLaunch": 120,
    "unifiedFunctionPointers": 129, "deviceNumaConfig": 130, "deviceNumaId": 131, "mpsEnabled": 133, "hostNumaId": 134,
    "gpuPciDeviceID": 139, "gpuPciSubsystemID": 140, "hostNumaMultinodeIpcSupported": 143,
}
BYTES = {"unsigned int": 4, "int": 4, "size_t": 8, "char": 1, "cudaUUID_t": 16}


def fields(header):
    """Name, elements, offset and bytes of an element of each field of cudaDeviceProp, and the bytes of all."""
    text = re.search(r"struct __device_builtin__ cudaDeviceProp\n\{(.*?)\n\};", header.read_text(), re.S).group(1)
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    found, at = [], 0
    for kind, name, count in re.findall(r"(unsigned int|int|size_t|char|cudaUUID_t)\s+(\w+)(?:\[(\d+)\])?;", text):
        size = BYTES[kind]
        alignment = 1 if kind == "cudaUUID_t" else size
        at = -(-at // alignment) * alignment
        found.append((name, int(count or 1), at, size))
        at += size * int(count or 1)
    return found, -(-at // 8) * 8


def properties(cuda, cuda12):
    lines = [
        "//! `cudaDeviceProp` of CUDA 12 and 13: where each number is, and the attribute that it comes from. Made from `driver_types.h` by",
        "//! `tools/gpu-libs.py properties`.", "",
        "/// A number: offset, bytes, attribute of the device.", "pub(crate) type Field = (usize, usize, i32);",
    ]
    for major, folder in ((12, cuda12), (13, cuda)):
        found, size = fields(next(folder.rglob("driver_types.h")))
        total = next(at for name, _, at, _ in found if name == "totalGlobalMem")
        lines += ["", f"/// Bytes of the structure of CUDA {major}, and where it has the bytes of all memory.",
                  f"pub(crate) const SIZE_{major}: (usize, usize) = ({size}, {total});", "/// Its numbers.",
                  f"pub(crate) const FIELDS_{major}: &[Field] = &["]
        for name, count, at, element in found:
            numbers = ATTRIBUTES.get(name, [])
            numbers = numbers if isinstance(numbers, list) else [numbers]
            for position, number in enumerate(numbers):
                index = f"[{position}]" if count > 1 else ""
                lines.append(f"    ({at + position * element}, {element}, {number}), // {name}{index}")
        lines.append("];")
    return "\n".join(lines) + "\n"

def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("build")
    make.add_argument("core", type=pathlib.Path)
    make.add_argument("folder", type=pathlib.Path)
    commands.add_parser("table").add_argument("core", type=pathlib.Path)
    for name in ("symbols", "properties", "errors"):
        more = commands.add_parser(name)
        more.add_argument("cuda", type=pathlib.Path)
        if name != "errors":
            more.add_argument("cuda12", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.command == "build":
        build(arguments.core, arguments.folder)
    elif arguments.command == "table":
        print(documented(arguments.core), end="")
    elif arguments.command == "symbols":
        write_symbols(arguments.cuda, arguments.cuda12)
    elif arguments.command == "properties":
        print(properties(arguments.cuda, arguments.cuda12), end="")
    else:
        print(errors(arguments.cuda), end="")


if __name__ == "__main__":
    sys.exit(main())
