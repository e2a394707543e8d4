#!/usr/bin/env python3
"""What unmodified torch does on a GPU, step by step: each prints a line of JSON. Ends with 1 at the first step that fails.

  torch_steps.py [STEP...]      these; else all

A line has the step's name, its numbers, which do not depend on where the GPU is, and the milliseconds of one repetition. A line that begins with
`begin` precedes each, so that whoever watches knows where it stopped. Inputs come from the CPU's generator, except where a step is about the GPU's.
"""
import json, sys, time, traceback

STEPS = {}


def step(function):
    STEPS[function.__name__] = function
    return function


def numbers(tensor):
    """A few numbers that tell tensors apart."""
    flat = tensor.detach().float().cpu().flatten().double()
    return [round(float(x), 6) for x in (flat.sum(), flat.abs().mean(), flat[0], flat[-1])]


def timed(torch, body, repetitions=10):
    """The last result, and milliseconds of a repetition."""
    for _ in range(3):
        result = body()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(repetitions):
        result = body()
    torch.cuda.synchronize()
    return result, (time.perf_counter() - begun) * 1000 / repetitions


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


def train(torch, model, x, target, loss):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def body():
        optimizer.zero_grad()
        value = loss(model(x), target)
        value.backward()
        optimizer.step()
        return value

    return timed(torch, body)


@step
def transformer_step(torch):
    layer = torch.nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).cuda()
    result, ms = train(torch, model, torch.randn(8, 32, 128).cuda(), torch.randn(8, 32, 128).cuda(), torch.nn.functional.mse_loss)
    return numbers(result.reshape(1)), ms


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
        result, ms = train(torch, model, x, torch.zeros(batch, dtype=torch.long).cuda(), torch.nn.functional.cross_entropy)
        return numbers(result.reshape(1)), ms
    model.eval()
    with torch.no_grad():
        result, ms = timed(torch, lambda: model(x))
    return numbers(result), ms


@step
def resnet50(torch):
    return resnet(torch, 1, False)


@step
def resnet50_training(torch):
    return resnet(torch, 8, True)


def main():
    import torch

    for name in sys.argv[1:] or STEPS:
        print(f"begin {name}", flush=True)
        torch.manual_seed(1)
        try:
            found, ms = STEPS[name](torch)
        except Exception as error:
            print(json.dumps({"step": name, "error": f"{type(error).__name__}: {error}"[:600], "at": traceback.format_exc()[-1500:]}), flush=True)
            return 1
        print(json.dumps({"step": name, "found": found, "ms": ms}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
