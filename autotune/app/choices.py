"""Words that choose among a few: the command line lists them, a program may give any."""

from __future__ import annotations

from autotune.domain.errors import unknown

CHOICES = {
    "objective": ("cost", "time"),
    "fidelity": ("auto", "formula", "trace"),
    "score": ("model", "probe"),
    "hours": ("model", "stated"),
}


def check_choices(**chosen: str | None) -> None:
    """Raises InputError for a word that is none of its option's; None chooses nothing."""
    for option, word in chosen.items():
        known = CHOICES[option]
        if word is not None and word not in known:
            raise unknown(option, str(word)[:80], known, f"{option} is one of {', '.join(known)}")
