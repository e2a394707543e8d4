"""What all ways share: a worker's set-up, queues between its parts, memory of the host."""
import ctypes

import torch

#: Messages that may be under way between a sender and its slowest receiver, if a section wants no other number.
DEPTH = 4
#: Set in a message's number: it is the last.
LAST = 1 << 40
SECONDS_MAX = 60.0


class Setup:
    """What all parts of a worker share."""

    def __init__(self, device, run, port=None, queues=None, acks=None, depth=DEPTH):
        self.device = torch.device(device)
        self.depth = depth
        self.run = run  # a name that no other run has
        self.port = port  # of zenoh: topic -> port of its sender
        self.queues = queues  # of torch.multiprocessing: (topic, receiver) -> (there, back)
        self.acks = acks  # receiver -> a queue to the first sender, for what is not the way's own
        self.kept = {}  # sessions and nodes, made once

    def receivers(self, topic):
        return sum(prefix == topic.split("/")[0] for prefix, _ in self.queues)

    def end(self):
        """Closes what was kept, before the process goes."""
        while self.kept:
            kept = self.kept.popitem()[1]
            if hasattr(kept, "close"):
                kept.close()


def expect(queue, what):
    """The next of a queue, which has to come."""
    if not queue._reader.poll(SECONDS_MAX):
        raise TimeoutError(f"no {what} within {SECONDS_MAX:.0f} s")
    return queue.get()


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.current_stream().synchronize()


def host_buffer(nbytes, device):
    return torch.empty(nbytes, dtype=torch.uint8, pin_memory=device.type == "cuda")


def bytes_at(address, nbytes):
    """A tensor over host memory. Whoever owns it must outlive the tensor."""
    return torch.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), dtype=torch.uint8)


class Credits:
    """Limits the messages that a receiver holds to `depth`. Receivers report each message that they release."""

    def __init__(self, backs, depth):
        self.backs = backs
        self.depth = depth
        self.taken = 0
        self.came = [0] * len(backs)

    def take(self):
        self.until(self.depth - 1)
        self.taken += 1

    def end(self):
        self.until(0)

    def until(self, left):
        for index, back in enumerate(self.backs):
            while self.taken - self.came[index] > left:
                expect(back, "message that a receiver lets go of")
                self.came[index] += 1
