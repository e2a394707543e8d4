"""The ways a tensor gets from one process to others on the same machine, each behind the same few calls.

A sender: `buffer()` is where the next message is written, a flat uint8 tensor on the device; `send(number)`
hands it over, behind what is queued on torch's current stream; `wait_for(n)` waits for n receivers.
A receiver: `wait(seconds)` says whether a message is there; `take()` gives its number and a tensor on the device
that torch's current stream may read; `done()` lets go of it, behind what is queued on that stream.

Copying ways are written as somebody would who cares: memory is pinned where it can be, and made once.
"""
import time
import warnings

import torch

import iceoryx
from exchange import DEPTH, LAST, SECONDS_MAX, Credits, Setup, expect, host_buffer, synchronize

#: zenoh's own shared memory in a session that sends, for each message that may be under way; one that receives needs none.
ZENOH_POOL_BYTES_EACH = 160 << 20
ZENOH_POOL_BYTES_MAX = 2 << 30


# rgaps

def rgaps_node(setup):
    import rgaps

    warnings.simplefilter("error", rgaps.CopyWarning)  # a copy that nobody asked for is a fault here
    if "node" not in setup.kept:
        setup.kept["node"] = rgaps.Node("compare")
    return setup.kept["node"]


class RgapsPutSender:
    """A tensor of one's own: `put` copies it once into the pool, on the device."""

    def __init__(self, setup, topic, nbytes, receivers):
        domain = "cuda" if setup.device.type == "cuda" else "host"
        self.pub = rgaps_node(setup).publisher(
            f"{setup.run}/{topic}", domain=domain, history=setup.depth, deadline=SECONDS_MAX, loan_timeout=SECONDS_MAX
        )
        self.nbytes = nbytes
        self.own = torch.empty(nbytes, dtype=torch.uint8, device=setup.device)

    def wait_for(self, receivers):
        if not self.pub.wait_for_subscribers(receivers, SECONDS_MAX):
            raise TimeoutError(f"{self.pub.subscribers} of {receivers} subscribers came")

    def buffer(self):
        return self.own

    def send(self, number):
        self.pub.put(self.own, tag=number)

    def close(self):
        self.pub.close()


class RgapsSender(RgapsPutSender):
    """Written in place, in memory of the pool: no copy."""

    def __init__(self, setup, topic, nbytes, receivers):
        super().__init__(setup, topic, nbytes, receivers)
        self.own = self.loan = None

    def buffer(self):
        self.loan = self.pub.loan(self.nbytes, torch.uint8)
        return self.loan.torch()

    def send(self, number):
        self.loan.tag = number
        self.loan.publish()
        self.loan = None

    def close(self):
        self.loan = None
        super().close()


class RgapsLateSender(RgapsSender):
    """Waits for its stream before it publishes: subscribers hear of bytes that are there."""

    def __init__(self, setup, topic, nbytes, receivers):
        super().__init__(setup, topic, nbytes, receivers)
        self.device = setup.device

    def send(self, number):
        self.loan.tag = number
        synchronize(self.device)
        self.loan.publish(stream=-1)
        self.loan = None


class RgapsReceiver:
    def __init__(self, setup, topic, nbytes, index):
        self.sub = rgaps_node(setup).subscriber(f"{setup.run}/{topic}", reliable=True)
        self.sample = None

    def wait(self, seconds):
        return self.sub.wait(seconds)

    def take(self):
        self.sample = self.sub.recv(SECONDS_MAX)
        return self.sample.tag, self.sample.torch()

    def done(self):
        self.sample = None  # the block stays until the stream has passed

    def close(self):
        self.sample = None
        self.sub.close()


class RgapsSyncReceiver(RgapsReceiver):
    """Waits on the CPU until the bytes are there, before it queues anything that reads them."""

    def take(self):
        self.sample = self.sub.recv(SECONDS_MAX)
        if not self.sample.synchronize(SECONDS_MAX):
            raise TimeoutError("a message whose bytes never came")
        return self.sample.tag, self.sample.torch()


# zenoh, with safetensors

