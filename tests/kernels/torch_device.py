#!/usr/bin/python3
"""tests/gpu/torch_attention.py without a device, so that it has run before it gets one: the kernels emulated, and the
newer torch's backends by their formula, one of which refuses.

    torch_device.py LIBCUDA LIBBALLAST_ATTN [FOLDER]      both of them the tests' own; the script is in FOLDER"""

import contextlib
import ctypes
import os
import sys
import time
import types

try:
    import torch
except ImportError:
    print("skip  no torch for this python: install python3-torch")
    sys.exit(77)

os.environ.update(BALLAST_ATTN_LIBRARY=sys.argv[2], BALLAST_ATTN_ON_CPU="1")
ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL).fake_cuda_reset()
torch.set_num_threads(1)
chosen = []


@contextlib.contextmanager
def sdpa_kernel(backend):
    chosen[:] = [backend]
    yield


def attention_by_formula(q, k, v, attn_mask=None, is_causal=False):
    """Causal, the last query at the last key."""
    assert is_causal == (attn_mask is None)
    if chosen == ["cudnn"] and attn_mask is not None:
        raise RuntimeError("No available kernel.\nAborting.")
    scores = q.double() @ k.double().transpose(-1, -2) / q.shape[-1] ** 0.5
    queries, keys = scores.shape[-2:]
    hidden = torch.ones(queries, keys).triu(1 + keys - queries).bool()
    return (scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v.double()).to(q.dtype)


class Event:
    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        self.seconds = time.perf_counter()

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return 1e3 * (end.seconds - self.seconds)


attention, bias = types.ModuleType("torch.nn.attention"), types.ModuleType("torch.nn.attention.bias")
attention.SDPBackend = types.SimpleNamespace(FLASH_ATTENTION="flash", CUDNN_ATTENTION="cudnn")
attention.sdpa_kernel, bias.causal_lower_right = sdpa_kernel, lambda queries, keys: (queries, keys)
sys.modules.update({"torch.nn.attention": attention, "torch.nn.attention.bias": bias})
torch.nn.functional.scaled_dot_product_attention = attention_by_formula
torch.cuda.Event = Event

folder = (sys.argv[3:] or [os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "gpu")])[0]
sys.path.insert(0, folder)
import torch_attention as device  # noqa: E402

device.HEADS, device.KV_HEADS, device.WIDTH, device.DEVICE = 2, 1, 64, "cpu"
device.ROWS, device.FRAGMENT_ROWS = 160, 32
device.WARM_UP, device.REPEATS = 0, 1
assert device.documents(80) and device.fragments(16)
wrong = device.apart
device.apart = lambda a, b: wrong(a + 1, b)
assert not device.documents(160), "a difference was not seen"
print("ok")
