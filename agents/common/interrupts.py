"""Ctrl-C, SIGTERM and SIGHUP as a wish that is granted between two iterations, not as a cut in the middle of one."""

import signal
import threading
from types import FrameType, TracebackType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, a request to end, and the terminal that is closed."""


class InterruptedRunError(RuntimeError):
    """A run stopped because of a signal, after its state was saved.

    Attributes:
        signal_number: SIGINT, SIGTERM or SIGHUP; a shell expects the exit code 128 plus this.
    """

    def __init__(self, signal_number: int, message: str) -> None:
        super().__init__(message)
        self.signal_number = signal_number


class Interrupts:
    """Within the context the first of `SIGNALS` is only noted; a second one ends the process as usual.

    A signal that is ignored stays so: whoever started the process, nohup for one, wants it to live on. Outside of the
    main thread Python leaves no signal to be noted, and the context does nothing.

    Attributes:
        received: number of the signal that came, None as long as there was none.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is not threading.main_thread():
            return self
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._put_back()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        self._put_back()

    def _put_back(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
