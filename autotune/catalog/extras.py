"""Optional packages: which belong together, and the command that installs them."""

from __future__ import annotations

import re
import shlex
from importlib.metadata import PackageNotFoundError, requires

DISTRIBUTION = "autotune-finetune"  # `autotune` on the package index is somebody else's
_EXTRA = re.compile(r"extra\s*==\s*['\"]([\w-]+)['\"]")


def install_command(extra: str) -> str:
    """The command that installs what an extra of ours holds: pip and the packages' own names.

    The packages are named because that works from a checkout, from a wheel and in any environment,
    whether or not this distribution is on an index. Raises KeyError for an extra that is not ours.
    """
    packages = _packages(extra)
    if packages is None:  # run from a source tree that nobody installed
        return f"pip install -e '.[{extra}]' in the checkout"
    if not packages:
        raise KeyError(extra)
    return f"pip install {' '.join(shlex.quote(package) for package in packages)}"


def _packages(extra: str) -> list[str] | None:
    """Requirements of an extra, as stated; None where the distribution is not installed."""
    try:
        stated = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        return None
    found = []
    for requirement in stated:
        package, _, marker = requirement.partition(";")
        named = _EXTRA.search(marker)
        if named and named.group(1) == extra:
            found.append(package.strip())
    return found
