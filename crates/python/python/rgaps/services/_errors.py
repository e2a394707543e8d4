"""Errors of `rgaps.services`."""

from .._errors import Error


class ServiceError(Error):
    """The service did not answer: its function raised an exception, it was busy, or it ended. The message says which."""
