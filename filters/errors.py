"""The families of error that are not bugs; what a client may read stands in `FilterError` alone."""


class ForebayError(Exception):
    """Base of every error that Forebay raises on purpose."""


class FilterError(ForebayError):
    """A filter refuses the request; the client reads `text` in its own dialect.

    `status` is the HTTP status (4xx or 5xx).
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status
        self.text = text


NO_REPLICA = "no model server is ready for this request"
"""What a client reads with a 503 where nobody can be asked."""


class PortError(ForebayError):
    """A port (store, upstream, model) failed or ran out of time; the exchange goes on without."""


class ConversationError(ForebayError):
    """The proxy sent a message that may not come at this point of the exchange."""


class ConfigError(ForebayError):
    """A setting is wrong; `path` says where, `message` what was expected and what was found."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path
        self.message = message


class NotJson(ForebayError, ValueError):
    """A body is not JSON, or not JSON that can be read safely; the text says why."""
