"""What one process gives to several, and what each of those computes on it: large messages, little work. No transport in here.

A scene says how many topics and takers it has, what the messages are, and makes a giver and a taker. A giver writes message n of each topic; a taker checks whole messages
(`check`, not timed) and computes on the set of them (`take`, timed), where it compares what it reads, too.
"""
import torch
import torch.nn.functional as F

import vision
from exchange import host_buffer
from vision import TRAILER

#: Takers of a scene that says no other number.
TAKERS = 4
#: The bits of a word that float16 leaves finite whatever number is added, and the numbers that are added.
BITS, STEPS = 0x3BFF, 0x3FFF


def words(count, device, salt):
    """Numbers that follow from their place, as int16."""
    places = torch.arange(count, dtype=torch.int64, device=device) + salt
    return ((places * 40503) & BITS).to(torch.int16)


def step(number):
    return number & STEPS


class Frames:
    """Uncompressed frames, 3 x height x width float16, of several cameras. Each taker crops its own part of each camera's frame, or shrinks the frame if it is to
    see all of it, and classifies it."""

    takers = TAKERS

    def __init__(self, cameras, height, width, is_shrunk=False):
        self.topics = cameras
        self.shape = (3, height, width)
        self.nbytes = 3 * height * width * 2
        self.is_shrunk = is_shrunk

    @property
    def cropped_part(self):
        """What part of a frame a taker looks at; 1: all of it."""
        _, height, width = self.shape
        return 1 if self.is_shrunk else 512 * 512 / height / width

    def on_cpu(self):
        return Frames(self.topics, self.shape[1] // 8, self.shape[2] // 8, self.is_shrunk)

    def giver(self, device):
        return FramesGiver(self, device)

    def taker(self, device, index):
        return FramesTaker(self, device, index)


class FramesGiver:
    def __init__(self, scene, device):
        self.bases = [words(scene.nbytes // 2, device, salt) for salt in range(scene.topics)]

    def give(self, topic, message, number):
        torch.add(self.bases[topic], step(number), out=message.view(torch.int16))


class FramesTaker:
    def __init__(self, scene, device, index):
        self.scene = scene
        self.bases = [words(scene.nbytes // 2, device, salt).view(scene.shape) for salt in range(scene.topics)]
        self.side = vision.side_of(device)
        self.model = vision.Model("classify", "light", device)
        _, height, width = scene.shape
        rows, columns = height - self.side, width - self.side
        #: For crops of frames that are on the host.
        self.host = [host_buffer(2 * 3 * self.side * self.side, device).view(torch.int16).view(3, self.side, self.side) for _ in range(scene.topics)]
        #: Where this taker looks, in each camera's frame.
        self.corners = [((rows * (index + 1) * 7 // 31 + topic) % (rows + 1), (columns * (index + 1) * 5 // 23 + topic) % (columns + 1))
                        for topic in range(scene.topics)]

    def check(self, topic, message, number):
        base = self.bases[topic]
        return (message.view(torch.int16).view(self.scene.shape).to(base.device) != base + step(number)).sum()

    def take(self, messages, number):
        """How many words of the crops are wrong. The classifier's result stays on the GPU."""
        frames = [message.view(torch.int16).view(self.scene.shape) for message in messages]
        crops = [self.fetched(topic, self.crop(frame, at)) for topic, (frame, at) in enumerate(zip(frames, self.corners))]
        wrong = sum((crop != self.crop(base, at) + step(number)).sum() for crop, base, at in zip(crops, self.bases, self.corners))
        seen = [frame.view(torch.float16) for frame in (frames if self.scene.is_shrunk else crops)]
        if self.scene.is_shrunk:
            seen = [F.adaptive_avg_pool2d(frame[None].to(vision.dtype_of(frame.device)), self.side)[0] for frame in seen]
        self.found = self.model.run(torch.stack(seen).to(vision.dtype_of(self.bases[0].device)))
        return wrong

    def fetched(self, topic, crop):
        """On the device. The crop before has been read when this one is made."""
        if crop.device.type == self.bases[topic].device.type:
            return crop
        return self.host[topic].copy_(crop).to(self.bases[topic].device, non_blocking=True)

    def crop(self, frame, at):
        y, x = at
        return frame[:, y : y + self.side, x : x + self.side]


class Tensors:
    """Weights of a layer, or its KV cache: each taker reads and compares every word."""

    topics = cropped_part = 1

    def __init__(self, nbytes, takers=TAKERS):
        self.nbytes = nbytes
        self.takers = takers

    def on_cpu(self):
        return Tensors(self.nbytes // 64, self.takers)

    def giver(self, device):
        return FramesGiver(self, device)

    def taker(self, device, index):
        return TensorsTaker(self, device)


class TensorsTaker:
    def __init__(self, scene, device):
        self.base = words(scene.nbytes // 2, device, 0)

    def check(self, topic, message, number):
        return (message.view(torch.int16) != self.base + step(number)).sum()

    def take(self, messages, number):
        return self.check(0, messages[0], number)


class Features:
    """What a backbone (ResNet-50 with a pyramid of four levels, 256 channels each) finds in a batch of images, for light heads. Every message has a checksum, which each
    head compares."""

    topics = cropped_part = 1
    takers = TAKERS
    channels = 256

    def __init__(self, batch, side=None):
        self.batch, self.side = batch, side or 512
        self.sides = [self.side // stride for stride in (4, 8, 16, 32)]
        self.nbytes = sum(batch * self.channels * side * side * 2 for side in self.sides) + TRAILER

    def on_cpu(self):
        return Features(1, 64)

    def levels(self, message):
        """The four levels within a message."""
        parts = message[:-TRAILER].view(torch.float16).split([self.batch * self.channels * side * side for side in self.sides])
        return [part.view(self.batch, self.channels, side, side) for part, side in zip(parts, self.sides)]

    def giver(self, device):
        return FeaturesGiver(self, device)

    def taker(self, device, index):
        return FeaturesTaker(self, device, index)


class Pyramid:
    def __init__(self, device):
        from torchvision import models

        torch.manual_seed(3)
        trunk = models.resnet50(weights=None)
        stem = torch.nn.Sequential(trunk.conv1, trunk.bn1, trunk.relu, trunk.maxpool)
        stages = [torch.nn.Sequential(stem, trunk.layer1), trunk.layer2, trunk.layer3, trunk.layer4]
        lateral = [torch.nn.Conv2d(channels, Features.channels, 1) for channels in (256, 512, 1024, 2048)]
        ready = lambda part: part.eval().to(device, vision.dtype_of(device)).to(memory_format=torch.channels_last)
        self.stages, self.lateral = [ready(stage) for stage in stages], [ready(conv) for conv in lateral]
        self.device, self.recorded = device, {}

    def compute(self, images):
        found = []
        for stage, lateral in zip(self.stages, self.lateral):
            images = stage(images)
            found.append(lateral(images))
        return found


class FeaturesGiver:
    def __init__(self, scene, device):
        self.scene = scene
        self.pyramid = Pyramid(device)
        self.seal = vision.Seal(scene.nbytes - TRAILER, device)
        torch.manual_seed(4)
        self.images = torch.rand(scene.batch, 3, scene.side, scene.side).to(device, vision.dtype_of(device))

    def give(self, topic, message, number):
        found = vision.replayed(self.pyramid, self.images)
        for place, level in zip(self.scene.levels(message), found):
            place.copy_(level)
        self.seal.close(message, number)


class FeaturesTaker:
    """A head: one convolution of each level, pooled, and a result per image."""

    def __init__(self, scene, device, index):
        self.scene = scene
        self.seal = vision.Seal(scene.nbytes - TRAILER, device)
        torch.manual_seed(5 + index)
        self.convolution = torch.nn.Conv2d(scene.channels, 16, 1).to(device, vision.dtype_of(device))
        self.dtype = vision.dtype_of(device)

    def check(self, topic, message, number):
        self.seal.bad.zero_()
        self.seal.check(message, number)
        return self.seal.bad.clone()

    def take(self, messages, number):
        levels = self.scene.levels(messages[0])
        self.found = torch.stack([self.convolution(level.to(self.dtype)).mean((2, 3)) for level in levels]).sum(0).argmax(1)
        return self.check(0, messages[0], number)


#: Name -> what it is, and what it says.
SCENES = {
    "cameras-4x4K": (Frames(4, 2160, 3840), "four cameras, uncompressed 4K float16; each consumer crops 512 x 512 of each and classifies the four crops"),
    "features": (Features(8), "a backbone's features of 8 images; each consumer is a light head"),
    "weights-64MiB": (Tensors(64 << 20), "weights, 64 MiB each; each consumer reads all"),
    "kv-8MiB": (Tensors(8 << 20), "a KV cache, 8 MiB each; each consumer reads all"),
    "weights-64MiB-to-1": (Tensors(64 << 20, 1), "the same weights to one consumer"),
    "weights-64MiB-to-8": (Tensors(64 << 20, 8), "the same weights to eight"),
    "kv-8MiB-to-8": (Tensors(8 << 20, 8), "the same KV cache to eight"),
    "sweep-512x512": (Frames(1, 512, 512, True), "one frame, float16; each consumer shrinks it to 512 x 512 and classifies it"),
    "sweep-1080p": (Frames(1, 1080, 1920, True), "the same"),
    "sweep-4K": (Frames(1, 2160, 3840, True), "the same"),
    "sweep-8K": (Frames(1, 4320, 7680, True), "the same"),
}
