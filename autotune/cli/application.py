"""The commands put together, and the one place that turns errors into words and exit codes."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from autotune.cli.output import as_wide, columns, give_up_on_stdout, prepare_streams
from autotune.cli.typed import UsageProblem, as_input_error, unknown_command, with_values
from autotune.domain.errors import AutotuneError, InputError, Interrupted

BUG = 1
LEAST_HELP_WIDTH = 52  # below it the parser would write lines of 50 characters all the same
_OF_THE_MACHINE = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EFBIG,
        errno.EROFS,
        errno.EACCES,
        errno.EPERM,
        errno.EMFILE,
        errno.ENFILE,
        errno.EBADF,
        errno.EIO,
        errno.ENOMEM,
        errno.ENAMETOOLONG,
        errno.ELOOP,
        errno.ESTALE,
        errno.ETIMEDOUT,
    }
)  # errors that no code can prevent
_NAMED_WRONG = {
    errno.ENAMETOOLONG: "no file can have that name: look for a value that slipped into it",
    errno.ELOOP: "a link there leads back to itself: name the file itself",
}


KEEP_RUNS = frozenset({"tune", "recompute", "plan", "worker"})  # of others nothing half is kept


class Commands(TyperGroup):
    """A group in which Ctrl-C is an answer of its own, with its own exit code."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 - as below
        """The command that is meant. Raises InputError for none of ours."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise unknown_command(args[0], sorted(COMMANDS))
        name, command, rest = super().resolve_command(ctx, args)
        for parameter in command.params if command else ():
            _convert_only_what_is_given(parameter)
        return name, command, rest

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - the context class moved between versions
        """Run the command. Raises Interrupted on Ctrl-C."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            if ctx.invoked_subcommand not in KEEP_RUNS:
                msg = "interrupted before it ended"
                raise Interrupted(msg, "type the same command again") from None
            msg = "interrupted; everything that finished is kept"
            raise Interrupted(msg, "`autotune runs` lists the runs") from None


def _convert_only_what_is_given(parameter: Any) -> None:  # noqa: ANN401 - its class moved
    """Leave an option that nobody gave as it is: a converter from its type is slow to make."""
    if parameter.required or parameter.callback is not None:
        return
    process = parameter.process_value
    nothing = () if parameter.multiple or parameter.nargs == -1 else None
    default = parameter.default

    def converted(context: Any, value: Any) -> Any:  # noqa: ANN401
        if value is None:
            return nothing
        stated = value is default and isinstance(value, Enum | int | float)
        return value if stated else process(context, value)

    parameter.process_value = converted


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import PackageNotFoundError, version

        from autotune.catalog.software import DISTRIBUTION

        try:
            typer.echo(f"autotune {version(DISTRIBUTION)}")
        except PackageNotFoundError:
            typer.echo("autotune, not installed: run from its source")
        raise typer.Exit


