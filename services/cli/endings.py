"""How the process ends when it is interrupted, when its arguments can not be, when nobody reads its output."""

import signal
import sys
from collections.abc import Callable

from services.cli.arguments import USAGE_CODE, BadInputError
from services.cli.terminal import abandon_output, flush_output

BROKEN_PIPE_CODE = 141
"""Exit code of a command whose reader is gone: 128 + SIGPIPE, as shells know it."""


def guard_process(run: Callable[[], int]) -> int:
    """The exit code of `run`, also when it is interrupted or its output can not be written."""
    try:
        code = run()
        flush_output()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        abandon_output()
        return BROKEN_PIPE_CODE
    except BadInputError as error:
        print(f"tenure: {error}", file=sys.stderr)
        return USAGE_CODE
    except OSError as error:
        abandon_output()
        print(f"tenure: {error.strerror or error}", file=sys.stderr)
        return 1
    return code
