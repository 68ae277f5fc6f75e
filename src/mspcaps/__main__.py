"""The command line, `mspcaps` and `python -m mspcaps`. Ctrl-C ends it silently, even during the first imports."""

import os
import signal
import sys
from types import FrameType


def interrupted(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt; but exit at once while a module is being imported.

    Imports swallow exceptions or turn them into others, and a half-imported module is useless. Nothing needs saving.
    """
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            if os.isatty(1):
                os.write(1, b"\x1b[?25h")  # a progress bar may have hidden the cursor
            os._exit(128 + number)
        frame = frame.f_back
    raise KeyboardInterrupt


def main() -> int:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # the parent process may want it ignored
        signal.signal(signal.SIGINT, interrupted)
    try:
        from mspcaps.cli import main

        status = main()
    except KeyboardInterrupt:
        status = 130
    if signal.getsignal(signal.SIGINT) is interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C during Python's shutdown would show a traceback
    return status


if __name__ == "__main__":
    sys.exit(main())
