"""Ways through iceoryx2: with pinned and with pageable memory, as bytes and serialised by safetensors. See ways.py for the calls."""
import ctypes
import time

import torch

from exchange import SECONDS_MAX, Credits, bytes_at, host_buffer, synchronize


class Pinned:
    """Has CUDA pin mappings as they are met, so that copies from and to them need no staging."""

    def __init__(self, device):
        self.device = device
        self.met = []  # begin, end, whether it is pinned

    def meet(self, address):
        if self.device.type != "cuda" or any(begin <= address < end for begin, end, _ in self.met):
            return
        with open("/proc/self/maps") as maps:
            for line in maps:
                begin, end = (int(part, 16) for part in line.split(maxsplit=1)[0].split("-"))
                if begin <= address < end:
                    break
        # 1: for all contexts; 8: memory that may not be written.
        flags = (1,) if "w" in line.split()[1] else (9, 1)
        done = any(self.register(begin, end, flag) for flag in flags)
        self.met.append((begin, end, done))

    @staticmethod
    def register(begin, end, flag):
        if int(torch.cuda.cudart().cudaHostRegister(begin, end - begin, flag)) == 0:
            return True
        # The runtime remembers the failure, and torch would take it for the next kernel's.
        with open("/proc/self/maps") as maps:
            runtime = next((line.split()[-1] for line in maps if "libcudart" in line), None)
        if runtime:
            ctypes.CDLL(runtime).cudaGetLastError()
        return False

    @property
    def all(self):
        return all(done for _, _, done in self.met)

    def let_go(self):
        for begin, _, done in self.met:
            if done:
                torch.cuda.cudart().cudaHostUnregister(begin)
        self.met = []


def iceoryx_service(setup, topic):
    import iceoryx2

    if "iceoryx" not in setup.kept:
        iceoryx2.set_log_level(iceoryx2.LogLevel.Error)
        setup.kept["iceoryx"] = iceoryx2.NodeBuilder.new().create(iceoryx2.ServiceType.Ipc)
    return (
        setup.kept["iceoryx"].service_builder(iceoryx2.ServiceName.new(f"{setup.run}/{topic}"))
        .publish_subscribe(iceoryx2.Slice[ctypes.c_uint64])
        .enable_safe_overflow(False)
        .subscriber_max_buffer_size(setup.depth)
        .subscriber_max_borrowed_samples(2)
        .history_size(0)
        .max_publishers(1)
        .max_subscribers(setup.receivers(topic))
        .max_nodes(16)
        .open_or_create()
    )


class IceoryxSender:
    """The first word of a message is its number, the seven after it keep the bytes on cache lines.

    Its own back-pressure (RetryUntilDelivered, version 0.10) at times discards instead, so credits stand in for it.
    """

    #: Bytes in front of the tensor's.
    overhead = 64

    def __init__(self, setup, topic, nbytes, receivers):
        import iceoryx2

        self.service = iceoryx_service(setup, topic)
        self.nbytes = nbytes
        self.words = (self.overhead + nbytes + 7) // 8
        self.pub = (
            self.service.publisher_builder()
            .initial_max_slice_len(self.words)
            .allocation_strategy(iceoryx2.AllocationStrategy.Static)
            .backpressure_strategy(iceoryx2.BackpressureStrategy.RetryUntilDelivered)
            .max_loaned_samples(2)
            .create()
        )
        self.device = setup.device
        self.receivers = receivers
        self.credits = Credits([setup.queues[topic.split("/")[0], index][1] for index in range(receivers)], setup.depth)
        self.own = torch.empty(nbytes, dtype=torch.uint8, device=setup.device)
        self.pinned = Pinned(setup.device)

    def wait_for(self, receivers):
        until = time.monotonic() + SECONDS_MAX
        while self.service.dynamic_config.number_of_subscribers < receivers:
            if time.monotonic() > until:
                raise TimeoutError("no subscribers came")
            time.sleep(0.01)
        self.pub.update_connections()

    def buffer(self):
        self.credits.take()
        return self.own

    def send(self, number):
        sample = self.pub.loan_slice_uninit(self.words)
        address = sample.payload_ptr
        ctypes.c_uint64.from_address(address).value = number
        self.fill(address)
        delivered = sample.assume_init().send()
        if delivered != self.receivers:
            raise RuntimeError(f"message {number} went to {delivered} of {self.receivers} subscribers")

    def fill(self, address):
        self.pinned.meet(address)
        bytes_at(address + 64, self.nbytes).copy_(self.own, non_blocking=True)
        synchronize(self.device)

    def close(self):
        self.credits.end()
        self.pinned.let_go()
        self.pub.delete()


