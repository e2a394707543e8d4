"""A camera: publishes frames of 1080p at 30 per second, without a copy. Stop it with Ctrl-C.

Run it beside view_frames.py, or look at it with `rgaps topic hz camera`.
"""

import time

import numpy as np

import rgaps


def main() -> None:
    ramp = np.linspace(0, 255, 1920).astype(np.uint8)
    with rgaps.publisher("camera", type="rgb8") as pub:
        for number in range(1_000_000):
            with pub.loan((1080, 1920, 3), "uint8", tag=number) as loan:
                # Written where the subscribers will read it; published when the block ends.
                loan.numpy()[...] = np.roll(ramp, number)[:, None]
            time.sleep(1 / 30)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        pass
