"""Where the command `ghostshard` begins: Ctrl-C while Python still loads the rest ends it at once, without a traceback."""

import _signal  # built in: nothing is loaded before the next line
import sys

_signal.signal(_signal.SIGINT, _signal.SIG_DFL)


def main() -> int:
    from ghostshard.launcher import main as launch

    _signal.signal(_signal.SIGINT, _signal.default_int_handler)  # from here on a command says that it was interrupted
    return launch()


if __name__ == "__main__":
    sys.exit(main())
