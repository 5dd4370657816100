"""All readers by name; each module enters its own."""

from __future__ import annotations

from bench.fuzz import drawn, files, kept, walked, words
from bench.fuzz.reading import READERS

__all__ = ["READERS", "drawn", "files", "kept", "walked", "words"]
