"""`autotune worker`: one more pair of hands for a search."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.options import STORAGE, option, shared_storage
from autotune.cli.output import Progress, QuietOption, emit
from autotune.domain.errors import InputError, Interrupted
from autotune.domain.paths import whole


def worker(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="RUN", help="The run folder of the search, where it is here."),
    ] = None,
    storage: Annotated[
        str | None, option("--storage", f"Where the search is shared; or set {STORAGE}.", "URL")
    ] = None,
    study: Annotated[
        str | None, option("--study", "Its name there: that of its run folder.", "NAME")
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Join a search: probe what is next until it is over.

    The search is one of `autotune tune --score probe --workers N`, on this machine or another. This
    machine needs the same autotune, packages, model and data, and a device of the same kind; each
    difference is said. For example, with a database:
    autotune worker --storage postgresql+psycopg://me@host/tuning --study 20260101-120000-my-job
    Of a search with --rendezvous this machine takes part in each probe, until that search ends.
    """
    url = shared_storage(storage)
    if run is None and (url is None or study is None):
        absent = "--storage" if study else "--study" if url else ""
        msg = f"{absent} is absent" if absent else "no search to join is named"
        raise InputError(msg, "name its run folder, or its --storage URL and --study NAME")
    from autotune.app.workers.join import take_part, together_in, work

    together = None
    with Progress(quiet=quiet) as progress:
        try:
            if run is not None and url is None:
                together = together_in(whole(run), progress.line)
            if run is not None and together is not None:
                why = take_part(whole(run), together, progress.line)
            else:
                why = work(None if run is None else whole(run), url, study, progress.line)
        except (KeyboardInterrupt, Interrupted):  # in a probe, or between two
            probe = "a probe that was running is another worker's now"
            probe = "the search waits a minute for this machine" if together else probe
            msg = f"interrupted; {probe}"
            raise Interrupted(msg, "the same command joins again") from None
    emit(f"the search is over: {why}")
