"""Carries model weights from a trainer to inference processes: one copy in shared memory serves all processes of a host.

A trainer publishes a state dict under a name, version by version; any number of processes read the same bytes::

    with WeightsPublisher(node, "model/policy") as weights:          # the trainer
        weights.publish(model.state_dict(), dtype=torch.bfloat16)

    with WeightsSubscriber(node, "model/policy") as weights:         # each inference process
        newest = weights.wait(timeout=60)                            # name -> tensor, without a copy
        newest.load_into(model)

Readers see a version whole or not at all, even if its trainer dies. Its bytes do not change while any reader has it.
"""

from ._errors import BaseMissing, StaleVersion, VersionIncomplete, VersionsHeld, WeightsMismatch
from ._publisher import Piece, WeightsPublisher
from ._subscriber import WeightsSubscriber
from ._version import TensorInfo, Weights

__all__ = [
    "BaseMissing",
    "Piece",
    "StaleVersion",
    "TensorInfo",
    "VersionIncomplete",
    "VersionsHeld",
    "Weights",
    "WeightsMismatch",
    "WeightsPublisher",
    "WeightsSubscriber",
]
