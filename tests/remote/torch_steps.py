#!/usr/bin/env python3
"""What unmodified torch does on a GPU, step by step: each prints a line of JSON. Ends with 1 at the first step that fails.

  torch_steps.py [STEP...]      these; else all that need one GPU

A line has the step's name, its numbers, which do not depend on where the GPU is, the milliseconds of one repetition, and what the session counted in
one (calls, round trips, system calls), if RGAPS_GPU_STATISTICS names a file. A line that begins with `begin` precedes each, so that whoever watches
knows where it stopped. Inputs come from the CPU's generator, except where a step is about the GPU's.
"""
import json, os, sys, time, traceback

STEPS = {}
#: Steps that use two GPUs.
STEPS_OF_TWO = {}
REPETITIONS = 10


def step(function):
    STEPS[function.__name__] = function
    return function


def step_of_two(function):
    STEPS_OF_TWO[function.__name__] = function
    return function


def numbers(tensor):
    """A few numbers that tell tensors apart."""
    flat = tensor.detach().float().cpu().flatten().double()
    return [round(float(x), 6) for x in (flat.sum(), flat.abs().mean(), flat[0], flat[-1])]


#: What the session counted in a repetition of the step that ran last.
counted = {}


def statistics():
    """The lines that the session has written: one for each start and stop of the profiler."""
    path = os.environ.get("RGAPS_GPU_STATISTICS", "")
    return [json.loads(line) for line in open(path)] if os.path.exists(path) else []


def timed(torch, body):
    """The last result, and milliseconds of a repetition."""
    for _ in range(3):
        result = body()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    begun = time.perf_counter()
    for _ in range(REPETITIONS):
        result = body()
    torch.cuda.synchronize()
    ms = (time.perf_counter() - begun) * 1000 / REPETITIONS
    torch.cuda.profiler.stop()
    lines = statistics()[-2:]
    if len(lines) == 2:
        counted.update({key: (lines[1][key] - lines[0][key]) / REPETITIONS for key in ("calls", "local", "round_trips", "writes", "reads")})
    return result, ms


@step
def devices(torch):
    properties = torch.cuda.get_device_properties(0)
    return [torch.cuda.device_count(), properties.major, properties.multi_processor_count], None


@step
def product(torch):
    """Nothing but copies and cuBLAS."""
    a, b = torch.randn(256, 128).cuda(), torch.randn(128, 64).cuda()
    result, ms = timed(torch, lambda: a @ b)
    return numbers(result), ms


@step
def kernels(torch):
    """Kernels of torch's own."""
    a = torch.randn(1000, 1000).cuda()
    result, ms = timed(torch, lambda: (a * 2 + 1).relu().sum(0))
    return numbers(result), ms


@step
def random(torch):
    torch.cuda.manual_seed(7)
    return numbers(torch.randn(1000, device="cuda") @ torch.randn(1000, 10, device="cuda")), None


@step
def half(torch):
    a = torch.randn(512, 512).to("cuda", torch.bfloat16)
    result, ms = timed(torch, lambda: a @ a)
    return numbers(result), ms


@step
def batched(torch):
    a = torch.randn(16, 64, 32).cuda()
    result, ms = timed(torch, lambda: torch.bmm(a, a.transpose(1, 2)))
    return numbers(result), ms


@step
def linear_with_bias(torch):
    """cublasLt, with an epilogue."""
    layer = torch.nn.Linear(128, 256).cuda()
    x = torch.randn(64, 128).cuda()
    result, ms = timed(torch, lambda: torch.nn.functional.gelu(layer(x)))
    return numbers(result), ms


@step
def dot(torch):
    a = torch.randn(1000).cuda()
    result, ms = timed(torch, lambda: torch.dot(a, a))
    return numbers(result), ms


@step
def fourier(torch):
    a = torch.randn(64, 256).cuda()
    result, ms = timed(torch, lambda: torch.fft.rfft(a).abs())
    return numbers(result), ms


@step
def attention(torch):
    q, k, v = (torch.randn(2, 4, 64, 32).to("cuda", torch.float16) for _ in range(3))
    result, ms = timed(torch, lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v))
    return numbers(result), ms


@step
def convolution(torch):
    """cuDNN."""
    layer = torch.nn.Conv2d(8, 16, 3, padding=1).cuda()
    x = torch.randn(4, 8, 32, 32).cuda()
    result, ms = timed(torch, lambda: layer(x))
    return numbers(result), ms


@step
def convolution_with_gradients(torch):
    layer = torch.nn.Sequential(torch.nn.Conv2d(8, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU()).cuda()
    x = torch.randn(4, 8, 32, 32).cuda()

    def body():
        layer.zero_grad()
        layer(x).square().mean().backward()
        return layer[0].weight.grad

    result, ms = timed(torch, body)
    return numbers(result), ms


@step
def recurrent(torch):
    layer = torch.nn.LSTM(32, 64).cuda()
    x = torch.randn(10, 4, 32).cuda()
    result, ms = timed(torch, lambda: layer(x)[0])
    return numbers(result), ms


def train(torch, parameters, body):
    """Loss and gradients of the first step, which are the same wherever it runs, and the time of later ones."""
    optimizer = torch.optim.SGD(parameters, lr=0.01)

    def one():
        optimizer.zero_grad()
        loss = body()
        loss.backward()
        return loss

    def step():
        loss = one()
        optimizer.step()
        return loss

    loss = one().item()
    gradients = [p.grad.abs().sum().item() for p in parameters]
    found = [loss, sum(gradients), gradients[0], gradients[-1]]
    return [round(value, 6) for value in found], timed(torch, step)[1]


@step
def transformer_step(torch):
    layer = torch.nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).cuda()
    x, target = torch.randn(8, 32, 128).cuda(), torch.randn(8, 32, 128).cuda()
    return train(torch, list(model.parameters()), lambda: torch.nn.functional.mse_loss(model(x), target))


