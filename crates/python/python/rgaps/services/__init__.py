"""Requests and answers, with arrays in both: a service answers what clients ask.

A service runs a function for each request; a client asks and waits for the answer::

    with Service("detect", lambda request: model(request.sample.numpy())):   # one process
        ...

    with Client("detect") as client:                                         # others
        boxes = client.call(image, timeout=2.0).numpy()

Requests and answers are messages of the topics ``NAME/request`` and ``NAME/reply``, so they are copied as little as other
messages, and cross hosts as those do.
"""

from ._client import Call, Client
from ._errors import ServiceError
from ._service import Request, Service

__all__ = ["Call", "Client", "Request", "Service", "ServiceError"]
