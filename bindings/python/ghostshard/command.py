"""Where the commands begin: Ctrl-C while Python still loads the rest ends it at once, without a traceback. (SIGTERM does
so without us.) Once `ghostshard` runs, errors.run() has it say that it was interrupted."""

import _signal  # built in: nothing is loaded before the next lines
import sys

if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:  # a caller that has it ignored means that
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)


def main() -> int:
    from ghostshard.launcher import main as launch

    return launch()


def check_receipt() -> int:
    from ghostshard.check_receipt import main as check

    return check()


if __name__ == "__main__":
    sys.exit(main())
