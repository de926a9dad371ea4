"""One HTTP connection of a console."""

from uvicorn.protocols.http.h11_impl import H11Protocol


class ConsoleConnection(H11Protocol):
    """Answers a request once, also one that is malformed."""

    def send_400_response(self, msg: str) -> None:
        """Answer that the bytes behind a head are no body. The page behind that head may not answer
        as well: h11 would raise, and uvicorn log a traceback.
        """
        super().send_400_response(msg)
        if self.cycle:  # None before the first head
            self.cycle.disconnected = True
