#!/usr/bin/python3
"""ballast.torch: tensors, a dataset that is resumed at any batch, and the forms of attention libraries,
each run by a plain stand-in for its library and compared with attention of one document at a time."""

import importlib
import io
import os
import sys
import types

from world import FULL, ROOT, Skip, main, write_corpus

sys.path.insert(0, os.path.join(ROOT, "client", "python"))
try:
    import torch
except ImportError:
    torch = None
if torch is None:
    print("skip  no torch for this python: install python3-torch")
    sys.exit(77)
import numpy  # noqa: E402

import ballast  # noqa: E402
import ballast.torch as bt  # noqa: E402
from python_client import raises, run_programs, world_of  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

torch.set_num_threads(1)
HEADS, KV_HEADS, WIDTH = 4, 2, 8


def key(batch):
    """What a batch is, to be compared."""
    return (batch.step, batch.index, batch.tokens.tolist(), batch.labels.tolist(), batch.positions.tolist(),
            batch.fragments.tolist(), batch.loss_denominator)


def reference(world, cp=0):
    """Every batch, from one uninterrupted client that commits nothing."""
    found = []
    with ballast.Client(world.socket, cp=cp, start=(0, 0)) as client:
        for step in client:
            found += [key(bt.tensors(batch)) for batch in step]
            if step.number == 9:
                return found
    return found


def take(dataset, count, **loader):
    """The next `count` batches, through a loader, and its iterator, which has to live on."""
    batches = iter(DataLoader(dataset, batch_size=None, **loader))
    return [key(next(batches)) for _ in range(count)], batches


def test_tensors_are_what_is_gathered():
    with world_of(cp=2) as world:
        world.start()
        with ballast.Client(world.socket, cp=1) as client:
            batch = client.next()
            tensors = bt.tensors(batch)
            assert tensors.tokens.dtype == torch.int64 and tensors.cu_seqlens_q.dtype == torch.int32
            for column in ("tokens", "labels", "positions"):
                assert (getattr(tensors, column).numpy() == batch.gather(column)).all()
            assert (bt.tensors(batch, dtype=torch.int32).tokens == tensors.tokens).all()
            rows = [[f.document, f.start, f.length, f.row] for f in batch.fragments]
            assert tensors.fragments.tolist() == rows and tensors.rows == batch.rows and not tensors.last
            assert (bt.view(batch).numpy().view("uint16") == batch.view()).all()
            moved = tensors.to("cpu")
            assert moved.plan is batch and (moved.labels == tensors.labels).all()
            batch.release()
            assert len(tensors.plan.order()) == 2 * batch.rows
        with ballast.Client(world.socket, cp=0, parts="plan") as client:
            middle = bt.tensors(client.next())
            assert middle.tokens is None and middle.labels is None and len(middle.positions) == middle.rows
        if torch.cuda.is_available():
            assert (tensors.to("cuda").tokens.cpu() == tensors.tokens).all()


def test_a_dataset_is_the_stream_with_and_without_a_worker():
    with world_of() as world:
        world.start()
        known = reference(world)
        dataset = bt.IterableDataset(world.socket, start=(0, 0))
        found, batches = take(dataset, 10)
        assert found == known[:10] and world.live("status")["committed_step"] == 2
        dataset.close()
        for context in ("fork", "spawn") if FULL else ("fork",):
            dataset = bt.IterableDataset(world.socket, start=(2, 0))
            found, batches = take(dataset, 6, num_workers=1, multiprocessing_context=context)
            assert found == known[8:14]
            raises(ballast.FailedPrecondition, dataset.state_dict, "a worker iterates", "StatefulDataLoader")
            batches._shutdown_workers()
            raises(ballast.FailedPrecondition, dataset.state_dict, "a worker iterates")
        dataset = bt.IterableDataset(world.socket, start=(2, 0))
        assert dataset.state_dict()["step"] == 2  # connects, here
        raises(ballast.AlreadyExists, lambda: take(dataset, 1, num_workers=1), f"by pid {os.getpid()}")
        dataset.close()


def within_worker(dataset, workers):
    """The first batch, as if in one of so many workers."""
    known = bt.get_worker_info
    bt.get_worker_info = lambda: types.SimpleNamespace(num_workers=workers)
    try:
        return next(iter(dataset))
    finally:
        bt.get_worker_info = known


