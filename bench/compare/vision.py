"""The stages of the vision pipeline: what they compute. No transport in here, and no decoding.

The models are torchvision's real architectures with random weights: no weights ship, and what they cost does not depend on them.
"""
import time

import torch
import torch.nn.functional as F

#: Name of a pair -> its segmentation, its classification.
PAIRS = {
    "standard": ("deeplabv3_resnet50", "resnet50"),
    "light": ("lraspp_mobilenet_v3_large", "resnet18"),
}
#: Checksum and number of a message lie behind its bytes.
TRAILER = 16


def side_of(device):
    return 512 if device.type == "cuda" else 64


def dtype_of(device):
    """Models on the CPU compute in float32: its float16 is for storage."""
    return torch.float16 if device.type == "cuda" else torch.float32


def payload_bytes(batch, device):
    return batch * 3 * side_of(device) ** 2 * 2


def pixels(message, batch):
    """The batch within a message."""
    images = message[:-TRAILER].view(torch.float16)
    side = round((images.numel() / 3 / batch) ** 0.5)
    return images.view(batch, 3, side, side)


class Seal:
    """A checksum in which each word's value and place count, computed on the device and sent with the message."""

    def __init__(self, nbytes, device):
        self.weights = torch.arange(nbytes // 4, device=device, dtype=torch.int32) * 2 + 1
        self.bad = torch.zeros((), dtype=torch.int64, device=device)

    def of(self, message):
        return (message[:-TRAILER].view(torch.int32) * self.weights).sum(dtype=torch.int64)

    def close(self, message, number):
        tail = message[-TRAILER:].view(torch.int64)
        tail[0] = self.of(message)
        tail[1].fill_(number)

    def check(self, message, number):
        """Counts, on the device, messages that are not what was sent."""
        tail = message[-TRAILER:].view(torch.int64)
        self.bad += (tail[0] != self.of(message)) | (tail[1] != number)


class Preprocess:
    """To the device, scaled, normalised, float16."""

    def __init__(self, device):
        self.device = device
        self.side = side_of(device)
        self.mean = torch.tensor([0.485, 0.456, 0.406], device=device).view(3, 1, 1) * 255
        self.scale = 1 / (torch.tensor([0.229, 0.224, 0.225], device=device).view(3, 1, 1) * 255)

    def run(self, decoded, out):
        for place, image in zip(out, decoded):
            image = image.to(self.device, non_blocking=True).permute(2, 0, 1).float()
            image = F.interpolate(image[None], (self.side, self.side), mode="bilinear", align_corners=False)[0]
            place.copy_(image.sub_(self.mean).mul_(self.scale))


class Blur:
    """A stand-in for blurring faces: an ellipse in the middle, where a face would be, blurred by a Gaussian."""

    def __init__(self, device, taps=21):
        side, dtype = side_of(device), dtype_of(device)
        line = torch.exp(-torch.linspace(-2.5, 2.5, taps) ** 2 / 2)
        line = (line / line.sum()).to(device, dtype)
        self.across = line.view(1, 1, 1, taps).repeat(3, 1, 1, 1)
        self.down = line.view(1, 1, taps, 1).repeat(3, 1, 1, 1)
        self.half = taps // 2
        ys, xs = torch.meshgrid(*[torch.linspace(-1, 1, side)] * 2, indexing="ij")
        self.where = ((((xs / 0.4) ** 2 + (ys / 0.55) ** 2) < 1).to(device, dtype)).expand(1, 1, side, side)
        self.dtype = dtype

    def run(self, images, out):
        given = images.to(self.dtype)
        blurred = F.conv2d(given, self.across, padding=(0, self.half), groups=3)
        blurred = F.conv2d(blurred, self.down, padding=(self.half, 0), groups=3)
        out.copy_(torch.lerp(given, blurred, self.where.expand_as(given)))


class Model:
    """A network, its pass recorded as a CUDA graph for each batch size, so that launching does not hide the rest."""

    def __init__(self, kind, pair, device):
        from torchvision import models

        torch.manual_seed(1)
        self.device, self.kind = device, kind
        if kind == "segment":
            make = getattr(models.segmentation, PAIRS[pair][0])
            network = make(weights=None, weights_backbone=None, num_classes=21)
        else:
            network = getattr(models, PAIRS[pair][1])(weights=None)
        self.network = network.eval().to(device, dtype_of(device)).to(memory_format=torch.channels_last)
        self.graphs = {}

    def compute(self, images):
        """Of a segmentation how many pixels are of class 0, of a classification the class; per image."""
        if self.kind == "segment":
            return (self.network(images)["out"].argmax(1) == 0).sum((1, 2))
        return self.network(images).argmax(1)

    def record(self, batch):
        side = side_of(self.device)
        images = torch.zeros(batch, 3, side, side, device=self.device, dtype=dtype_of(self.device))
        images = images.to(memory_format=torch.channels_last)
        if self.device.type == "cpu":
            return images, None, None
        other = torch.cuda.Stream()
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other):
            for _ in range(3):
                self.compute(images)
        torch.cuda.current_stream().wait_stream(other)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = self.compute(images)
        return images, graph, found

    def run(self, images):
        batch = len(images)
        if batch not in self.graphs:
            self.graphs[batch] = self.record(batch)
        own, graph, found = self.graphs[batch]
        own.copy_(images)
        if graph is None:
            return self.compute(own)
        graph.replay()
        return found


def timed(function, device, rounds):
    """Milliseconds of a call, the device's work with it; the median."""
    taken = []
    for _ in range(rounds + 3):
        begun = time.perf_counter()
        function()
        if device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        taken.append((time.perf_counter() - begun) * 1000)
    return round(sorted(taken[3:])[rounds // 2], 3)