@step
def decode_step(torch):
    """One token of a transformer of GPT-2 small's sizes, with a cache of 256 tokens. The program reads the token, as one that writes text does."""
    layers, width, heads, past, words = 12, 768, 12, 256, 50304
    make = lambda *shape: (torch.randn(*shape) * 0.05).to("cuda", torch.float16)
    shapes = {"q": (width, width), "kv": (2 * width, width), "out": (width, width), "up": (4 * width, width), "down": (width, 4 * width)}
    weights = [{name: make(*shape) for name, shape in shapes.items()} for _ in range(layers)]
    cache = [make(2, 1, heads, past + 1, width // heads) for _ in range(layers)]
    embedding = make(words, width)
    functional = torch.nn.functional
    split = lambda x: x.view(1, 1, heads, -1).transpose(1, 2)

    def body():
        x = embedding[7].view(1, 1, width)
        for weight, kept in zip(weights, cache):
            normal = functional.layer_norm(x, (width,))
            keys, values = functional.linear(normal, weight["kv"]).chunk(2, -1)
            kept[0, :, :, past:] = split(keys)
            kept[1, :, :, past:] = split(values)
            seen = functional.scaled_dot_product_attention(split(functional.linear(normal, weight["q"])), kept[0], kept[1])
            x = x + functional.linear(seen.transpose(1, 2).reshape(1, 1, width), weight["out"])
            x = x + functional.linear(functional.gelu(functional.linear(functional.layer_norm(x, (width,)), weight["up"])), weight["down"])
        scores = functional.linear(functional.layer_norm(x, (width,)), embedding)
        return scores, scores.argmax().item()

    with torch.no_grad():
        (scores, token), ms = timed(torch, body)
    return [*numbers(scores), token], ms


@step
def captured(torch):
    """A graph of products."""
    a, out = torch.randn(64, 64).cuda(), torch.zeros(64, 64).cuda()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        out.copy_(a @ a)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out.copy_(a @ a)
    _, ms = timed(torch, graph.replay)
    return numbers(out), ms


def resnet(torch, batch, is_training):
    try:
        import torchvision
    except ImportError:
        return "no torchvision", None
    model = torchvision.models.resnet50(weights=None).cuda()
    x = torch.randn(batch, 3, 224, 224).cuda()
    if is_training:
        target = torch.arange(batch).cuda()
        return train(torch, list(model.parameters()), lambda: torch.nn.functional.cross_entropy(model(x), target))
    model.eval()
    with torch.no_grad():
        result, ms = timed(torch, lambda: model(x))
    return numbers(result), ms


@step
def resnet50(torch):
    return resnet(torch, 1, False)


@step
def resnet50_batch_32(torch):
    return resnet(torch, 32, False)


@step
def resnet50_training(torch):
    return resnet(torch, 8, True)


@step_of_two
def moved(torch):
    """64 MiB to the other GPU and back."""
    x = torch.randn(16 << 20)
    here = x.to("cuda:0")

    def body():
        return here.to("cuda:1").to("cuda:0")

    result, ms = timed(torch, body)
    return [torch.equal(result.cpu(), x), *numbers(result)], ms


@step_of_two
def products_of_both(torch):
    """Both GPUs at the same time, and a sum of their results."""
    parts = [torch.randn(512, 512).to(f"cuda:{device}") for device in range(2)]
    result, ms = timed(torch, lambda: sum((part @ part).to("cuda:0") for part in parts))
    return numbers(result), ms


@step_of_two
def split_model(torch):
    """A training step of a model with a half on each GPU."""
    make = lambda *sizes: torch.nn.Sequential(*[layer for pair in zip(sizes, sizes[1:]) for layer in (torch.nn.Linear(*pair), torch.nn.GELU())])
    first, second = make(256, 1024, 1024).to("cuda:0"), make(1024, 1024, 256).to("cuda:1")
    x, target = torch.randn(64, 256).to("cuda:0"), torch.randn(64, 256).to("cuda:1")
    parameters = [*first.parameters(), *second.parameters()]
    return train(torch, parameters, lambda: torch.nn.functional.mse_loss(second(first(x).to("cuda:1")), target))


def main():
    import torch

    for name in sys.argv[1:] or STEPS:
        print(f"begin {name}", flush=True)
        torch.manual_seed(1)
        counted.clear()
        try:
            found, ms = {**STEPS, **STEPS_OF_TWO}[name](torch)
        except Exception as error:
            print(json.dumps({"step": name, "error": f"{type(error).__name__}: {error}"[:600], "at": traceback.format_exc()[-1500:]}), flush=True)
            return 1
        print(json.dumps({"step": name, "found": found, "ms": ms, "counted": dict(counted)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
