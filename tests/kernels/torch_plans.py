#!/usr/bin/python3
"""ballast.attention of batches that a real daemon sent: every layout and pools, by torch's autograd over the C API,
the kernels emulated, each rank a thread. Outputs and gradients are those of documents one at a time.

    torch_plans.py LIBCUDA LIBBALLAST_ATTN      both of them the tests' own; BALLAST_BIN has the daemon"""

import ctypes
import os
import sys
import threading

try:
    import torch
except ImportError:
    print("skip  no torch for this python: install python3-torch")
    sys.exit(77)

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path[:0] = [os.path.join(ROOT, "client", "python"), os.path.join(ROOT, "tests", "e2e")]
os.environ.update(BALLAST_ATTN_LIBRARY=sys.argv[2], BALLAST_ATTN_ON_CPU="1")
emulator = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
emulator.fake_cuda_reset()
emulator.fake_cuda_last_stream.restype = ctypes.c_void_p

import ballast  # noqa: E402
from ballast import attention as ba  # noqa: E402
from ballast import exchange as bx  # noqa: E402
from ballast.errors import Disagreement, InvalidArgument, Unavailable, Unsupported  # noqa: E402
from world import World, write_corpus  # noqa: E402

torch.set_num_threads(1)
torch.manual_seed(1)
HEADS, KV_HEADS, WIDTH, WINDOW = 4, 2, 64, 96
SHAPE = {"q_heads": HEADS, "kv_heads": KV_HEADS, "head_dim": WIDTH}
DEADLINE_MS = 60000

# The emulator runs one launch at a time.
device, launch = threading.Lock(), ba._launch


def launch_alone(*arguments):
    with device:
        launch(*arguments)


ba._launch = launch_alone
ba._stream = lambda of: 0x5EA  # which the kernels get; a board has none


def world_of(dp=1, cp=1, layouts="per-document", **sections):
    world = World()
    prefix = os.path.join(world.dir, "d")
    write_corpus(prefix, [list(range(1, 1 + n)) for n in [41, 7, 1, 30, 90, 12, 5, 64, 19, 3] * 40])
    settings = {"plan": {"window": WINDOW, "micro_batches": dp}, "parallel": {"dp": dp, "cp": cp},
                "sharding": {"layouts": layouts}, "model": SHAPE}
    for section, keys in sections.items():
        settings.setdefault(section, {}).update(keys)
    world.config([("d", prefix, 1)], settings)
    world.start()
    return world