def zenoh_session(setup, listen=None, connect=()):
    import json

    import zenoh

    key = f"zenoh {listen} {sorted(connect)}"
    if key not in setup.kept:
        config = zenoh.Config()
        config.insert_json5("mode", '"peer"')
        config.insert_json5("scouting/multicast/enabled", "false")
        config.insert_json5("scouting/gossip/enabled", "false")
        config.insert_json5("listen/endpoints", json.dumps([f"tcp/127.0.0.1:{listen}"] if listen else []))
        config.insert_json5("connect/endpoints", json.dumps([f"tcp/127.0.0.1:{port}" for port in connect]))
        config.insert_json5("connect/retry", "{period_init_ms: 100, period_max_ms: 200, period_increase_factor: 1}")
        # Messages go through its shared memory where they fit in (as is built in), so that they all do.
        pool_bytes = min(ZENOH_POOL_BYTES_MAX, ZENOH_POOL_BYTES_EACH * setup.depth) if listen else 1 << 20
        config.insert_json5("transport/shared_memory/transport_optimization/pool_size", str(pool_bytes))
        setup.kept[key] = zenoh.open(config)
    return setup.kept[key]


class ZenohSender:
    def __init__(self, setup, topic, nbytes, receivers):
        import zenoh

        self.session = zenoh_session(setup, listen=setup.port[topic.split("/")[0]])
        self.key = f"{setup.run}/{topic}"
        self.pub = self.session.declare_publisher(
            self.key, congestion_control=zenoh.CongestionControl.BLOCK, reliability=zenoh.Reliability.RELIABLE
        )
        self.device = setup.device
        self.own = torch.empty(nbytes, dtype=torch.uint8, device=setup.device)
        self.host = host_buffer(nbytes, setup.device)

    def wait_for(self, receivers):
        """Each receiver declares a token behind its subscription."""
        until = time.monotonic() + SECONDS_MAX
        while time.monotonic() < until:
            there = {str(r.ok.key_expr) for r in self.session.liveliness().get(f"alive/{self.key}/*") if r.ok}
            if len(there) >= receivers:
                return
            time.sleep(0.02)
        raise TimeoutError(f"{len(there)} of {receivers} subscribers came")

    def buffer(self):
        return self.own

    def send(self, number):
        from safetensors.torch import save

        self.host.copy_(self.own, non_blocking=True)
        synchronize(self.device)
        self.pub.put(save({"t": self.host}), attachment=number.to_bytes(8, "little"))

    def close(self):
        self.pub.undeclare()


class ZenohReceiver:
    def __init__(self, setup, topic, nbytes, index):
        import zenoh

        self.session = zenoh_session(setup, connect=(setup.port[topic.split("/")[0]],))
        key = f"{setup.run}/{topic}"
        self.sub = self.session.declare_subscriber(key, zenoh.handlers.FifoChannel(setup.depth))
        self.token = self.session.liveliness().declare_token(f"alive/{key}/{index}")
        self.own = torch.empty(nbytes, dtype=torch.uint8, device=setup.device)
        self.sample = None

    def wait(self, seconds):
        # Has no limit of its own; whoever started this process has.
        self.sample = self.sub.recv()
        return True

    def take(self):
        from safetensors.torch import load

        if self.sample is None:
            self.wait(SECONDS_MAX)
        number = int.from_bytes(self.sample.attachment.to_bytes(), "little")
        # From pageable memory: the copy has read it when it returns.
        self.own.copy_(load(self.sample.payload.to_bytes())["t"])
        self.sample = None
        return number, self.own

    def done(self):
        pass

    def close(self):
        self.token.undeclare()
        self.sub.undeclare()


# torch.multiprocessing

class TorchSender:
    """CUDA IPC handles through a queue for each receiver. As many tensors as may be under way, made once, so that
    receivers open each only once; one is written again when all receivers have let go of it. torch orders a receiver
    behind the sender's stream only when it opens a tensor, so the sender waits for its stream."""

    def __init__(self, setup, topic, nbytes, receivers):
        self.device = setup.device
        self.links = [setup.queues[topic.split("/")[0], index] for index in range(receivers)]
        self.ring = [torch.empty(nbytes, dtype=torch.uint8, device=setup.device) for _ in range(setup.depth)]
        if setup.device.type == "cpu":
            for tensor in self.ring:
                tensor.share_memory_()
        self.credits = Credits([back for _, back in self.links], setup.depth)

    def wait_for(self, receivers):
        pass

    def buffer(self):
        self.credits.take()
        return self.ring[self.credits.taken % len(self.ring)]

    def send(self, number):
        tensor = self.ring[self.credits.taken % len(self.ring)]
        synchronize(self.device)
        for there, _ in self.links:
            there.put((number, tensor))

    def close(self):
        self.credits.end()
        self.ring = []