def test_commits_can_be_the_trainers():
    with world_of() as world:
        world.start()
        dataset = bt.IterableDataset(world.socket, commit="manual")
        for batch in DataLoader(dataset, batch_size=None):
            if batch.last:
                dataset.commit(batch.step, [ballast.Measured(batch.index, total_ns=7)])
                if batch.step == 2:
                    break
        assert world.live("status")["committed_step"] == 3
        dataset.close()
        raises(ballast.FailedPrecondition, lambda: dataset.commit(3), "num_workers=0")
        raises(ballast.InvalidArgument, lambda: within_worker(dataset, 1), "commit='manual' needs num_workers=0")
        raises(ballast.InvalidArgument, lambda: within_worker(bt.IterableDataset(world.socket), 2), "a rank is one process")


def saved(state):
    """Through a checkpoint file."""
    file = io.BytesIO()
    torch.save({"data": state}, file)
    file.seek(0)
    return torch.load(file)["data"]


def test_a_dataset_is_resumed_at_any_batch_on_a_node_that_knows_nothing():
    with world_of(daemon={"lease": "200ms"}) as world:
        world.start()
        known = reference(world)
        states = []
        dataset = bt.IterableDataset(world.socket, start=(0, 0))
        states.append(saved(dataset.state_dict()))
        for i, _ in enumerate(DataLoader(dataset, batch_size=None)):
            states.append(saved(dataset.state_dict()))
            if i == 12:
                break
        dataset.close()
        world.stop()
        world.state = world.state + ".new"
        with open(world.config_path) as f:
            text = f.read()
        with open(world.config_path, "w") as f:
            f.write(text.replace("/state\n", "/state.new\n"))
        world.start()
        for at in (0, 7, 13, 4):
            dataset = bt.IterableDataset(world.socket)
            dataset.load_state_dict(states[at])
            assert dataset.state_dict()["step"] == at // 4
            found, batches = take(dataset, 5)
            assert found == known[at:at + 5], at
            again = dataset.state_dict()
            assert (again["step"], again["index"]) == divmod(at + 5, 4)
            dataset.close()
        raises(ballast.InvalidArgument, lambda: dataset.load_state_dict({"version": 9}))


def test_all_ranks_of_a_group_resume_together():
    with world_of(cp=2, daemon={"lease": "200ms"}) as world:
        world.start()
        known = [reference(world, cp) for cp in range(2)]
        datasets = [bt.IterableDataset(world.socket, cp=cp, start=(0, 0)) for cp in range(2)]
        streams = [iter(d) for d in datasets]
        for at in range(10):
            for stream in streams:
                next(stream)
        states = [d.state_dict() for d in datasets]
        for dataset in datasets:
            dataset.close()
        datasets = [bt.IterableDataset(world.socket, cp=cp) for cp in range(2)]
        for dataset, state in zip(datasets, states):
            dataset.load_state_dict(state)
        streams = [iter(d) for d in datasets]
        for at in range(10, 16):
            for stream, expected in zip(streams, known):
                assert key(next(stream)) == expected[at]
        datasets[0].client.agree(lambda mine: [mine, datasets[1].client.agreement()])
        for dataset in datasets:
            dataset.close()


def test_torchdatas_stateful_loader_saves_and_resumes_it():
    try:
        stateful = importlib.import_module("torchdata.stateful_dataloader").StatefulDataLoader
    except ImportError as reason:
        raise Skip(f"{reason}: pip install --no-deps torchdata==0.8.0")
    with world_of(daemon={"lease": "200ms"}) as world:
        world.start()
        known = reference(world)
        for workers in (0, 1):
            loader = stateful(bt.IterableDataset(world.socket, start=(0, 0)), batch_size=None, num_workers=workers)
            batches = iter(loader)
            assert [key(next(batches)) for _ in range(6)] == known[:6]
            state = saved(loader.state_dict())
            loader.dataset.close()
            del batches, loader
            dataset = bt.IterableDataset(world.socket)
            loader = stateful(dataset, batch_size=None, num_workers=workers)
            loader.load_state_dict(state)
            batches = iter(loader)
            assert [key(next(batches)) for _ in range(6)] == known[6:12]
            dataset.close()
            del batches, loader


