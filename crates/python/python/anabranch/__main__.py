"""``python -m anabranch``: the command."""

import signal
import sys

from ._doctor import print_lines
from ._native import run_command


def main() -> int:
    arguments = sys.argv[1:]
    # The command handles signals itself; Python's handler would wait for it to end.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    status = run_command([sys.executable, "-m", "anabranch"], arguments)
    if arguments[:1] == ["doctor"] and not {"--json", "--help", "-h"} & set(arguments):
        print_lines()
    return status


if __name__ == "__main__":
    sys.exit(main())
