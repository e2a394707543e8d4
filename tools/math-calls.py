#!/usr/bin/env python3
"""Makes the table of functions of the libraries above CUDA's runtime (cuBLAS, cuRAND, cuFFT, cuDNN) that cross the connection, from their headers.

  math-calls.py table HEADERS...     crates/remoting/src/math/functions.txt, to standard output, from folders with NVIDIA's headers
  math-calls.py symbols LIBRARIES... tools/gpu-symbols, from NVIDIA's libraries (nm)

A prototype and the rules below give the kind of each parameter; client and server read the same table and have no code for single
functions. A function that the rules do not cover is left out: it exists, says that it is not supported, and is named once.
The kinds are explained in crates/remoting/src/math/table.rs.
"""
import pathlib, re, subprocess, sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Library, headers, prefix of its functions, type of its main handle. The statuses are: not initialised, not supported, invalid value,
# failed execution, null or unknown main handle.
LIBRARIES = [
    ("cublas", ["cublas_api.h"], "cublas(?!Lt)", "cublasHandle_t", "13,12", (1, 15, 7, 13, 1)),
    ("cublasLt", ["cublasLt.h"], "cublasLt", "cublasLtHandle_t", "13,12", (1, 15, 7, 13, 1)),
    # cuRAND has no word for what it does not support.
    ("curand", ["curand.h"], "curand", "curandGenerator_t", "10", (203, 999, 104, 201, 101)),
    ("cufft", ["cufft.h", "cufftXt.h"], "cufft", "cufftHandle", "12,11", (7, 16, 4, 6, 1)),
    ("cudnn", ["cudnn_graph.h", "cudnn_ops.h", "cudnn_cnn.h", "cudnn_adv.h"], "cudnn", "cudnnHandle_t", "9", (1001, 3000, 2000, 5000, 2002)),
]
# Types that are another's handle.
ALIASES = {"cublasHandle_t": "cublas", "cublasLtHandle_t": "cublas", "curandGenerator_t": "curand", "cufftHandle": "cufft", "cudnnHandle_t": "cudnn"}
SIZES = {
    "int": 4, "unsigned int": 4, "unsigned": 4, "int32_t": 4, "uint32_t": 4, "float": 4, "size_t": 8, "int64_t": 8, "uint64_t": 8, "double": 8,
    "long long": 8, "long long int": 8, "unsigned long long": 8, "cuComplex": 8, "cuDoubleComplex": 16, "__half": 2, "void*": 8, "char": 1,
    "cublasLtMatmulAlgo_t": 64, "cublasLtMatmulHeuristicResult_t": 96, "cudnnConvolutionFwdAlgoPerf_t": 48,
    "cudnnConvolutionBwdDataAlgoPerf_t": 48, "cudnnConvolutionBwdFilterAlgoPerf_t": 48,
}
# Not forwarded, whatever their parameters look like: functions of the host, matrices of the host, several GPUs, memory that the library gives out.
REFUSED = re.compile(
    r"cublasXt|cublas\w*Logger|cublasXerbla|cublas[SG]et(Vector|Matrix)|cublasGetCudart|Grouped|cublasRotm?gEx|_internal$|Backdoor"
    r"|cublasLtGetHeuristic|cublasLtDisable|curandGet(Direction|Scramble)|cufftXt(SetGPUs|Malloc|Memcpy|Free|Query|Set\w*Callback|SetWorkArea$|ExecDesc)"
    r"|cudnn(Get|Set)Callback|cudnn\w*CTCLoss(_v8)?$|cudnnGetCTCLossWorkspaceSize$|cudnnMultiHeadAttn|FusedOps|CudaGraph|cudnnQueryRuntime"
    r"|cudnnReorderFilterAndBias|cudnnGetSeqData|cudnnGetAttnDesc|cudnnGetRNNDescriptor|cudnnGetRNNDataDesc"
)
# Return nothing but a status, for which programs ask all the same. (Of a variant pack they do not need it: they make one for each execution.)
WAITED = re.compile(r"cu(blas|blasLt|dnn|fft)Destroy(_v2)?$|curandDestroyG|cublasCreate|cublasLtCreate|curandCreate|curandSet|cufft(Plan|Create|MakePlan|Set|Xt[SM])|cudnnCreate$|cudnnBackendFinalize|VersionCheck")
# CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR
VARIANT_PACK = 16
# What they give depends on nothing but their arguments and what descriptors were set to. (Descriptors of cublasLt are changed by functions only that have
# them as their first parameter.)
PURE = re.compile(r"cublasLtMatmulAlgoGet(Heuristic|Ids)|(cublas|cublasLt|curand|cufft)Get(Version|Property)(_v2)?$")
# What the client keeps of a handle: the slot of a word that a function sets, and another gives.
KEPT = {"PointerMode": (0, 4), "Stream": (1, 8), "MathMode": (2, 4), "AtomicsMode": (3, 4), "SmCountTarget": (4, 4)}


