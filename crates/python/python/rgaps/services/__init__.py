"""Remote calls with arrays: a service answers the requests of clients.

A service runs a function for each request; a client sends a request and waits for the answer::

    with Service("detect", lambda request: model(request.sample.numpy())):   # one process
        ...

    with Client("detect") as client:                                         # others
        boxes = client.call(image, timeout=2.0).numpy()

Requests and answers are messages of the topics ``NAME/request`` and ``NAME/reply``. Like all messages, they are shared without
copies on a host, and links carry them between hosts.
"""

from ._client import Call, Client
from ._errors import ServiceError
from ._service import Request, Service

__all__ = ["Call", "Client", "Request", "Service", "ServiceError"]
