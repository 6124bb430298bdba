#!/usr/bin/env python3
"""ballast.attention against torch's own backends on the same inputs: the same output, and how long each takes.
Whole documents, and a context-parallel rank's fragments against a long prefix. Not yet run on a device."""

import os
import sys
import types

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

here = os.path.dirname(os.path.abspath(__file__))
for folder in (here, os.path.join(here, "..", "..", "client", "python")):
    sys.path.insert(0, folder)
from ballast.attention import Plan, attention  # noqa: E402
from ballast import Layout  # noqa: E402
from ballast.plan import Fragment, Shard  # noqa: E402

HEADS, KV_HEADS, WIDTH = 32, 4, 128
ROWS, FRAGMENT_ROWS = 16384, 2048
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
DEVICE = "cuda"
WARM_UP, REPEATS = 3, 10


class Prefix:
    """An exchange for one rank alone: its fragments see keys that are there already."""

    def __init__(self, k, v):
        self.k, self.v = k, v

    def gather(self, k, v):
        return self.k, self.v

    def scatter(self, dk, dv):
        self.dk, self.dv = dk, dv
        return dk[:FRAGMENT_ROWS], dv[:FRAGMENT_ROWS]


def batch_of(fragments, rows, ranks=1):
    return types.SimpleNamespace(rows=rows, pad_rows=0, fragments=fragments, shards=[Shard(rows, 0, fragments)] * ranks,
                                 group_rank=0, group_ranks=ranks, pool=None, layout=Layout.PER_DOCUMENT)


def drawn(rows, heads):
    return torch.randn(rows, heads, WIDTH, device=DEVICE, dtype=torch.bfloat16)


def milliseconds(run):
    times = []
    for i in range(-WARM_UP, REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        times += [start.elapsed_time(end)] if i >= 0 else []
    return sorted(times)[REPEATS // 2]


def timed(forward, leaves, d_o):
    """Output, gradients, and how long both passes take."""
    out = forward(*leaves)
    gradients = torch.autograd.grad(out, leaves, d_o, retain_graph=True)
    with torch.no_grad():
        forward_ms = milliseconds(lambda: forward(*leaves))
    backward_ms = milliseconds(lambda: torch.autograd.grad(out, leaves, d_o, retain_graph=True))
    return [out.detach()] + list(gradients), (forward_ms, backward_ms)


def by_torch(backend, leaves, d_o, bias):
    """Leaves [batch, heads, rows, width]: documents of one length are a batch to torch."""
    def forward(q, k, v):
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=bias is None)
    return timed(forward, leaves, d_o)


def apart(a, b):
    return float((a.float() - b.float()).norm() / b.float().norm())


def report(name, least, ours_ms, best_ms, by, worst):
    ratios = " ".join(f"{what} {ours:.3f} ms, {best / ours:.2f} x {backend};" for what, ours, best, backend
                      in zip(("forward", "backward"), ours_ms, best_ms, by))
    met = all(best >= least * ours for ours, best in zip(ours_ms, best_ms))
    print(f"{name:28} {ratios} {least} {'met' if met else 'MISSED'}; differs by {worst:.1e}", flush=True)
    return worst < 2e-2


def compare(name, least, ours, ours_ms, leaves, d_o, bias, folded):
    """`least` is the speed that is wanted, of torch's best backend; `folded` makes results like ours of torch's."""
    best_ms, by, worst, found = [float("inf")] * 2, ["none of torch's"] * 2, 0.0, False
    for backend, number in BACKENDS.items():
        try:
            theirs, their_ms = by_torch(number, leaves, d_o, bias)
        except RuntimeError as error:
            print(f"{name:28} torch's {backend} refuses: {str(error).splitlines()[0]}", flush=True)
            continue
        found = True
        worst = max([worst] + [apart(a, folded(b, i)) for i, (a, b) in enumerate(zip(ours, theirs))])
        for i in range(2):
            if their_ms[i] < best_ms[i]:
                best_ms[i], by[i] = their_ms[i], backend
    return report(name, least, ours_ms, best_ms, by, worst) and found


def documents(length):
    count = ROWS // length
    q, k, v, d_o = (drawn(ROWS, heads) for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS))
    plan = Plan(batch_of([Fragment(i, 0, length, i * length) for i in range(count)], ROWS), q_heads=HEADS,
                kv_heads=KV_HEADS, head_dim=WIDTH)
    ours, ours_ms = timed(lambda *a: attention(*a, plan), [t.clone().requires_grad_() for t in (q, k, v)], d_o)

    def batched(t):
        t = t.view(count, length, -1, WIDTH).transpose(1, 2)
        return t if t.shape[1] == HEADS else t.repeat_interleave(HEADS // KV_HEADS, 1)

    def folded(t, i):
        t = t.transpose(1, 2).reshape(ROWS, HEADS, WIDTH)
        return t if i < 2 else t.view(ROWS, KV_HEADS, HEADS // KV_HEADS, WIDTH).float().sum(2)

    leaves = [batched(t).contiguous().requires_grad_() for t in (q, k, v)]
    return compare(f"{count} documents of {length}", 0.9, ours, ours_ms, leaves, batched(d_o), None, folded)


def fragments(length):
    """Pieces of `length` rows, each the last rows of a prefix of ROWS keys that all of them share."""
    count = FRAGMENT_ROWS // length
    q, d_o = drawn(FRAGMENT_ROWS, HEADS), drawn(FRAGMENT_ROWS, HEADS)
    k, v = drawn(ROWS, KV_HEADS), drawn(ROWS, KV_HEADS)
    prefix = Prefix(k, v)
    plan = Plan(batch_of([Fragment(0, ROWS - length, length, i * length) for i in range(count)], FRAGMENT_ROWS, 2),
                q_heads=HEADS, kv_heads=KV_HEADS, head_dim=WIDTH, exchange=prefix)
    own = [q.clone().requires_grad_()] + [t[:FRAGMENT_ROWS].clone().requires_grad_() for t in (k, v)]
    ours, ours_ms = timed(lambda *a: attention(*a, plan), own, d_o)
    ours = ours[:2] + [prefix.dk, prefix.dv]

    def repeated(t):
        t = t.transpose(0, 1).repeat_interleave(HEADS // KV_HEADS, 0)
        return t.expand(count, -1, -1, -1).contiguous().requires_grad_()

    def split(t):
        return t.view(count, length, HEADS, WIDTH).transpose(1, 2)

    def folded(t, i):
        if i < 2:
            return t.transpose(1, 2).reshape(FRAGMENT_ROWS, HEADS, WIDTH)
        return t.float().sum(0).view(KV_HEADS, HEADS // KV_HEADS, ROWS, WIDTH).sum(1).transpose(0, 1)

    leaves = [split(q).contiguous().requires_grad_(), repeated(k), repeated(v)]
    return compare(f"{count} fragments of {length}", 1.2, ours, ours_ms, leaves, split(d_o).contiguous(),
                   causal_lower_right(length, ROWS), folded)


def main():
    torch.manual_seed(1)
    print(f"torch {torch.__version__}, {HEADS} query heads, {KV_HEADS} K/V heads, bf16, causal; median of 10; "
          "K/V heads are repeated for torch before the clock starts", flush=True)
    well = [documents(length) for length in (4096, 16384, 1024)] + [fragments(length) for length in (64, 256, 1024)]
    return 0 if all(well) else 1


if __name__ == "__main__":
    sys.exit(main())
