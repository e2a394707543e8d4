"""Tensors in GPU memory: torch writes and reads the same bytes, in one process or in many.

Needs torch and a GPU; without one, the tensors are in shared host memory.
"""

import torch  # type: ignore[import-not-found,unused-ignore]

import rgaps


def main() -> None:
    domain = rgaps.domains()[-1] if torch.cuda.is_available() else "host"
    with rgaps.subscriber("features") as sub, rgaps.publisher("features", domain=domain) as pub:
        with pub.loan((4, 1024), torch.float32) as t:
            # In place, in the memory that subscribers read. The message is published when the block
            # ends, behind torch's current stream; the tensor is empty then.
            t.normal_()
        tensor = torch.from_dlpack(sub.recv(timeout=1.0))
        print(tensor.device, tuple(tensor.shape), float(tensor.mean()))


if __name__ == "__main__":
    main()