class Group:
    """The ranks that share attention of one micro-batch: their batches, and Q, K, V of all their documents."""

    def __init__(self, world, dp, cp):
        self.clients = [ballast.Client(world.socket, dp=d, cp=c, start=(0, 0)) for d in range(dp) for c in range(cp)]
        self.batches = [client.next() for client in self.clients]
        self.begins = []  # of the documents of each replica, in the rows of all
        self.lengths = []
        rows = 0
        for batch in self.batches[::cp]:
            begins = []
            for document in batch.documents:
                begins.append(rows)
                self.lengths.append((rows, int(document.length)))
                rows += int(document.length)
            self.begins.append(begins)
        self.q, self.k, self.v, self.d_o = (torch.randn(rows, heads, WIDTH).bfloat16()
                                            for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS))
        self.places = [self._places(batch, self.begins[i // cp]) for i, batch in enumerate(self.batches)]

    @staticmethod
    def _places(batch, begins):
        """Of each own row that is no padding, its place in all rows."""
        found = [begins[int(f.document)] + row for f in batch.fragments
                 for row in range(int(f.start), int(f.start) + int(f.length))]
        assert len(found) == batch.rows - batch.pad_rows
        return torch.tensor(found, dtype=torch.int64)

    def own(self, rank, tensor):
        out = torch.zeros(self.batches[rank].rows, *tensor.shape[1:], dtype=tensor.dtype)
        out[:len(self.places[rank])] = tensor[self.places[rank]]
        return out

    def exact(self):
        leaves = [t.double().requires_grad_() for t in (self.q, self.k, self.v)]
        out = torch.zeros(self.q.shape, dtype=torch.float64)
        for begin, length in self.lengths:
            rows = slice(begin, begin + length)
            q, k, v = leaves[0][rows], *(t[rows].repeat_interleave(HEADS // KV_HEADS, 1) for t in leaves[1:])
            scores = torch.einsum("qhd,khd->hqk", q, k) / WIDTH ** 0.5
            scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), float("-inf"))
            out[rows] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)
        out.backward(self.d_o.double())
        return [out.detach()] + [leaf.grad for leaf in leaves]

    def close(self):
        for client in self.clients:
            client.close()


class Board:
    """Transports between threads, and what gathers their lists."""

    def __init__(self, ranks, window=1 << 24):
        library, error = ba.library(), ba._Error()
        library.ballast_board_bytes.restype = ctypes.c_size_t
        size = library.ballast_board_bytes(ranks, ctypes.c_size_t(window))
        self.ranks, self.memory = ranks, torch.zeros(size, dtype=torch.uint8)
        self.at = ctypes.c_void_p(self.memory.data_ptr())
        assert library.ballast_board_init(self.at, ranks, ctypes.c_size_t(window), ctypes.byref(error)) == 0, error.text
        self.barrier, self.lists = threading.Barrier(ranks), [None] * ranks

    def gather(self, rank, mine):
        self.lists[rank] = mine
        self.barrier.wait()
        return list(self.lists)

    def transport(self, rank):
        handle, error = ctypes.c_void_p(), ba._Error()
        assert ba.library().ballast_transport_board(ctypes.byref(handle), self.at, rank, DEADLINE_MS,
                                                    ctypes.byref(error)) == 0, error.text
        return bx.Transport(handle, rank, self.ranks, lambda mine: self.gather(rank, mine))


def on_ranks(ranks, run):
    """What `run(rank, transport)` returns or raises, each in a thread."""
    board, found = Board(ranks), [None] * ranks

    def one(rank):
        transport = board.transport(rank)
        try:
            found[rank] = run(rank, transport)
        except Exception as error:
            found[rank] = error
        finally:
            transport.close()
    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def near(got, want, what):
    error = float((got.double() - want).norm() / want.norm())
    assert error < 6e-3, (what, error)


def check(world, dp, cp, chunks=1):
    """Attention of the first micro-batch, by every rank of its group at once."""
    group = Group(world, dp, cp)

    def run(rank, transport):
        leaves = [group.own(rank, t).requires_grad_() for t in (group.q, group.k, group.v)]
        plan = bx.ExchangePlan(group.batches[rank], transport, chunks=chunks, deterministic=chunks > 1, **SHAPE)
        for _ in range(2):  # layers
            out = ba.attention(*leaves, plan)
        gradients = torch.autograd.grad(out, leaves, group.own(rank, group.d_o))
        return [out.detach()] + list(gradients)

    found = on_ranks(dp * cp, run)
    for error in found:
        if isinstance(error, Exception):
            raise error
    assert emulator.fake_cuda_last_stream() == 0x5EA
    for name, want, results in zip(("out", "dq", "dk", "dv"), group.exact(), zip(*found)):
        whole = torch.zeros(want.shape, dtype=torch.float64)
        for place, result in zip(group.places, results):
            whole[place] = result[:len(place)].double()
            assert result[len(place):].abs().sum() == 0, "pad rows"
        near(whole, want, name)
    group.close()


def test_every_layout_of_a_daemon_ends_as_one():
    for cp, layouts, exchange in ((2, "per-sequence", "all-gather"), (3, "per-document", "needed-only"),
                                  (2, "hybrid", "needed-only"), (2, "ulysses", "all-gather")):
        with world_of(cp=cp, layouts=layouts, sharding={"exchange": exchange}) as world:
            check(world, 1, cp)


def test_pools_of_a_daemon_end_as_one():
    for cp, chunks in ((1, 2), (2, 1)):
        with world_of(dp=2, cp=cp, layouts="per-sequence", plan={"policy": "pool:2"},
                      pools={"head_shards": 2, "block_tokens": 16}) as world:
            check(world, 2, cp, chunks)


def test_all_gathered_takes_a_daemons_batches():
    with world_of(cp=2) as world:
        group = Group(world, 1, 2)
        pads = [group.own(rank, group.k) for rank in range(2)], [group.own(rank, group.v) for rank in range(2)]
        for rank, batch in enumerate(group.batches):
            gathered = iter(pads)
            plan = ba.Plan(batch, exchange=ba.all_gathered(batch, all_gather=lambda t: next(gathered)), **SHAPE)
            out = ba.attention(group.own(rank, group.q), pads[0][rank], pads[1][rank], plan)
            near(out[:len(group.places[rank])], group.exact()[0][group.places[rank]], "out")
        group.close()


def raises(kind, text, call):
    try:
        call()
    except kind as error:
        assert text in str(error), error
        return
    raise AssertionError(f"no {kind.__name__}")


def test_what_does_not_fit_is_refused():
    with world_of(dp=2, cp=1, layouts="per-sequence", plan={"policy": "pool:2"}) as world:
        group = Group(world, 2, 1)
        batch = group.batches[0]
        raises(Unsupported, "ballast.exchange.ExchangePlan", lambda: ba.Plan(batch, **SHAPE))
        transport = bx.Transport(ctypes.c_void_p(), 1, 2, list)
        raises(InvalidArgument, "rank 1 of 2, the batch of rank 0 of 2 of its pool",
               lambda: bx.ExchangePlan(batch, transport, **SHAPE))
        transport = bx.Transport(ctypes.c_void_p(), 0, 2, list)
        raises(InvalidArgument, "planned for 4",
               lambda: bx.ExchangePlan(batch, transport, q_heads=8, kv_heads=2, head_dim=64))
        group.close()


def test_ranks_of_other_plans_are_told_so():
    with world_of(cp=2) as world:
        group = Group(world, 1, 2)

        def run(rank, transport):
            other = dict(SHAPE, head_dim=128) if rank == 1 else SHAPE
            return bx.ExchangePlan(group.batches[rank], transport, **other)
        for error in on_ranks(2, run):
            assert isinstance(error, Disagreement) and "lists" in str(error), error
        group.close()


def test_a_launch_that_fails_is_raised_on_every_rank():
    with world_of(cp=2) as world:
        group = Group(world, 1, 2)

        def run(rank, transport):
            plan = bx.ExchangePlan(group.batches[rank], transport, sm_margin=1000 * rank, **SHAPE)
            return ba.attention(*(group.own(rank, t) for t in (group.q, group.k, group.v)), plan)
        first, second = on_ranks(2, run)
        assert isinstance(second, InvalidArgument) and "sm_margin" in str(second), second
        assert isinstance(first, (Disagreement, Unavailable)), first
        group.close()


for name, test in list(globals().items()):
    if name.startswith("test_"):
        test()
        print("ok", name, flush=True)