def qkv(batch, generator):
    """Random projections of the whole packed sequence, float64."""
    tokens = batch.tokens_total
    shapes = ((tokens, HEADS, WIDTH), (tokens, KV_HEADS, WIDTH), (tokens, KV_HEADS, WIDTH))
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def attend(q, k, v):
    """Causal attention of the last len(q) rows of len(k)."""
    k, v = (x.repeat_interleave(HEADS // KV_HEADS, 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) / WIDTH ** 0.5
    late = torch.arange(len(k))[None, :] > torch.arange(len(q))[:, None] + len(k) - len(q)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(late, -torch.inf).softmax(-1), v)


def flash_attn_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal):
    """What flash_attn_varlen_func computes; strict about its arguments."""
    assert causal and cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32 and len(cu_seqlens_q) == len(cu_seqlens_k)
    assert cu_seqlens_q[0] == cu_seqlens_k[0] == 0 and cu_seqlens_q[-1] == len(q) and cu_seqlens_k[-1] == len(k)
    assert cu_seqlens_q.diff().max() == max_seqlen_q and cu_seqlens_k.diff().max() == max_seqlen_k
    pairs = [c.tolist() for c in (cu_seqlens_q, cu_seqlens_k)]
    return torch.cat([attend(q[a:b], k[c:d], v[c:d]) for a, b, c, d in zip(pairs[0], pairs[0][1:], pairs[1], pairs[1][1:])])


def one_by_one(batch, q, k, v):
    cut = numpy.cumsum([0, *batch.documents.length])
    return torch.cat([attend(*(x[a:b] for x in (q, k, v))) for a, b in zip(cut, cut[1:])])


def scattered(batch, whole):
    """Each rank's rows of something of the packed sequence; pad rows zero."""
    padded = torch.cat([whole, torch.zeros(batch.rows * batch.group_ranks - len(whole), *whole.shape[1:])])
    out = torch.empty_like(padded)
    out[torch.from_numpy(batch.order().astype("int64"))] = padded
    return out.reshape(batch.group_ranks, batch.rows, *whole.shape[1:])


def same(a, b):
    assert a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=1e-12)


def group(world, cp):
    clients = [ballast.Client(world.socket, cp=c, start=(0, 0)) for c in range(cp)]
    batches = [client.next() for client in clients]
    tokens = [torch.from_numpy(batch.tokens("int64")) for batch in batches]
    return clients, batches, tokens


def flex_attend(form, q, k, v):
    """What flex_attention computes, of the whole mask."""
    met = form.mask_mod(0, 0, torch.arange(len(q))[:, None], torch.arange(len(k))[None, :])
    assert met.shape == (form.rows, form.keys)
    k, v = (x.repeat_interleave(HEADS // KV_HEADS, 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) / WIDTH ** 0.5
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~met, -torch.inf).softmax(-1).nan_to_num(0), v)


def test_varlen_and_flex_forms_compute_every_layout():
    generator = torch.Generator().manual_seed(1)
    for cp, layouts in ((1, "per-sequence"), (2, "per-sequence"), (4, "per-document"), (2, "variable-degree"), (2, "hybrid")):
        with world_of(cp=cp, sharding={"layouts": layouts}, plan={"window": 512}) as world:
            world.start()
            clients, batches, _ = group(world, cp)
            q, k, v = qkv(batches[0], generator)
            expected = scattered(batches[0], one_by_one(batches[0], q, k, v))
            q, k, v = (scattered(batches[0], x) for x in (q, k, v))
            for rank, batch in enumerate(batches):
                form = bt.flash_attention(bt.tensors(batch))
                keys, values = (k[rank][:form.rows], v[rank][:form.rows]) if form.keys is None else (
                    x.flatten(0, 1)[form.keys] for x in (k, v))
                same(flash_attn_varlen(q[rank][:form.rows], keys, values, **form.arguments), expected[rank][:form.rows])
                same(flex_attend(bt.flex_attention(batch), q[rank], *(x.flatten(0, 1) for x in (k, v))), expected[rank])
            for client in clients:
                client.close()


def te_partition(cu_seqlens, rank, ranks):
    """TransformerEngine's thd_get_partitioned_indices."""
    rows = []
    for a, b in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist()):
        assert (b - a) % (2 * ranks) == 0
        chunk = (b - a) // (2 * ranks)
        rows += [*range(a + rank * chunk, a + (rank + 1) * chunk)]
        rows += [*range(a + (2 * ranks - 1 - rank) * chunk, a + (2 * ranks - rank) * chunk)]
    return rows


