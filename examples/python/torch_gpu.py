"""Tensors in GPU memory: torch writes and reads the same bytes, in one process or in many.

Needs torch and a GPU; without one, the tensors are in shared host memory.
"""

import torch  # type: ignore[import-not-found,unused-ignore]

import rgaps


def main() -> None:
    domain = rgaps.domains()[-1] if torch.cuda.is_available() else "host"
    with rgaps.subscriber("features") as sub, rgaps.publisher("features", domain=domain) as pub:
        with pub.loan((4, 1024), torch.float32) as loan:
            # torch's current stream is waited for before the message is published. No tensor over
            # the loan is kept, so that nobody can change what others read.
            torch.from_dlpack(loan).normal_()
        tensor = torch.from_dlpack(sub.recv(timeout=1.0))
        print(tensor.device, tuple(tensor.shape), float(tensor.mean()))


if __name__ == "__main__":
    main()
