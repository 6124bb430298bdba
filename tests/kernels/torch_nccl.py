#!/usr/bin/python3
"""ballast.exchange.nccl: torch.distributed's group becomes a transport over NCCL, whose library and driver are the
tests' own, for one rank; what torch itself moves goes by gloo.

    torch_nccl.py LIBCUDA LIBNCCL LIBBALLAST_ATTN"""

import ctypes
import os
import sys
import tempfile
import types

try:
    import torch
except ImportError:
    print("skip  no torch for this python: install python3-torch")
    sys.exit(77)
if not torch.distributed.is_available():
    print("skip  this torch has no torch.distributed")
    sys.exit(77)

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "client", "python"))
os.environ.update(BALLAST_ATTN_LIBRARY=sys.argv[3], GLOO_SOCKET_IFNAME="lo")
runtime = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
nccl_library = ctypes.CDLL(sys.argv[2], mode=ctypes.RTLD_GLOBAL)
nccl_library.fake_nccl_trace.restype = nccl_library.fake_nccl_fault.restype = ctypes.c_char_p

from ballast import exchange as bx  # noqa: E402
from ballast.batch import Exchange, Layout  # noqa: E402
from ballast.errors import InvalidArgument  # noqa: E402
from ballast.plan import Fragment, Shard  # noqa: E402

contexts, empty = [], torch.empty


def empty_somewhere(*size, device="cpu", **options):
    """There is no CUDA whose context could be made current."""
    if device == "cuda":
        contexts.append(device)
    return empty(*size, **options)


torch.empty = empty_somewhere


def main():
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        check()
        torch.distributed.destroy_process_group()
    print("ok")


def check():
    transport = bx.nccl(deadline=5)
    assert contexts == ["cuda"] and (transport.rank, transport.ranks) == (0, 1)
    fragments = [Fragment(0, 0, 6, 0)]
    batch = types.SimpleNamespace(rows=6, pad_rows=0, fragments=fragments, shards=[Shard(6, 0, fragments)], group_rank=0,
                                  group_ranks=1, pool=None, layout=Layout.PER_DOCUMENT, exchange=Exchange.ALL_GATHER,
                                  plan_digest=bytes(16))
    plan = bx.ExchangePlan(batch, transport, q_heads=4, kv_heads=2, head_dim=64, chunks=2)
    assert plan.sizes.q_rows == plan.sizes.kv_rows == 6 and plan.sizes.bytes_in == 0
    try:
        bx.ExchangePlan(batch, transport, q_heads=4, kv_heads=2, head_dim=64, chunks=3)
        raise AssertionError("3 chunks of 4 heads")
    except InvalidArgument as error:
        assert "3 chunks" in str(error), error
    transport.close()
    transport.close()
    assert nccl_library.fake_nccl_trace(0) == b"igd", nccl_library.fake_nccl_trace(0)
    assert nccl_library.fake_nccl_fault() is None and runtime.fake_runtime_objects() == 0


main()
