"""The program: ``entry`` for the shell, ``main`` for tests, and the one place that maps errors.

Everything heavy is imported inside, so that Control-C during a slow start is one line, too.
"""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import sys
from collections.abc import Sequence

from moeplan.interrupts import hold_in_extensions
from moeplan.streams import open_streams, plain_width

__all__ = ["entry", "main"]

_INTERRUPTED = 130
_REFUSED = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Parameters
    ----------
    argv
        Arguments without the program's name; None: those of the process.

    Returns
    -------
    int
        0 success, 1 a wanted result was not reached, 2 bad input, 130 interrupted. A bug is no
        exit code: it leaves as the exception it is.
    """
    # OpenMP threads must not spin while they wait; it is read when torch loads.
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    plain_width()
    arguments = list(sys.argv[1:] if argv is None else argv)
    hold_in_extensions()

    import typer
    from typer.main import get_command

    from moeplan import commands
    from moeplan.numbers import plain_numbers
    from moeplan.output import Reporter, exit_code
    from planner.documents.writing import FULL_DISK, TOO_LARGE, is_full, is_too_large
    from solvers.errors import MoeplanError

    reporter = Reporter("--json" in arguments)
    try:
        with reporter.quiet_stdout():
            code = plain_numbers(get_command(commands.app)).main(
                args=arguments, prog_name="moeplan", standalone_mode=False, obj=reporter
            )
    except typer.TyperException as error:
        reporter.fail("UsageError", f"{error.format_message()} (see moeplan --help)")
        return 2
    except MoeplanError as error:
        reporter.fail(type(error).__name__, str(error))
        return exit_code(error)
    except ModuleNotFoundError as error:
        extra = _extra_of(error.name or "")
        if extra is None:
            raise
        reporter.fail(
            "OptionError",
            f"this needs {error.name}, which is not installed: pip install 'moeplan[{extra}]'",
        )
        return 2
    except (MemoryError, ImportError) as error:
        if isinstance(error, ImportError) and "failed to map segment" not in str(error):
            raise
        reporter.fail("RunError", "no memory is left for this process (of ulimit -v, perhaps)")
        return 1
    except BrokenPipeError:
        raise
    except OSError as error:
        # what nobody foresaw about a place that the user or a document named
        if error.filename is None:
            if (error.strerror or "").startswith("No usable temporary directory"):
                # Python's tempfile, which torch asks when it loads
                said = "no folder for temporary files can be written to: set TMPDIR to one that can"
                reporter.fail("InputError", said)
                return 2
            if error.errno not in _REFUSED:
                raise
            # files are written under their names: this is what the shell put behind '>'
            return _no_stdout(error)
        if is_full(error):
            reporter.fail("RunError", f"{os.fsdecode(error.filename)}: {FULL_DISK}")
            return 1
        if is_too_large(error):
            reporter.fail("OptionError", f"{os.fsdecode(error.filename)}: {TOO_LARGE}")
            return 2
        reporter.fail("InputError", f"{os.fsdecode(error.filename)}: {error.strerror or error}")
        return 2
    except (KeyboardInterrupt, typer.Abort):
        code = _INTERRUPTED
    if code == _INTERRUPTED:
        reporter.fail("Interrupted", "interrupted; nothing half-written was left")
    return code or 0


def _no_stdout(error: OSError) -> int:
    """Say on stderr alone why nothing more can be printed."""
    from planner.documents.writing import FULL_DISK, TOO_LARGE, is_full, is_too_large

    too_large = is_too_large(error)
    why = TOO_LARGE if too_large else f"cannot be written: {error.strerror}"
    print(f"moeplan: stdout: {FULL_DISK if is_full(error) else why}", file=sys.stderr)
    return 2 if too_large else 1


def _extra_of(module: str) -> str | None:
    """The extra that brings a module's package; None where none does."""
    from importlib.metadata import PackageNotFoundError, requires

    package = module.partition(".")[0]
    try:
        wanted = requires("moeplan") or []
    except PackageNotFoundError:  # a source tree that is not installed
        return None
    for requirement in wanted:
        found = re.match(r"([\w-]+).*extra == [\"'](\w+)", requirement)
        if found and found[2] != "dev" and found[1].replace("-", "_").lower() == package:
            return found[2]
    return None


def entry() -> None:
    """The ``moeplan`` program."""
    code = 0
    try:
        open_streams()
        from moeplan.output import guard_stdout

        with guard_stdout():
            code = main()
    except KeyboardInterrupt:
        # before there was a reporter
        print("moeplan: interrupted", file=sys.stderr)
        if "--json" in sys.argv[1:]:
            error = {"error": {"class": "Interrupted", "message": "interrupted"}}
            print(json.dumps(error), flush=True)
        code = _INTERRUPTED
    except BrokenPipeError:
        # the reader of our output has gone (head, less): nothing is wrong by that
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        # what was still in the buffer; a command that has failed has said why
        code = code or _no_stdout(error)
    # the work is done or given up: a late Control-C must not end in a traceback
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if code == _INTERRUPTED:
        # a native library that was interrupted while it ran Python makes the interpreter end as if
        # nobody had caught it: by the signal, not with this code
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
