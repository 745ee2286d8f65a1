"""``python -m anabranch``: the command."""

import signal
import sys

from ._native import run_command


def main() -> int:
    # The command handles signals itself; Python's handler would wait for it to end.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return run_command([sys.executable, "-m", "anabranch"], sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
