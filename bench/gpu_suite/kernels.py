"""Single operations on the GPU: `python -m bench.gpu_suite.kernels FILE`, about half a minute.

Attention by length and mask, compiled or not; products of 4-bit weights beside 16-bit ones; the
loss of a large vocabulary; norms, activations and the optimizer's step. One JSON line each: what
was run, its seconds by CUDA events (the median of several), and the bytes it had at the most.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOKENS = 16_384  # of an attention call, or one sequence where that is longer
LENGTHS = (512, 1024, 2048, 4096, 8192, 16_384, 32_768)
HEADS, KV_HEADS = 32, 8
WIDTH, INNER, VOCABULARY = 4096, 14_336, 128_256  # of Llama-3.1 8B
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH,
}  # fmt: skip


def timed(call: Callable[[], object], seconds: float = 0.15) -> dict[str, float]:
    """[s] of a call by events, and [bytes] allocated while it ran beyond what was there."""
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    took: list[float] = []
    begun = time.perf_counter()
    while len(took) < 5 or (len(took) < 50 and time.perf_counter() - begun < seconds):  # noqa: PLR2004
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        took.append(start.elapsed_time(end) / 1000.0)
    peak = torch.cuda.max_memory_allocated() - before
    return {"s": statistics.median(took), "quick_s": min(took), "extra_bytes": float(peak)}


def attention() -> Iterator[dict[str, Any]]:
    """Forward, and forward with backward, of 16,384 tokens in rows of each length."""
    for length in LENGTHS:
        for dim, kv in ((128, KV_HEADS), (64, HEADS)) if length in {1024, 4096} else ((128, 8),):
            yield from _attention(length, dim, kv)
    for backend in BACKENDS:
        for length in (1024, 4096) if backend != "math" else (1024,):
            with contextlib.suppress(RuntimeError):  # flash attention has no kernel for a mask
                yield from _attention(length, 128, HEADS, backend)


def _attention(length: int, dim: int, kv: int, backend: str = "") -> Iterator[dict[str, Any]]:
    batch = max(TOKENS // length, 1)
    q = _random(batch, HEADS, length, dim)
    k, v = (_random(batch, kv, length, dim) for _ in range(2))
    padded = torch.ones(batch, 1, length, length, dtype=torch.bool, device="cuda").tril()
    padded[:, :, :, length - length // 8 :] = False
    padded[:, :, :, 0] = True
    chosen = sdpa_kernel(BACKENDS[backend]) if backend else contextlib.nullcontext()
    masks = {"causal": None, "mask": padded} if length <= 8192 else {"causal": None}  # noqa: PLR2004
    for name, mask in masks.items():

        def forward(mask: Any = mask) -> torch.Tensor:  # noqa: ANN401 - a tensor or none
            return functional.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=kv != HEADS
            )

        def both(forward: Callable[[], torch.Tensor] = forward) -> None:
            out = forward()
            torch.autograd.grad(out, (q, k, v), out)

        for kind, call in (("forward", forward), ("both", both)):
            with chosen:
                yield {"part": "attention", "length": length, "batch": batch, "dim": dim,
                       "kv_heads": kv, "mask": name, "backend": backend or "default",
                       "pass": kind, **timed(call)}  # fmt: skip
            chosen = sdpa_kernel(BACKENDS[backend]) if backend else contextlib.nullcontext()


def four_bit() -> Iterator[dict[str, Any]]:
    """Unpacking nf4 weights, and products with them, beside those of bf16."""
    import bitsandbytes as bnb  # type: ignore[import-not-found,unused-ignore]

    for out, inner in ((INNER, WIDTH), (WIDTH, INNER), (WIDTH, WIDTH), (1024, WIDTH)):
        weight = _random(out, inner).detach()
        for nested in (True, False):
            packed, state = bnb.functional.quantize_4bit(
                weight, quant_type="nf4", compress_statistics=nested
            )

            def unpack(packed: Any = packed, state: Any = state) -> None:  # noqa: ANN401
                bnb.functional.dequantize_4bit(packed, state)

            yield {"part": "unpack", "shape": [out, inner], "nested": nested, **timed(unpack)}
            for tokens in (512, 2048, 8192) if nested else ():
                x = _random(tokens, inner)
                both: dict[str, Callable[[], Any]] = {
                    "nf4": partial(bnb.matmul_4bit, x, packed.t(), state),
                    "bf16": partial(functional.linear, x, weight),
                }
                for kind, call in both.items():
                    yield {"part": "product", "kind": kind, "shape": [tokens, out, inner],
                           "pass": "forward", **timed(call)}  # fmt: skip

                    def back(call: Any = call, x: Any = x) -> None:  # noqa: ANN401
                        y = call()
                        torch.autograd.grad(y, x, y)

                    yield {"part": "product", "kind": kind, "shape": [tokens, out, inner],
                           "pass": "both", **timed(back)}  # fmt: skip


def loss() -> Iterator[dict[str, Any]]:
    """Head and cross entropy: logits raised to fp32 as transformers does, and Liger's fused."""
    head = _random(VOCABULARY, WIDTH).detach()
    for tokens in (2048, 8192):
        x, labels = _random(tokens, WIDTH), torch.randint(VOCABULARY, (tokens,), device="cuda")

        def plain(x: Any = x, labels: Any = labels) -> None:  # noqa: ANN401
            logits = functional.linear(x, head).float()
            torch.autograd.grad(functional.cross_entropy(logits, labels), x)

        yield {"part": "loss", "kind": "plain", "tokens": tokens, **timed(plain)}
        from liger_kernel.transformers import (  # type: ignore[import-not-found,unused-ignore]
            LigerFusedLinearCrossEntropyLoss,
        )

        fused = LigerFusedLinearCrossEntropyLoss()

        def chunked(x: Any = x, labels: Any = labels, fused: Any = fused) -> None:  # noqa: ANN401
            torch.autograd.grad(fused(head, x, labels), x)

        yield {"part": "loss", "kind": "liger", "tokens": tokens, **timed(chunked)}


