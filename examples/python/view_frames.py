"""A viewer of publish_frames.py's frames: looks at them where they are, and says how old they are."""

import time

import numpy as np

import rgaps


def main() -> None:
    with rgaps.subscriber("camera", type="rgb8") as sub:
        for sample in sub:
            image = np.asarray(sample)  # no copy, read-only; holds the frame while it lives
            age_us = (time.monotonic_ns() - sample.publish_ns) / 1000
            print(f"#{sample.tag}: mean {image.mean():.1f}, {age_us:.0f} us old, missed {sample.missed}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        pass