def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Find the cheapest fine-tuning configuration that fits, before you pay.

    autotune answers: which configuration, on which machine, finishes this job for the fewest
    dollars (or soonest), does it fit, how sure is that, and what to run. No GPU is needed.
    """


COMMANDS = {  # by name, in the order of the help: the module that holds each
    "tune": "tune",
    "estimate": "estimate",
    "compare": "compare",
    "recompute": "recompute",
    "verify": "verify",
    "learn": "learn",
    "plan": "plan",
    "worker": "worker",
    "devices": "lists",
    "models": "lists",
    "prices": "lists",
    "dataset": "data",
    "init": "data",
    "validate": "data",
    "calibrate": "data",
    "runs": "records",
    "report": "records",
    "export": "records",
    "doctor": "doctor",
    "help": "topics",
}


def application(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """The command line with these commands; no other is imported."""
    made = typer.Typer(
        cls=Commands,
        name="autotune",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={
            "help_option_names": ["-h", "--help"],
            "max_content_width": 100,
            "terminal_width": columns() - 2 if columns() < LEAST_HELP_WIDTH else None,
        },
        epilog="To begin: autotune tune --model Qwen/Qwen2.5-7B --data train.jsonl --gpu h100. "
        "More: `autotune help` lists topics such as memory, prices and workers. "
        "Exit codes: 0 answer, 1 bug, 2 bad input, 3 nothing fits, 4 a limit is missed, "
        "5 no device to probe on, 6 the recommendation changed, 130 interrupted.",
    )
    made.callback()(root)
    for name in names:
        made.command()(getattr(import_module(f"autotune.cli.commands.{COMMANDS[name]}"), name))
    return made


def run(argv: Sequence[str] | None = None) -> int:
    """Run a command line; its exit code. Errors are told on stderr, without a traceback.

    SIGTERM and SIGHUP end it as Ctrl-C does, with all that it started: what finished is kept, and
    the code is 128 and the signal's number.
    """
    with _stopped_by_signals() as stopped_by:
        try:
            code = _run(argv)
        except KeyboardInterrupt:
            if not stopped_by:
                raise
            code = Interrupted.exit_code
        return 128 + stopped_by[0] if stopped_by else code


@contextlib.contextmanager
def _stopped_by_signals() -> Iterator[list[int]]:
    """The signal that ended the block, if one did. One that is ignored, as by nohup, stays so."""
    stopped_by: list[int] = []

    def stop(number: int, _: object) -> None:
        if not stopped_by:  # a second one must not stop what puts things in order
            stopped_by.append(number)
            raise KeyboardInterrupt

    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in map(signal.Signals.__getitem__, names)}
    here = threading.current_thread() is threading.main_thread()
    ours = [number for number, how in before.items() if here and how is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, stop)
    try:
        yield stopped_by
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _run(argv: Sequence[str] | None) -> int:
    prepare_streams()
    words = with_values(sys.argv[1:] if argv is None else argv)
    try:
        app = application(words[:1] if words and words[0] in COMMANDS else COMMANDS)
        return _code_of(app(args=words, prog_name="autotune", standalone_mode=False))
    except SystemExit as left:
        return _code_of(left.code)
    except UsageProblem as problem:
        return _tell_usage(problem, words)
    except AutotuneError as error:
        _tell(error.message, error.hint)
        return error.exit_code
    except BrokenPipeError:
        give_up_on_stdout()
        return 0
    except Exception as error:
        if os.environ.get("AUTOTUNE_DEBUG") and not _of_the_machine(error):
            raise
        return _tell_unforeseen(error)


def _of_the_machine(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in _OF_THE_MACHINE


def _tell_unforeseen(error: Exception) -> int:
    """What the machine refused, or a defect of ours."""
    if isinstance(error, FileNotFoundError) and not _stands_somewhere():
        hint = "`cd` to a folder that exists, then run the same command again"
        _tell("the folder that this shell is in was deleted", hint)
        return InputError.exit_code
    if isinstance(error, OSError) and _of_the_machine(error):
        give_up_on_stdout()
        name = str(error.filename or "")
        where = f" ({name[:80]}{'...' if name[80:] else ''})" if name else ""
        hint = _NAMED_WRONG.get(error.errno or 0, "make room, or grant access")
        _tell(f"this machine refused: {error.strerror}{where}", hint)
        return InputError.exit_code
    _tell(
        f"this is a bug in autotune, sorry: {type(error).__name__}: {error}",
        "run the same command with AUTOTUNE_DEBUG=1 and report the traceback it shows, "
        "with the command, the job file and `autotune --version`",
    )
    return BUG


def _stands_somewhere() -> bool:
    """Whether the folder that a command was started in is still there."""
    try:
        Path.cwd()
    except FileNotFoundError:
        return False
    return True


def _code_of(left: object) -> int:
    """The exit code that a command left with: none is 0."""
    if left is None:
        return 0
    return left if isinstance(left, int) else BUG


def _tell_usage(problem: Exception, words: Sequence[str]) -> int:
    """A command line that cannot be read; an empty one is answered with the help."""
    if not words:
        sys.stderr.write(f"{problem}\n")
        return InputError.exit_code
    commands = getattr(typer.main.get_command(application()), "commands", {})
    error = as_input_error(problem, words, commands)
    _tell(error.message, error.hint)
    return error.exit_code


def _tell(message: str, hint: str | None) -> None:
    from autotune.domain.secrets import without_secrets

    message, hint = without_secrets(message)[0], without_secrets(hint or "")[0]
    told = as_wide(f"error: {_printable(message)}") + "\n"
    told += as_wide(f"hint: {_printable(hint)}") + "\n" if hint else ""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    with contextlib.suppress(OSError):  # nobody to tell: the exit code still says it
        sys.stderr.write(told)
        sys.stderr.flush()


def _printable(text: str) -> str:
    """What was typed must not steer the terminal: control characters are written out."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)
