#!/usr/bin/env python3
"""ballast.attention against torch's own, on the same whole documents: the same output, and how long both take.
Not yet run on a device."""

import os
import sys
import types

import torch

here = os.path.dirname(os.path.abspath(__file__))
for folder in (here, os.path.join(here, "..", "..", "client", "python")):
    sys.path.insert(0, folder)
from ballast.attention import Plan, attention  # noqa: E402
from ballast import Layout  # noqa: E402
from ballast.plan import Fragment, Shard  # noqa: E402

HEADS, KV_HEADS, WIDTH, ROWS = 32, 4, 128, 16384


def batch_of(length):
    fragments = [Fragment(i, 0, length, i * length) for i in range(ROWS // length)]
    return types.SimpleNamespace(rows=ROWS, pad_rows=0, fragments=fragments, shards=[Shard(ROWS, 0, fragments)],
                                 group_rank=0, group_ranks=1, pool=None, layout=Layout.PER_SEQUENCE)


def milliseconds(run, repeats=10):
    times = []
    for i in range(-3, repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        times += [start.elapsed_time(end)] if i >= 0 else []
    return sorted(times)[repeats // 2]


def torch_attention(q, k, v, length):
    """Documents of one length are a batch to torch."""
    q, k, v = (t.view(ROWS // length, length, -1, WIDTH).transpose(1, 2) for t in (q, k, v))
    k, v = (t.repeat_interleave(HEADS // KV_HEADS, 1) for t in (k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return out.transpose(1, 2).reshape(ROWS, HEADS, WIDTH)


failed = 0
torch.manual_seed(1)
for length in (1024, 4096, 16384):
    q, k, v, d_o = (torch.randn(ROWS, heads, WIDTH, device="cuda", dtype=torch.bfloat16)
                    for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS))
    plan = Plan(batch_of(length), q_heads=HEADS, kv_heads=KV_HEADS, head_dim=WIDTH)
    found = {}
    for name, forward in (("ours", lambda *a: attention(*a, plan)), ("torch", lambda *a: torch_attention(*a, length))):
        leaves = [t.clone().requires_grad_() for t in (q, k, v)]
        out = forward(*leaves)
        forward_ms = milliseconds(lambda: forward(q, k, v))
        backward_ms = milliseconds(lambda: torch.autograd.grad(out, leaves, d_o, retain_graph=True))
        found[name] = [out] + list(torch.autograd.grad(out, leaves, d_o)) + [forward_ms, backward_ms]
    worst = max(float((a.float() - b.float()).norm() / b.float().norm())
                for a, b in zip(found["ours"][:4], found["torch"][:4]))
    failed += not worst < 2e-2
    ratios = [found["torch"][i] / found["ours"][i] for i in (4, 5)]
    print(f"{ROWS // length:3} documents of {length:5}: forward {found['ours'][4]:.3f} ms, {ratios[0]:.2f} x torch; "
          f"backward {found['ours'][5]:.3f} ms, {ratios[1]:.2f} x torch; differs by {worst:.1e}")
sys.exit(failed > 0)
