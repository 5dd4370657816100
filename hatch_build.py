"""Where the project lives, for the package's page: the remote that a wheel is built from."""

from __future__ import annotations

import re
import subprocess
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_SSH = re.compile(r"^(?:ssh://)?git@(?P<host>[^:/]+)[:/](?P<path>.+)$")


def address(remote: str) -> str:
    """The page of a git remote; empty for one that has none (a folder, a path)."""
    plain = remote.strip().removesuffix("/").removesuffix(".git")
    if found := _SSH.match(plain):
        plain = f"https://{found['host']}/{found['path']}"
    return re.sub(r"^(https://)[^/@]*@", r"\1", plain) if plain.startswith("https://") else ""


class Address(MetadataHookInterface):
    """[project.urls] of the clone; in an unpacked source distribution, those it was made with."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add what is known; a clone without a remote says nothing."""
        kept = Path(self.root) / "PKG-INFO"
        if kept.is_file():
            told = HeaderParser().parsestr(kept.read_text(encoding="utf-8"))
            pairs = (line.partition(", ") for line in told.get_all("Project-URL", []))
            metadata["urls"] = {name: url for name, _, url in pairs}
            return
        metadata["urls"] = {}
        if not (Path(self.root) / ".git").exists():  # a folder in somebody else's repository
            return
        asked = ["git", "-C", self.root, "config", "--get", "remote.origin.url"]
        try:
            done = subprocess.run(asked, capture_output=True, text=True, check=False)  # noqa: S603
        except OSError:  # there is no git
            return
        if home := address(done.stdout):
            metadata["urls"] = {
                "Source": home,
                "Documentation": f"{home}#readme",
                "Changelog": f"{home}/blob/HEAD/CHANGELOG.md",
                "Issues": f"{home}/issues",
            }