def prototypes(text):
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    text = re.sub(r"//[^\n]*", " ", text)
    text = re.sub(r"^\s*#(?:[^\n]*\\\n)*[^\n]*", " ", text, flags=re.M)
    for match in re.finditer(r"([\w \*]+?)\s*\b(?:CUBLASWINAPI|CURANDAPI|CUFFTAPI|CUDNNWINAPI)?\s*\b((?:cublas|curand|cufft|cudnn)\w+)\s*\(([^(){};]*)\)\s*;", text):
        result = re.sub(r"\b(CUBLASWINAPI|CURANDAPI|CUFFTAPI|CUDNNWINAPI|CUDNN_DEPRECATED|extern)\b", "", match[1]).strip()
        if "return" in result or "typedef" in result or not result:
            continue
        yield " ".join(result.split()), match[2], [parameter(one) for one in match[3].split(",") if one.split() not in ([], ["void"])]


def parameter(text):
    """Type without const, levels of pointers, name, whether what it points to is const."""
    arrays = text.count("[")
    text = re.sub(r"\[[^\]]*\]", "", text)
    constant = bool(re.match(r"\s*const\b", text))
    levels = text.count("*") + arrays
    words = [word for word in text.replace("*", " ").split() if word not in ("const", "__restrict__", "struct")]
    return " ".join(words[:-1]), levels, words[-1], constant


def handle(kind):
    if kind in ALIASES:
        return ALIASES[kind]
    pointers = r"(cublasLt\w+(Desc|Layout|Preference)_t|cudnn\w+(Descriptor|Pack|Plan)_t)"
    return kind if re.fullmatch(pointers, kind) else None


def size(kind):
    """Bytes of a type; enums have four."""
    if kind in SIZES:
        return SIZES[kind]
    return 4 if re.fullmatch(r"(cublas|curand|cufft|cudnn|cuda|library)\w+", kind) else None


class Left(Exception):
    """The rules do not cover a parameter."""


def position(parameters, *names):
    for name in names:
        for at, (*_, found, _) in enumerate(parameters):
            if found == name:
                return at
    raise Left


def scalar(library, function, kind, constant, name, parameters):
    """Pointers of cuBLAS to a value of the host or of the device, as the handle's pointer mode says; None for others."""
    if re.search(r"rotm", function, re.I) and name == "param":
        return f"{'m' if constant else 'u'}:{5 * (SIZES.get(kind) or 8)}" if kind != "void" else "m:40~"
    is_rotation = re.search(r"rot", function, re.I)
    if name in ("alpha", "beta") or is_rotation and name in ("c", "s", "y1") and constant:
        at = "@1/4" if library == "cublasLt" and name == "beta" else "@1" if library == "cublasLt" else ""
        return f"m:16~{at}" if kind == "void" else f"m:{SIZES[kind]}{at}"
    if is_rotation and re.search(r"rotm?g", function) and name in ("a", "b", "c", "s", "d1", "d2", "x1"):
        return f"u:{SIZES[kind]}"
    if name == "result":
        return f"r:type{position(parameters, 'resultType')}" if kind == "void" else f"r:{SIZES[kind]}"
    return None


