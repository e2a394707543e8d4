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


#: The most places of an image that a detector looks at further, the most faces that are blurred, and how much two boxes may overlap.
CANDIDATES, FACES, OVERLAP = 64, 4, 0.5


class Detector:
    """A face detector: the first three stages of ResNet-18, a box and a score for each place, then non-maximum suppression. With random weights, so
    what it takes for faces is arbitrary, and always as many."""

    def __init__(self, device):
        from torchvision import models

        torch.manual_seed(2)
        whole = models.resnet18(weights=None)
        stages = [whole.conv1, whole.bn1, whole.relu, whole.maxpool, whole.layer1, whole.layer2, whole.layer3]
        network = torch.nn.Sequential(*stages, torch.nn.Conv2d(256, 5, 1))
        self.network = network.eval().to(device, dtype_of(device)).to(memory_format=torch.channels_last)
        self.device = device
        self.recorded = {}

    def compute(self, images):
        """The boxes with the best scores: image x place x (x1, y1, x2, y2) as parts of the side, and their scores."""
        found = self.network(images).float()
        batch, _, rows, columns = found.shape
        places = torch.stack(torch.meshgrid(*[torch.arange(n, device=found.device) for n in (columns, rows)], indexing="xy"))
        middle = (places + found[:, 0:2].sigmoid()) / columns
        half = found[:, 2:4].sigmoid() * 0.1 + 0.05
        boxes = torch.cat([middle - half, middle + half], 1).flatten(2).transpose(1, 2)
        scores, best = found[:, 4].flatten(1).topk(min(CANDIDATES, rows * columns))
        return boxes.gather(1, best[..., None].expand(-1, -1, 4)), scores

    def run(self, images):
        """Image x FACES x box."""
        from torchvision.ops import batched_nms

        boxes, scores = replayed(self, images)
        batch, candidates, _ = boxes.shape
        image = torch.arange(batch, device=boxes.device).repeat_interleave(candidates)
        kept = batched_nms(boxes.reshape(-1, 4), scores.reshape(-1), image, OVERLAP)
        left = torch.full_like(scores.reshape(-1), float("-inf"))
        left[kept] = scores.reshape(-1)[kept]
        faces = left.view(batch, candidates).topk(min(FACES, candidates)).indices
        return boxes.gather(1, faces[..., None].expand(-1, -1, 4))


class Blur:
    """Detects faces and blurs them by a Gaussian."""

    def __init__(self, device, taps=21):
        side, dtype = side_of(device), dtype_of(device)
        line = torch.exp(-torch.linspace(-2.5, 2.5, taps) ** 2 / 2)
        line = (line / line.sum()).to(device, dtype)
        self.across = line.view(1, 1, 1, taps).repeat(3, 1, 1, 1)
        self.down = line.view(1, 1, taps, 1).repeat(3, 1, 1, 1)
        self.half = taps // 2
        self.ys, self.xs = torch.meshgrid(*[torch.linspace(0, 1, side, device=device)] * 2, indexing="ij")
        self.detector = Detector(device)
        self.dtype = dtype

    def run(self, images, out):
        given = images.to(self.dtype)
        x1, y1, x2, y2 = self.detector.run(given)[..., None, None].unbind(2)
        where = ((self.xs >= x1) & (self.xs <= x2) & (self.ys >= y1) & (self.ys <= y2)).any(1, keepdim=True).to(self.dtype)
        blurred = F.conv2d(given, self.across, padding=(0, self.half), groups=3)
        blurred = F.conv2d(blurred, self.down, padding=(self.half, 0), groups=3)
        out.copy_(torch.lerp(given, blurred, where.expand_as(given)))


class Model:
    """A network of torchvision, with the least that makes a result of its output."""

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
        self.recorded = {}

    def compute(self, images):
        """Of a segmentation how many pixels are of class 0, of a classification the class; per image."""
        if self.kind == "segment":
            return (self.network(images)["out"].argmax(1) == 0).sum((1, 2))
        return self.network(images).argmax(1)

    def run(self, images):
        return replayed(self, images)


def record(network, batch):
    """A pass of a network as a CUDA graph: the images that it reads, the graph, what it finds. Without a GPU there is no graph."""
    device, side = network.device, side_of(network.device)
    images = torch.zeros(batch, 3, side, side, device=device, dtype=dtype_of(device)).to(memory_format=torch.channels_last)
    if device.type == "cpu":
        return images, None, None
    other = torch.cuda.Stream()
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        for _ in range(3):
            network.compute(images)
    torch.cuda.current_stream().wait_stream(other)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = network.compute(images)
    return images, graph, found


def replayed(network, images):
    """What the network finds, by a graph for each batch size, so that launching does not hide the rest."""
    batch = len(images)
    if batch not in network.recorded:
        network.recorded[batch] = record(network, batch)
    own, graph, found = network.recorded[batch]
    own.copy_(images)
    if graph is None:
        return network.compute(own)
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
