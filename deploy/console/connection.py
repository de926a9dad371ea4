"""One HTTP connection of a console."""

from uvicorn.protocols.http.h11_impl import H11Protocol


class ConsoleConnection(H11Protocol):
    """Responds to each request once, even if it is malformed."""

    def send_400_response(self, msg: str) -> None:
        """Respond to a malformed body. The page must not send a second response: h11 would raise an
        error, and uvicorn would log a traceback.
        """
        super().send_400_response(msg)
        if self.cycle:  # None before the first request head
            self.cycle.disconnected = True