def blas(library, function, kind, levels, name, constant, parameters):
    if levels > 1:
        if library == "cublasLt" or re.match(r"cublas(Get|Set)", function):
            raise Left
        return "p"
    if library == "cublasLt" and name not in ("alpha", "beta"):
        return light(function, kind, name, constant, parameters)
    found = scalar(library, function, kind, constant, name, parameters)
    if found:
        return found
    if name == "info" or re.match(r"cublasGet", function):
        return f"o:{SIZES[kind] if kind in SIZES else 4}"
    return "p"


def light(function, kind, name, constant, parameters):
    if name == "buf":
        return f"{'b' if constant else 'o'}:1*{position(parameters, 'sizeInBytes')}"
    if kind == "cublasLtMatmulAlgo_t":
        return "b:64" if constant else "c:64" if function.endswith("ConfigSetAttribute") else "o:64"
    if name in ("heuristicResultsArray", "algoIdsArray"):
        return f"o:{SIZES[kind]}*{position(parameters, 'requestedAlgoCount')}"
    if kind != "void" and not constant:
        return f"o:{size(kind)}"
    return "p"


def random(function, kind, name, parameters):
    if name == "outputPtr":
        return f"r:{SIZES[kind]}*{position(parameters, 'num', 'n')}"
    return f"o:{SIZES.get(kind, 8)}"


def fourier(kind, name, parameters):
    if name in ("n", "inembed", "onembed"):
        return f"b:{SIZES[kind]}*{position(parameters, 'rank')}"
    return "p" if name in ("idata", "odata", "input", "output", "workArea") and kind != "size_t" else f"o:{SIZES[kind]}"


def deep(function, kind, levels, name, constant, parameters):
    if name == "arrayOfElements":
        return "A"
    if name in ("alpha", "beta", "alpha1", "alpha2", "valuePtr", "paddingFill") or re.fullmatch("(alpha|beta)(Data|Param)Diff", name):
        return "v:8"
    if name.startswith("devSeq"):
        return "p"
    if levels == 2:
        if kind != "void" or constant:
            raise Left
        return "o:8"
    if kind == "void":
        return "p"
    if name == "perfResults":
        return f"o:48*{position(parameters, 'requestedAlgoCount')}"
    if name == "message":
        return f"o:1*{position(parameters, 'max_size')}"
    if name == "seqLengthArray":
        return f"b:4*{position(parameters, 'seqLengthArraySize', 'batchSize')}"
    if re.search(r"A$|axes$", name) or name in ("padA",):
        count = position(parameters, "nbDimsRequested", "nbDims", "arrayLengthRequested", "arrayLength")
        return f"{'b' if constant else 'o'}:{size(kind)}*{count}"
    if constant:
        raise Left
    return f"o:{size(kind)}"


def classify(library, function, parameters, at):
    kind, levels, name, constant = parameters[at]
    if levels == 0:
        if kind == "cudaStream_t":
            return "s"
        if handle(kind):
            is_gone = re.search(r"Destroy", function) and at == 0
            return f"{'x' if is_gone else 'h'}:{handle(kind)}"
        if kind in ("float", "double"):
            return kind[0]
        if kind == "curandDiscreteDistribution_t":
            return "p"
        if size(kind) and "allback" not in kind:
            return "w" if size(kind) == 8 else "i"
        raise Left
    if handle(kind):
        if not re.search(r"Create|cufftPlan", function) or levels > 1:
            raise Left
        return f"n:{handle(kind)}" + ("=1" if function == "curandCreateGenerator" else "")
    if kind == "char" and constant:
        return "z"
    if library in ("cublas", "cublasLt"):
        return blas(library, function, kind, levels, name, constant, parameters)
    if library == "curand":
        return random(function, kind, name, parameters)
    if library == "cufft":
        return fourier(kind, name, parameters)
    return deep(function, kind, levels, name, constant, parameters)


