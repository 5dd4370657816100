"""What the words of a report mean, for people who know the trainer and not this tool."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from autotune.domain.config import TRAINER_NAMES
from autotune.report.layout.blocks import Bars, Bullets, Commands, Paragraph, Section, Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from autotune.report.layout.blocks import Block

# A word, how it is found in a text, and what it means.
WORDS = (
    ("80 % interval", "80 % interval",
     "a range that should hold the true value in eight of ten answers like this one"),
    ("accumulation", "accumulation [0-9]",
     ("forward and backward passes whose gradients are added up before an optimizer step: "
     "gradient_accumulation_steps")),
    ("activation checkpointing", "activation.checkpointing",
     "activations are computed again in the backward pass: gradient_checkpointing"),
    ("allocator", "allocator",
     "the part of torch that takes memory from the driver in segments and keeps it for reuse"),
    ("bound by", "[Bb]ound by", "what the run waits for most: more of it makes it faster"),
    ("calibrated", "[Cc]alibrated",
     "computed, then corrected by what was measured on this or on similar hardware"),
    ("candidate", "candidates?\\b", "one configuration on one machine"),
    ("checkpoint_every_steps", "checkpoint_every_steps",
     "steps from one checkpoint to the next: save_steps"),
    ("driver context", "driver context", "what CUDA itself keeps of a device's memory"),
    ("eager", "\\beager", "attention as plain matrix products, without a fused kernel"),
    ("evidence", "evidence", "times and peaks that you measured and wrote into the job file"),
    ("fidelity", "fidelity",
     "how memory is found: by formulas, or by a trace of the installed training code"),
    ("fits", "[Ff]its",
     "its peak memory is within what is usable, and the probability of that is 0.9 or more"),
    ("fragmentation", "fragmentation", "memory that the allocator holds and cannot use"),
    ("front", "the front", "configurations that nothing else beats in both time and money"),
    ("global batch", "global batch",
     "rows that one optimizer step learns from: micro-batch x accumulation x devices"),
    ("headroom", "headroom", "a share of the memory that is left free on purpose"),
    ("lost work", "work lost|to lose|lost_work",
     "steps since the last checkpoint, which have to be run again after an interruption"),
    ("MFU", "MFU",
     ("model FLOPs utilisation: the share of the device's peak arithmetic that the model's own "
     "arithmetic uses")),
    ("micro-batch", "micro-batch",
     "rows of one forward pass on one device: per_device_train_batch_size"),
    ("modelled", "[Mm]odelled", "computed by formulas and tables; nothing was run for it"),
    ("neutral", "neutral", "a setting that changes speed or memory and not what is learned"),
    ("numeric", "numeric",
     "a setting that keeps the mathematics and changes rounding or kernels, such as bf16 for fp32"),
    ("offer", "offers?\\b", "a machine at a price: a device, how many, and who rents it out"),
    ("pick", "pick\\b", "the configuration and the machine that are recommended here"),
    ("probe", "probes?\\b", "a short run of the real training code, timed"),
    ("sampler", "sampler", "what chooses the next configuration to look at"),
    ("sdpa", "\\bsdpa\\b", "the attention of torch itself, scaled_dot_product_attention"),
    ("sharding", "sharding", "how weights, gradients and optimizer states are split over devices"),
    ("spot", "\\bspot\\b", "rented cheaper, because the provider may take the machine back"),
    ("traced", "[Tt]raced",
     "memory counted in a dry run of the installed training code, without a GPU"),
    ("usable", "usable",
     ("a device's memory without what the driver and other processes keep, and without the "
     "headroom")),
    ("workspace", "workspace", "scratch memory of matrix products and attention"),
)  # fmt: skip


def used_words(text: str) -> list[tuple[str, str]]:
    """The words that a text uses, each with its meaning."""
    return [(word, what) for word, pattern, what in WORDS if re.search(pattern, text)]


def words_section(sections: Sequence[Section]) -> Section:
    """The words that a report uses, each explained once."""
    text = " ".join(each for section in sections for each in _texts(section))
    found, used = dict(used_words(text)), set(re.findall(r"\w+", text))
    found |= {
        knob: f"{name} in transformers"
        for knob, name in TRAINER_NAMES.items()
        if knob not in found and knob in used
    }
    items = tuple(f"{word}: {what}" for word, what in found.items())
    return Section("Words", (Bullets(items, "quiet"),) if items else ())


def with_words(sections: Sequence[Section]) -> list[Section]:
    """A report, and below it what its words mean."""
    words = words_section(sections)
    return [*sections, words] if words.blocks else list(sections)


def _texts(section: Section) -> Iterator[str]:
    yield section.title
    for block in section.blocks:
        yield from _of_block(block)


def _of_block(block: Block) -> Iterator[str]:
    if isinstance(block, Paragraph):
        yield block.text
    elif isinstance(block, Bullets):
        yield from block.items
    elif isinstance(block, Commands):
        yield from (what for _, what in block.items)
    elif isinstance(block, Table):
        yield from block.titles
        yield from (cell for row in block.rows for cell in row)
    elif isinstance(block, Bars):
        yield from (bar.name for bar in block.bars)