class TorchReceiver:
    def __init__(self, setup, topic, nbytes, index):
        self.there, self.back = setup.queues[topic.split("/")[0], index]
        self.device = setup.device
        self.opened = {}  # keeps them open

    def wait(self, seconds):
        return self.there._reader.poll(seconds)

    def take(self):
        if not self.wait(SECONDS_MAX):
            raise TimeoutError("no message")
        number, tensor = self.there.get()
        self.opened[tensor.data_ptr()] = tensor
        return number, tensor

    def done(self):
        synchronize(self.device)
        self.back.put(None)

    def close(self):
        self.opened = {}


# A floor: who is told, and nothing else.

class HopSender:
    """No payload: a number through a pipe, the least that tells another Python process something."""

    def __init__(self, setup, topic, nbytes, receivers):
        self.links = [setup.queues[topic.split("/")[0], index] for index in range(receivers)]
        self.own = torch.empty(nbytes, dtype=torch.uint8, device=setup.device)

    def wait_for(self, receivers):
        pass

    def buffer(self):
        return self.own

    def send(self, number):
        word = number.to_bytes(8, "little")
        for there, _ in self.links:
            there._writer.send_bytes(word)

    def close(self):
        pass


class HopReceiver:
    def __init__(self, setup, topic, nbytes, index):
        self.there, _ = setup.queues[topic.split("/")[0], index]

    def wait(self, seconds):
        return self.there._reader.poll(seconds)

    def take(self):
        return int.from_bytes(self.there._reader.recv_bytes(), "little"), None

    def done(self):
        pass

    def close(self):
        pass


WAYS = {
    "rgaps": (RgapsSender, RgapsReceiver, "rgaps, written in place: no copy", ["rgaps"]),
    "rgaps-sync": (RgapsSender, RgapsSyncReceiver, "rgaps, its subscribers wait on the CPU before they queue", ["rgaps"]),
    "rgaps-late": (RgapsLateSender, RgapsReceiver, "rgaps, published when the bytes are there", ["rgaps"]),
    "rgaps-put": (RgapsPutSender, RgapsReceiver, "rgaps, a tensor of one's own: one copy on the device", ["rgaps"]),
    "torch-ipc": (TorchSender, TorchReceiver, "torch.multiprocessing: CUDA IPC through a queue", []),
    "iceoryx2": (iceoryx.IceoryxSender, iceoryx.IceoryxReceiver, "pinned: D2H, iceoryx2, H2D", ["iceoryx2"]),
    "iceoryx2-crops": (
        iceoryx.IceoryxSender, iceoryx.IceoryxHostReceiver, "pinned: D2H, iceoryx2; each consumer crops on the host, H2D of the crops", ["iceoryx2"],
    ),
    "iceoryx2-pageable": (iceoryx.IceoryxPageableSender, iceoryx.IceoryxPageableReceiver, "pageable: D2H, iceoryx2, H2D", ["iceoryx2"]),
    "iceoryx2-safetensors": (
        iceoryx.IceoryxSafetensorsSender, iceoryx.IceoryxSafetensorsReceiver, "pinned: D2H, safetensors, iceoryx2, safetensors, H2D", ["iceoryx2", "safetensors"],
    ),
    "iceoryx2-safetensors-pageable": (
        iceoryx.IceoryxPaperSender, iceoryx.IceoryxPaperReceiver, "pageable, as the paper's: D2H, safetensors, iceoryx2, safetensors, H2D", ["iceoryx2", "safetensors"],
    ),
    "zenoh": (
        ZenohSender, ZenohReceiver, "D2H, safetensors, zenoh (TCP, and its own shared memory), H2D",
        ["zenoh", "safetensors"],
    ),
    "hop": (HopSender, HopReceiver, "floor: a number through a pipe, no bytes", []),
}


def sender(way, setup, topic, nbytes, receivers):
    return WAYS[way][0](setup, topic, nbytes, receivers)


def receiver(way, setup, topic, nbytes, index):
    return WAYS[way][1](setup, topic, nbytes, index)


def lacking(way):
    """What it needs and is not installed."""
    import importlib.util

    return [name for name in WAYS[way][3] if importlib.util.find_spec(name) is None]