def elementwise() -> Iterator[dict[str, Any]]:
    """The kernels between products, as a Llama's layer has them in bf16, for 8,192 tokens."""
    from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

    tokens = 8192
    x, gate, up = _random(1, tokens, WIDTH), *(_random(1, tokens, INNER) for _ in range(2))
    norm = LlamaRMSNorm(WIDTH).to("cuda", torch.bfloat16)
    q, k = _random(1, HEADS, tokens, 128), _random(1, KV_HEADS, tokens, 128)
    angles = torch.randn(1, tokens, 128, device="cuda", dtype=torch.bfloat16)
    calls: dict[str, tuple[Callable[[], Any], tuple[torch.Tensor, ...]]] = {
        "norm": (lambda: norm(x), (x,)),
        "gated": (lambda: functional.silu(gate) * up, (gate, up)),
        "rotary": (lambda: apply_rotary_pos_emb(q, k, angles, angles)[0], (q,)),
        "add": (lambda: x + x, (x,)),
    }
    for name, (call, of) in calls.items():

        def both(call: Any = call, of: Any = of) -> None:  # noqa: ANN401
            out = call()
            torch.autograd.grad(out, of, out)

        yield {"part": "elementwise", "kind": name, "pass": "forward", **timed(call)}
        yield {"part": "elementwise", "kind": name, "pass": "both", **timed(both)}


def optimizer() -> Iterator[dict[str, Any]]:
    """A step of AdamW over half a billion parameters in 300 tensors; clipping of gradients."""
    for dtype in (torch.bfloat16, torch.float32):
        shape = (300, 1290, 1290)
        weights = [torch.nn.Parameter(w) for w in torch.zeros(shape, device="cuda", dtype=dtype)]
        for weight in weights:
            weight.grad = torch.randn_like(weight)
        count = shape[0] * shape[1] * shape[2]
        row = {"part": "optimizer", "parameters": count, "dtype": str(dtype)[6:]}
        for kind in ("fused", "foreach"):
            step = torch.optim.AdamW(weights, **{kind: True}).step
            yield {**row, "kind": kind, **timed(step, 0.3)}
        with contextlib.suppress(ImportError):
            import bitsandbytes as bnb  # type: ignore[import-not-found,unused-ignore]

            yield {**row, "kind": "8bit", **timed(bnb.optim.AdamW8bit(weights).step, 0.3)}
        clip = partial(torch.nn.utils.clip_grad_norm_, weights, 1.0)
        yield {**row, "kind": "clip", **timed(clip)}


def compiled() -> Iterator[dict[str, Any]]:
    """Attention inside torch.compile, with a mask and without: which kernel it then runs."""
    for length in (1024, 4096):
        q, k, v = (_random(TOKENS // length, HEADS, length, 128) for _ in range(3))
        mask = torch.ones(length, length, dtype=torch.bool, device="cuda").tril()[None, None]
        for name, given in (("causal", None), ("mask", mask)):

            def forward(q: Any, k: Any, v: Any, given: Any = given) -> torch.Tensor:  # noqa: ANN401
                return functional.scaled_dot_product_attention(
                    q, k, v, attn_mask=given, is_causal=given is None
                )

            inside = torch.compile(forward)

            def both(
                inside: Any = inside, q: Any = q, k: Any = k, v: Any = v  # noqa: ANN401
            ) -> None:  # fmt: skip
                out = inside(q, k, v)
                torch.autograd.grad(out, (q, k, v), out)

            yield {"part": "attention", "length": length, "dim": 128, "kv_heads": HEADS,
                   "mask": name, "backend": "compiled", "pass": "both", **timed(both)}  # fmt: skip


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)


PARTS = (attention, four_bit, loss, elementwise, optimizer, compiled)


def main() -> None:
    """Run as a program; a part that fails says so and the next goes on."""
    with Path(sys.argv[1]).open("w", encoding="utf-8") as stream:
        for part in PARTS:
            try:
                for row in part():
                    stream.write(json.dumps(row) + "\n")
                    stream.flush()
            except Exception as error:  # noqa: BLE001 - of foreign code, and told
                said = f"{type(error).__name__}: {error}"[:300]
                stream.write(json.dumps({"part": part.__name__, "failed": said}) + "\n")
                print(part.__name__, said, flush=True)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