class IceoryxReceiver:
    def __init__(self, setup, topic, nbytes, index):
        self.service = iceoryx_service(setup, topic)
        self.sub = self.service.subscriber_builder().buffer_size(setup.depth).create()
        self.nbytes = nbytes
        self.device = setup.device
        self.back = setup.queues[topic.split("/")[0], index][1]
        self.own = torch.empty(nbytes, dtype=torch.uint8, device=setup.device)
        self.pinned = Pinned(setup.device)
        self.sample = None

    def wait(self, seconds):
        """Publish and subscribe have no blocking receive: asks in a loop, and after a while naps."""
        until = time.monotonic() + seconds
        tries = 0
        while self.sample is None:
            self.sample = self.sub.receive()
            tries += 1
            if self.sample is None and tries > 2000:
                if time.monotonic() > until:
                    return False
                time.sleep(20e-6)
        return True

    def take(self):
        if self.sample is None and not self.wait(SECONDS_MAX):
            raise TimeoutError("no message")
        address = self.sample.payload_ptr
        number = ctypes.c_uint64.from_address(address).value
        self.fetch(address)
        return number, self.own

    def fetch(self, address):
        self.pinned.meet(address)
        self.own.copy_(bytes_at(address + 64, self.nbytes), non_blocking=True)

    def done(self):
        synchronize(self.device)  # the copy reads the sample
        self.sample.delete()
        self.sample = None
        self.back.put(None)

    def close(self):
        self.pinned.let_go()
        self.sub.delete()


class IceoryxPageableSender(IceoryxSender):
    """The same with memory that CUDA has not pinned: the driver stages each copy."""

    def fill(self, address):
        bytes_at(address + 64, self.nbytes).copy_(self.own)


class IceoryxPageableReceiver(IceoryxReceiver):
    def fetch(self, address):
        self.own.copy_(bytes_at(address + 64, self.nbytes))


class IceoryxHostReceiver(IceoryxReceiver):
    """Leaves the bytes on the host: the consumer copies what it needs of them."""

    def fetch(self, address):
        self.own = bytes_at(address + 64, self.nbytes)


#: What safetensors puts in front of one tensor, at most.
HEADER_BYTES = 512


class IceoryxSafetensorsSender(IceoryxSender):
    """Serialised, as GAPS's Iceoryx-python: to the host, to bytes, into the loan. The second word is the bytes' length. The copy to the host
    goes to pinned memory that is made once."""

    overhead = 64 + HEADER_BYTES

    def __init__(self, setup, topic, nbytes, receivers):
        super().__init__(setup, topic, nbytes, receivers)
        self.host = self.host_memory(nbytes)

    def host_memory(self, nbytes):
        return host_buffer(nbytes, self.device)

    def fill(self, address):
        from safetensors.torch import save

        self.host.copy_(self.own, non_blocking=True)
        synchronize(self.device)
        data = save({"t": self.host})
        ctypes.c_uint64.from_address(address + 8).value = len(data)
        ctypes.memmove(address + 64, data, len(data))


class IceoryxSafetensorsReceiver(IceoryxReceiver):
    def __init__(self, setup, topic, nbytes, index):
        super().__init__(setup, topic, nbytes, index)
        self.host = self.host_memory(nbytes)

    def host_memory(self, nbytes):
        return host_buffer(nbytes, self.device)

    def fetch(self, address):
        from safetensors.torch import load

        length = ctypes.c_uint64.from_address(address + 8).value
        tensor = load(ctypes.string_at(address + 64, length))["t"]
        if self.host is None:
            self.own.copy_(tensor)
        else:
            synchronize(self.device)  # the last copy has read it
            self.host.copy_(tensor)
            self.own.copy_(self.host, non_blocking=True)


class IceoryxPaperSender(IceoryxSafetensorsSender):
    """With pageable memory, as `tensor.cpu()` gives it."""

    def host_memory(self, nbytes):
        return torch.empty(nbytes, dtype=torch.uint8)


class IceoryxPaperReceiver(IceoryxSafetensorsReceiver):
    def host_memory(self, nbytes):
        return None