def conditions(library, function, parameters):
    """What makes a call invalid, whatever the matrices are: told at once, as the library does."""
    if library != "cublas":
        return
    where = {name: at for at, (_, levels, name, _) in enumerate(parameters) if levels == 0}
    for name in ("m", "n", "k", "batchCount"):
        if name in where and not re.search(r"nrm2|asum|amax|amin|dot|scal|axpy|copy|swap|rot|matinv|getr|geqrf|gels", function, re.I):
            yield f"?ge0:{where[name]}"
    if re.search(r"gemm(?!.*bias)", function, re.I) and {"transa", "transb", "m", "n", "k", "lda", "ldb", "ldc"} <= where.keys():
        yield f"?lead:{where['lda']}:{where['transa']}:{where['m']}:{where['k']}"
        yield f"?lead:{where['ldb']}:{where['transb']}:{where['k']}:{where['n']}"
        yield f"?lead:{where['ldc']}:{where['m']}"
    elif re.search(r"gemv", function) and {"m", "lda"} <= where.keys():
        yield f"?lead:{where['lda']}:{where['m']}"
    if re.search(r"gemv|symv|hemv|trmv|trsv", function):
        for name in ("incx", "incy"):
            if name in where:
                yield f"?not0:{where[name]}"


def keep(function, words):
    found = re.fullmatch(r"(?:cublas|cudnn|curand|cufft)(Set|Get)(\w+?)(?:_v2)?", function)
    if found and found[2] in KEPT:
        slot, width = KEPT[found[2]]
        words[1] = f"{words[1]}>{slot}" if found[1] == "Set" else f"k:{slot}:{width}"
    # The type of a descriptor, in a slot of it.
    if function == "cudnnBackendCreateDescriptor":
        words[0] += ">1"
    # The pointer mode of a multiplication is an attribute of its descriptor.
    if function in ("cublasLtMatmulDescSetAttribute", "cublasLtMatrixTransformDescSetAttribute"):
        words.append(f"!1={2 if 'Matmul' in function else 1},2>0")


def lines(library, headers, prefix, folders):
    seen = set()
    for header in headers:
        path = next(path for folder in folders for path in sorted(pathlib.Path(folder).rglob(header)))
        for result, function, parameters in prototypes(path.read_text()):
            if not re.match(prefix, function) or function in seen or REFUSED.search(function):
                continue
            seen.add(function)
            given = {"const char*": "text", "const char *": "text", "char *": "text", "size_t": "word", "void": "nothing"}.get(result, "status")
            try:
                words = [classify(library, function, parameters, at) for at in range(len(parameters))]
            except (Left, KeyError):
                continue
            keep(function, words)
            words += conditions(library, function, parameters)
            if given == "status":
                given = "waits" if WAITED.search(function) else "pure" if PURE.match(function) else given
            if function == "cudnnBackendFinalize":
                given = f"waits:1={VARIANT_PACK}"
            yield " ".join([function, given, *words])


def table(folders):
    out = [
        "# Functions of the libraries above CUDA's runtime, made from NVIDIA's headers by tools/math-calls.py. Each line: the name, what it gives",
        "# (a status, which nobody waits for if nothing else comes back; `waits`: one for which the client waits, `waits:SLOT=VALUE`: unless a slot of the first handle has the value; `pure`: one that is always the same), and the kind of each parameter.",
    ]
    for library, headers, prefix, main, versions, statuses in LIBRARIES:
        out.append(f"library {library} {versions} {handle(main)} {' '.join(map(str, statuses))}")
        out += lines(library, headers, prefix, folders)
    print("\n".join(out))


def symbols(libraries):
    for library in map(pathlib.Path, libraries):
        text = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
        names = {line.split()[-1].split("@")[0] for line in text.splitlines() if line.split()[-2] == "T"}
        (ROOT / "tools/gpu-symbols" / library.name).write_text("".join(f"{name}\n" for name in sorted(names)))


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in ("table", "symbols"):
        sys.exit(__doc__)
    (table if sys.argv[1] == "table" else symbols)(sys.argv[2:])
