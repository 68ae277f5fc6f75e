"""The command line, `mspcaps` and `python -m mspcaps`. Ctrl-C ends it in silence from the first import on."""

import os
import signal
import sys
from types import FrameType


def interrupted(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt; but where modules are being loaded, end at once.

    Imports swallow exceptions or turn them into others, and what is half imported is of no use. There is nothing to
    save meanwhile.
    """
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            if os.isatty(1):
                os.write(1, b"\x1b[?25h")  # a progress bar may have hidden the cursor
            os._exit(128 + number)
        frame = frame.f_back
    raise KeyboardInterrupt


def main() -> int:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # whoever started us may want it ignored
        signal.signal(signal.SIGINT, interrupted)
    try:
        from mspcaps.cli import main

        status = main()
    except KeyboardInterrupt:
        status = 130
    if signal.getsignal(signal.SIGINT) is interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's own last steps would show a traceback
    return status


if __name__ == "__main__":
    sys.exit(main())