def test_whole_document_forms_deal_rows_as_their_libraries_do():
    documents = [list(range(1, 1 + n)) for n in [256, 64, 512, 32] * 20]
    for cp in (1, 2, 4):
        with world_of(cp=cp, sharding={"layouts": "per-document"}) as world:
            write_corpus(os.path.join(world.dir, "d"), documents)
            world.start()
            clients, batches, tokens = group(world, cp)
            whole = torch.from_numpy(batches[0].view().astype("int64"))
            for rank, batch in enumerate(batches):
                packed = bt.megatron(batch)
                assert packed["qkv_format"] == "thd" and packed["max_seqlen_kv"] == int(batch.documents.length.max())
                assert (whole[te_partition(packed["cu_seqlens_q_padded"], rank, cp)] == tokens[rank]).all()
                keywords = bt.transformer_engine(batch, cp_comm_type="a2a", heads=8, kv_heads=4)
                assert keywords["attn_mask_type"] == "padding_causal" and packed["cu_seqlens_q"].dtype == torch.int32
                zigzag = bt.ring_zigzag(batch)
                assert zigzag["cu_seqlens"][-1] == batch.rows and zigzag["max_seqlen"] * cp == packed["max_seqlen_q"]
                if cp > 1:
                    raises(ballast.Unsupported, lambda: bt.transformer_engine(batch, cp_comm_type="a2a", heads=8, kv_heads=1),
                           "kv_heads is 1")
                    raises(ballast.Unsupported, lambda: bt.ring_llama3(batch), "ulysses")
            del whole
            for client in clients:
                client.close()


def test_llama3s_form_computes_contiguous_slices():
    generator = torch.Generator().manual_seed(2)
    with world_of(cp=2, sharding={"layouts": "ulysses"}, plan={"window": 512}) as world:
        world.start()
        clients, batches, _ = group(world, 2)
        q, k, v = qkv(batches[0], generator)
        expected = one_by_one(batches[0], q, k, v)
        pad = torch.zeros(2 * batches[0].rows - len(q), HEADS, WIDTH)
        q, k, v = (torch.cat([x, pad[:, :x.shape[1]]]) for x in (q, k, v))
        for rank, batch in enumerate(batches):
            form = bt.ring_llama3(batch, kv_heads=KV_HEADS)
            assert form.pop("heads_k_stride") == 1
            local = form.pop("local_k_slice")
            mine = slice(rank * batch.rows, (rank + 1) * batch.rows)
            # the library masks by the end of each slice of keys: the last document's keys end with its queries
            out = flash_attn_varlen(q[mine], k[local], v[local], **form)
            rows = batch.rows - batch.pad_rows
            same(out[:rows], expected[mine][:rows])
            same(flex_attend(bt.flex_attention(batch), q, k, v)[:len(expected)], expected)
            whole = bt.flash_attention(batch)
            assert whole.rows == batch.tokens_total and whole.arguments["cu_seqlens_q"][-1] == whole.rows
            raises(ballast.Unsupported, lambda: bt.ring_llama3(batch, heads_k_stride=2, kv_heads=3), "there are 3")
            raises(ballast.Unsupported, lambda: bt.megatron(batch), "per-document")
        for client in clients:
            client.close()


def test_what_does_not_divide_or_is_shared_in_a_pool_is_refused():
    with world_of(cp=2, sharding={"layouts": "per-document"}) as world:
        world.start()
        clients, batches, _ = group(world, 2)
        for form in (bt.megatron, bt.transformer_engine, bt.ring_zigzag):
            raises(ballast.Unsupported, lambda: form(batches[0]), "multiple of 4 tokens")
        for client in clients:
            client.close()
    with world_of(dp=2, cp=2, plan={"policy": "pool:2"}) as world:
        world.start()
        with ballast.Client(world.socket) as client:
            batch = client.next()
            for form in (bt.megatron, bt.transformer_engine, bt.ring_zigzag, bt.ring_llama3, bt.flash_attention, bt.flex_attention):
                raises(ballast.Unsupported, lambda: form(batch), "pool")


def test_the_program_of_the_document_runs():
    with world_of(epochs=1) as world:
        world.start()
        run_programs(world, "docs/python.md", torch=True)


if __name__ == "__main__":
    main(globals())
