#!/usr/bin/python3
"""A small GPT trained from Ballast, with data, pipeline and context parallelism, on CPUs over gloo.

    python3 examples/trainer.py --dp 2 --pp 2 --cp 2 --steps 50              # starts all ranks
    torchrun --nproc_per_node 8 examples/trainer.py --dp 2 --pp 2 --cp 2     # or is one of them

It is meant to be read. What a trainer has to get right to train on packed, cut and shared sequences is here
once each: rows that see their own document alone (Attention), keys and values that lie on other ranks
(keys_gathered, heads_exchanged, pooled, chains), stages that pass on rows of unequal number (Trainer.forward), a
loss in which every label weighs the same (Trainer.loss), a checkpoint that resumes the stream with the
weights (Trainer.save). tests/e2e/training.py compares its loss and gradients with a plain model that sees
one document at a time.
"""

import argparse
import collections
import json
import os
import sys
import tempfile
from dataclasses import dataclass, field
from typing import Dict, List, NamedTuple, Tuple

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "client", "python"))

import numpy
import torch
import torch.distributed as distributed
from torch import nn
from torch.nn.functional import cross_entropy, gelu

import ballast
import ballast.torch
from ballast import Exchange, Payload


class Mesh(NamedTuple):
    """Sizes; ranks are counted with context-parallel ones innermost."""

    dp: int = 1
    pp: int = 1
    cp: int = 1

    @property
    def ranks(self):
        return self.dp * self.pp * self.cp

    def rank(self, dp, pp, cp):
        return (dp * self.pp + pp) * self.cp + cp

    def place(self, rank):
        return rank // (self.pp * self.cp), rank // self.cp % self.pp, rank % self.cp


# What attention needs of other ranks. Its rows are *units*: one head of one row of q, k, v or the output.
# All ways to share attention are the same three moves, and differ in the lists alone: units travel to where
# they are computed with, each piece is computed, outputs travel home.


@dataclass
class Route:
    """Units that one exchange sends and receives, by rank."""

    sends: Dict[int, torch.Tensor] = field(default_factory=dict)  # numbers of units
    receives: Dict[int, int] = field(default_factory=dict)  # counts of units


@dataclass
class Sharing:
    """The attention of one micro-batch on this rank."""

    dispatch: List[Route]  # one exchange after the other: more than one where ranks pass keys on
    pieces: List[Tuple[torch.Tensor, ...]]  # numbers of q [rows, heads], k and v [keys, kv heads] to be attended
    home: Route
    outputs: torch.Tensor  # [rows, heads]: which unit comes out where; the last one is zero, for pad rows


class Units:
    """Numbers units: first those at hand, then what is received, one rank after the other."""

    def __init__(self, count=0):
        self.count = count
        self._sends = collections.defaultdict(list)
        self._receives = collections.Counter()

    def add(self, *shape):
        first = self.count
        self.count += int(numpy.prod(shape))
        return numpy.arange(first, self.count).reshape(shape)

    def send(self, rank, *numbers):
        assert all((n >= 0).all() for n in numbers), "the plan sends what is not there"
        self._sends[rank] += [n.ravel() for n in numbers]

    def receive(self, rank, *shape):
        numbers = self.add(*shape)
        self._receives[rank] += numbers.size
        return numbers

    def route(self):
        """All that was said since the last one."""
        sends = {rank: torch.from_numpy(numpy.concatenate(n)) for rank, n in self._sends.items()}
        route = Route({r: n for r, n in sends.items() if len(n)}, {r: n for r, n in self._receives.items() if n})
        self._sends.clear()
        self._receives.clear()
        return route


def sharing(dispatch, pieces, home, outputs):
    assert all((numbers >= 0).all() for piece in pieces for numbers in piece), "the plan brings not all that it needs"
    outputs[outputs < 0] = home.count
    return Sharing(dispatch, [tuple(map(torch.from_numpy, piece)) for piece in pieces], home.route(),
                   torch.from_numpy(outputs))


def none_yet(*shape):
    return numpy.full(shape, -1)


def keys_gathered(plan, ranks, heads, kv_heads):
    """Queries stay; K and V come from the ranks of the group: all rows, or those that are needed."""
    units, rows, me = Units(), plan.rows, plan.group_rank
    q, k, v = (units.add(rows, n) for n in (heads, kv_heads, kv_heads))
    keys, values = (none_yet(len(ranks) * rows, kv_heads) for _ in range(2))  # of all rows, rank after rank
    keys[me * rows:(me + 1) * rows], values[me * rows:(me + 1) * rows] = k, v

    def needed(reader, owner):
        if plan.exchange == Exchange.ALL_GATHER:
            return numpy.arange(rows)
        runs = [numpy.arange(run.row, run.row + run.length) for run in plan.key_runs(reader, owner)]
        return numpy.concatenate([numpy.arange(0), *runs])

    for peer, rank in enumerate(ranks):
        if peer != me:
            mine, theirs = needed(peer, me), needed(me, peer)
            units.send(rank, k[mine], v[mine])
            keys[peer * rows + theirs] = units.receive(rank, len(theirs), kv_heads)
            values[peer * rows + theirs] = units.receive(rank, len(theirs), kv_heads)

    order, first = plan.order(), numpy.cumsum([0, *plan.documents.length])
    home, outputs, pieces = Units(), none_yet(rows, heads), []
    for document, start, length, row in plan.fragments:
        seen = order[first[document]:first[document] + start + length]
        pieces.append((q[row:row + length], keys[seen], values[seen]))
        outputs[row:row + length] = home.add(length, heads)
    return sharing([units.route()], pieces, home, outputs)


def heads_exchanged(plan, ranks, heads, kv_heads):
    """Ulysses: every rank computes all rows for its share of the heads."""
    if heads % len(ranks) or kv_heads % len(ranks):
        raise ballast.Unsupported(f"{heads} heads and {kv_heads} K/V heads are not dealt to {len(ranks)} ranks; leave "
                                  "ulysses out of sharding.layouts")
    units, rows, me = Units(), plan.rows, plan.group_rank
    own = [units.add(rows, n) for n in (heads, kv_heads, kv_heads)]

    def share(numbers, peer):
        width = numbers.shape[1] // len(ranks)
        return numbers[:, peer * width:(peer + 1) * width]

    shares = [none_yet(len(ranks) * rows, n.shape[1] // len(ranks)) for n in own]
    for peer, rank in enumerate(ranks):
        for numbers, everyones in zip(own, shares):
            theirs = share(numbers, peer)
            if peer != me:
                units.send(rank, theirs)
                theirs = units.receive(rank, *theirs.shape)
            everyones[peer * rows:(peer + 1) * rows] = theirs

    order, first = plan.order(), numpy.cumsum([0, *plan.documents.length])
    home, outputs, pieces = Units(), none_yet(rows, heads), []
    done = none_yet(len(ranks) * rows, heads // len(ranks))
    for begin, end in zip(first, first[1:]):
        seen = order[begin:end]
        pieces.append(tuple(numbers[seen] for numbers in shares))
        done[seen] = home.add(end - begin, done.shape[1])
    for peer, rank in enumerate(ranks):
        theirs = done[peer * rows:(peer + 1) * rows - plan.shards[peer].pad_rows]
        if peer != me:
            home.send(rank, theirs)
            theirs = home.receive(rank, rows - plan.pad_rows, done.shape[1])
        share(outputs, peer)[:rows - plan.pad_rows] = theirs
    return sharing([units.route()], pieces, home, outputs)


def tile_pieces(tile, lengths):
    """A tile's rows by document: (first key, first row, end)."""
    first = numpy.cumsum([0, *lengths])
    for begin, end in zip(first.tolist(), first[1:].tolist()):
        if begin < tile.row + tile.rows and tile.row < end:
            yield begin, max(begin, tile.row), min(end, tile.row + tile.rows)


def chains(transfers, lengths):
    """Keys are passed on (pools.chain): one document and range of heads after the other, in one order on all ranks."""
    groups = collections.defaultdict(list)
    for t in transfers:
        groups[t.dp, int(numpy.searchsorted(numpy.cumsum(lengths[t.dp]), t.row, "right")), t.head_begin].append(t)
    return [groups[key] for key in sorted(groups)]


def pooled(plan, mesh, stage, heads, kv_heads, any_of):
    """Libra: replicas share their attention. Tiles are computed wherever the plan says: Q goes there, K and V
    are fetched, O comes back. Rows count in the packed sequence of their replica's micro-batch. `any_of` says
    whether something holds on any rank of the stage."""
    pool = plan.pool
    if (heads, kv_heads) != (pool.heads, pool.kv_heads):
        raise ballast.FailedPrecondition(f"this model has {heads} heads and {kv_heads} K/V heads, and its pools are "
                                         f"planned for {pool.heads} and {pool.kv_heads}; set model.q_heads and kv_heads")
    ranks = [mesh.rank(replica.dp, stage, cp) for replica in pool.replicas for cp in range(mesh.cp)]
    peers = [(peer, rank) for peer, rank in enumerate(ranks) if peer != pool.worker]
    units = Units()
    own = [units.add(plan.rows, n) for n in (heads, kv_heads, kv_heads)]
    local = none_yet(plan.tokens_total)  # packed row to row of this rank
    for rank, row in enumerate(plan.order()[:plan.tokens_total].tolist()):
        local[rank] = row % plan.rows if row // plan.rows == plan.group_rank else -1
    here = local >= 0
    q, k, v = ({r.dp: none_yet(r.tokens, n) for r in pool.replicas} for n in (heads, kv_heads, kv_heads))
    for numbers, mine in zip((q, k, v), own):
        numbers[plan.dp][here] = mine[local[here]]

    def block(t):
        return slice(t.row, t.row + t.rows), slice(t.head_begin, t.head_begin + t.head_count)

    def at_hand(t):
        return all((numbers[t.dp][block(t)] >= 0).all() for numbers in ((q,) if t.payload == Payload.Q else (k, v)))

    def move(transfers):
        """One exchange: all that comes, and what goes to ranks that have not to wait; the others' comes back."""
        waiting = {t.worker for t in transfers if t.source == pool.worker and not at_hand(t)}
        for peer, rank in peers:
            for t in (t for t in transfers if t.worker == peer and peer not in waiting):
                for numbers in (q,) if t.payload == Payload.Q else (k, v):
                    units.send(rank, numbers[t.dp][block(t)])
            for t in (t for t in transfers if t.source == peer):
                for numbers in (q,) if t.payload == Payload.Q else (k, v):
                    numbers[t.dp][block(t)] = units.receive(rank, t.rows, t.head_count)
        dispatch.append(units.route())
        return [t for t in transfers if t.worker in waiting]

    dispatch = []
    lengths = {r.dp: plan.documents.length if r.dp == plan.dp else r.lengths for r in pool.replicas}
    away = [t for t in pool.transfers if t.payload != Payload.O]
    if any_of(not all(at_hand(t) for t in away if t.source == pool.worker)):
        for some in [[t for t in away if t.payload == Payload.Q],
                     *chains([t for t in away if t.payload == Payload.KV], lengths)]:
            passed_on = move(some)
            if passed_on:
                move(passed_on)
    else:
        move(away)

    home, pieces = Units(), []
    o = {r.dp: none_yet(r.tokens, heads) for r in pool.replicas}
    width, kv_width = heads // pool.head_shards, max(1, kv_heads // pool.head_shards)
    for tile in (t for t in pool.tiles if t.worker == pool.worker):
        mine = slice(tile.head_shard * width, (tile.head_shard + 1) * width)
        first = tile.head_shard * kv_heads // pool.head_shards
        seen = slice(first, first + kv_width)
        for begin, row, end in tile_pieces(tile, lengths[tile.dp]):
            pieces.append((q[tile.dp][row:end, mine], k[tile.dp][begin:end, seen], v[tile.dp][begin:end, seen]))
            o[tile.dp][row:end, mine] = home.add(end - row, width)
    returned = [t for t in pool.transfers if t.payload == Payload.O]
    for peer, rank in peers:
        for t in (t for t in returned if t.worker == peer):
            home.send(rank, o[t.dp][block(t)])
        for t in (t for t in returned if t.source == peer):
            o[t.dp][block(t)] = home.receive(rank, t.rows, t.head_count)
    outputs = none_yet(plan.rows, heads)
    outputs[local[here]] = o[plan.dp][here]
    return sharing(dispatch, pieces, home, outputs)


def shared(plan, mesh, place, heads, kv_heads, any_of):
    dp, pp, _ = place
    ranks = [mesh.rank(dp, pp, cp) for cp in range(mesh.cp)]
    if plan.pool is not None:
        return pooled(plan, mesh, pp, heads, kv_heads, any_of)
    if plan.exchange == Exchange.ALL_TO_ALL:
        return heads_exchanged(plan, ranks, heads, kv_heads)
    return keys_gathered(plan, ranks, heads, kv_heads)


class AllToAll(torch.autograd.Function):
    """Sends tensors [units, width] to ranks and receives theirs; its backward is its mirror. Counts are the
    plan's, so no sizes are sent. `thread` is a scalar that goes through all exchanges of a micro-batch: the
    backward pass then runs through each of them, in reverse order, on every rank, whatever that one sends."""

    @staticmethod
    def forward(ctx, thread, width, route, *outgoing):
        ctx.width, ctx.route = width, route
        return (thread.clone(), *swap(dict(zip(route.sends, outgoing)), route.receives, width, thread.dtype))

    @staticmethod
    def backward(ctx, thread, *incoming):
        counts = {rank: len(numbers) for rank, numbers in ctx.route.sends.items()}
        back = swap(dict(zip(ctx.route.receives, incoming)), counts, ctx.width, thread.dtype)
        return (thread, None, None, *back)


def swap(outgoing, counts, width, dtype):
    incoming = {rank: torch.empty(count, width, dtype=dtype) for rank, count in counts.items()}
    work = [distributed.irecv(tensor, rank) for rank, tensor in incoming.items()]
    kept = [tensor.contiguous() for tensor in outgoing.values()]
    work += [distributed.isend(tensor, rank) for rank, tensor in zip(outgoing, kept)]
    for one in work:
        one.wait()
    return list(incoming.values())


def exchange(units, thread, route):
    """The units at hand, and behind them those that come."""
    thread, *received = AllToAll.apply(thread, units.shape[1], route, *(units[n] for n in route.sends.values()))
    return torch.cat([units, *received]), thread


def attend(q, k, v):
    """Causal attention of the last rows of a document: q [rows, heads, width], k and v [keys, kv heads, width]."""
    groups = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, 1).transpose(0, 1) for x in (k, v))
    scores = q.transpose(0, 1) @ k.transpose(1, 2) / q.shape[2] ** 0.5
    later = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1 + len(k[0]) - len(q))
    return (scores.masked_fill(later, -torch.inf).softmax(-1) @ v).transpose(0, 1)


class Attention(nn.Module):
    def __init__(self, width, heads, kv_heads):
        super().__init__()
        self.head = width // heads
        self.split = [heads * self.head, kv_heads * self.head, kv_heads * self.head]
        self.qkv = nn.Linear(width, sum(self.split))
        self.out = nn.Linear(width, width)

    def forward(self, x, thread, sharing):
        units = torch.cat([part.reshape(-1, self.head) for part in self.qkv(x).split(self.split, -1)])
        for route in sharing.dispatch:
            units, thread = exchange(units, thread, route)
        done = [attend(units[q], units[k], units[v]).flatten(0, 1) for q, k, v in sharing.pieces]
        units, thread = exchange(torch.cat([units[:0], *done]), thread, sharing.home)
        units = torch.cat([units, units.new_zeros(1, self.head)])
        return self.out(units[sharing.outputs].flatten(1)), thread


class Block(nn.Module):
    def __init__(self, width, heads, kv_heads):
        super().__init__()
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, kv_heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, thread, sharing):
        y, thread = self.attention(self.norm_attention(x), thread, sharing)
        x = x + y
        return x + self.down(gelu(self.up(self.norm_mlp(x)))), thread


class GPT(nn.Module):
    """One stage of it. All stages draw all weights, and keep their own: the model is the same on any mesh."""

    def __init__(self, shape, seed, stage=0, stages=1):
        super().__init__()
        torch.manual_seed(seed)
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.longest, shape.width)
        blocks = [Block(shape.width, shape.heads, shape.kv_heads) for _ in range(shape.layers)]
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)
        first, end = (shape.layers * s // stages for s in (stage, stage + 1))
        self.blocks = nn.ModuleDict({str(i): blocks[i] for i in range(first, end)})
        if stage > 0:
            self.tokens = self.positions = None
        if stage < stages - 1:
            self.norm = self.head = None

    def forward(self, batch, x, thread, sharing):
        if self.tokens is not None:
            x = self.tokens(batch.tokens) + self.positions(batch.positions)
        for block in self.blocks.values():
            x, thread = block(x, thread, sharing)
        return (x if self.head is None else self.head(self.norm(x))), thread


class Shape(NamedTuple):
    vocabulary: int = 50257
    longest: int = 1024  # positions: the window, at least
    layers: int = 2
    width: int = 64
    heads: int = 4
    kv_heads: int = 2


class Trainer:
    """One rank. A step is `forward_backward(self.step())`, then `update`."""

    def __init__(self, mesh, rank, shape, socket=None, seed=0, dtype=torch.float32, lr=1e-3, **options):
        self.mesh, self.rank, self.place, self.shape = mesh, rank, mesh.place(rank), shape
        dp, pp, cp = self.place
        self.first, self.last = pp == 0, pp == mesh.pp - 1
        parts = [part for part, here in (("tokens", self.first), ("labels", self.last)) if here] or ["plan"]
        self.data = ballast.torch.IterableDataset(socket, dp=dp, pp=pp, cp=cp, parts=parts, commit="manual", **options)
        job = self.data.client.job
        if (job.dp, job.pp, job.cp, job.tp) != (*mesh, 1):
            raise ballast.FailedPrecondition(f"the daemon's mesh is dp {job.dp}, pp {job.pp}, cp {job.cp}, tp {job.tp}, "
                                             f"and this trainer was started with {mesh}; give it the same")
        self.model = GPT(shape, seed, pp, mesh.pp).to(dtype)
        self.dtype = dtype
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.1)
        self.batches = None
        groups = [distributed.new_group([mesh.rank(d, p, c) for d in range(mesh.dp) for c in range(mesh.cp)])
                  for p in range(mesh.pp)]  # every rank makes every group
        self.replicas = groups[pp]
        self.sending = []

    def step(self):
        """The micro-batches of the next step; none at the end of the data."""
        if self.batches is None:
            self.batches = iter(self.data)
        for batch in self.batches:
            if self.first:
                self.check(batch)
            if batch.index == 0:  # before anything is exchanged
                self.data.client.agree(ballast.torch.all_gather())
            yield batch
            if batch.last:
                return

    def check(self, batch):
        """Whether the embeddings have a row for everything that is looked up."""
        for name, column in (("vocabulary", batch.tokens), ("longest", batch.positions)):
            most = int(column.max()) if len(column) else 0
            if most >= getattr(self.shape, name):
                raise ballast.InvalidArgument(f"step {batch.step}, index {batch.index} has {name} {most + 1} at least, and this "
                                              f"trainer was started with --{name} {getattr(self.shape, name)}")

    def any_of(self, here):
        flag = torch.tensor(float(here))
        distributed.all_reduce(flag, group=self.replicas)
        return flag.item() > 0

    def neighbour(self, stages):
        dp, pp, cp = self.place
        return self.mesh.rank(dp, pp + stages, cp)

    def send(self, tensor, stages):
        self.sending.append((distributed.isend(tensor, self.neighbour(stages)), tensor))

    def receive(self, batch, stages):
        """Micro-batches differ in rows, and every stage knows how many from the plan."""
        tensor = torch.empty(batch.rows, self.shape.width, dtype=self.dtype)
        distributed.recv(tensor, self.neighbour(stages))
        return tensor

    def loss(self, batch, logits):
        """This rank's part of the step's loss: a sum, over what the whole step is divided by. So each label
        weighs the same, however many of them its micro-batch has."""
        return cross_entropy(logits, batch.labels, ignore_index=-100, reduction="sum") / batch.loss_denominator

    def forward(self, batch):
        x = None if self.first else self.receive(batch, -1).requires_grad_()
        thread = torch.zeros((), dtype=self.dtype, requires_grad=True)
        sharing = shared(batch.plan, self.mesh, self.place, self.shape.heads, self.shape.kv_heads, self.any_of)
        out, through = self.model(batch, x, thread, sharing)
        if self.last:
            out = self.loss(batch, out)
        else:
            self.send(out.detach(), 1)
        return batch, x, out, through

    def backward(self, batch, x, out, thread):
        gradient = torch.ones_like(out) if self.last else self.receive(batch, 1)
        torch.autograd.backward([out, thread], [gradient, torch.zeros_like(thread)])
        if not self.first:
            self.send(x.grad, -1)
        return out.detach().double() if self.last else 0.0

    def forward_backward(self, batches):
        """One forward, one backward, as soon as the later stages are busy. Returns the step's loss and leaves
        its gradients, the same on all ranks of a stage; None at the end of the data."""
        self.optimizer.zero_grad(set_to_none=False)
        running, loss, taken = collections.deque(), torch.zeros((), dtype=torch.float64), 0
        for taken, batch in enumerate(batches, 1):
            running.append(self.forward(batch))
            if len(running) > self.mesh.pp - 1 - self.place[1]:
                loss += self.backward(*running.popleft())
        while running:
            loss += self.backward(*running.popleft())
        for work, _ in self.sending:
            work.wait()
        self.sending = []
        if taken == 0:
            return None
        self.reduce()
        distributed.all_reduce(loss)
        return loss.item()

    def gradients(self):
        return {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in self.model.named_parameters()}

    def reduce(self):
        """Sums gradients over data- and context-parallel ranks; the loss was divided by all their labels."""
        whole = torch.cat([gradient.flatten() for gradient in self.gradients().values()])
        distributed.all_reduce(whole, group=self.replicas)
        for p, gradient in zip(self.model.parameters(), whole.split([p.numel() for p in self.model.parameters()])):
            p.grad = gradient.view_as(p).clone()

    def update(self, step):
        self.optimizer.step()
        self.data.commit(step)

    # checkpoints: a file for each stage and step

    def checkpoint(self, folder, step, stage=None):
        return os.path.join(folder, f"step-{step:08d}.stage-{self.place[1] if stage is None else stage}.pt")

    def save(self, folder, step):
        """Before step `step`: weights, optimizer, and where the stream stands, with the daemon's state."""
        dp, _, cp = self.place
        if dp == 0 and cp == 0:
            path = self.checkpoint(folder, step)
            with open(path + ".new", "wb") as file:
                torch.save({"step": step, "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
                            "data": self.data.state_dict()}, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(path + ".new", path)

    def load(self, folder):
        """The newest step that every stage has a file of, as rank 0 sees it; its number, 0 without any."""
        steps = sorted({int(name[5:13]) for name in os.listdir(folder) if name.endswith(".pt")}, reverse=True)
        newest = [step for step in steps
                  if all(os.path.exists(self.checkpoint(folder, step, s)) for s in range(self.mesh.pp))][:1]
        step = torch.tensor((newest or [0])[0])
        distributed.broadcast(step, 0)
        if step > 0:
            saved = torch.load(self.checkpoint(folder, int(step)))
            self.model.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.data.load_state_dict(saved["data"])
        return int(step)


def train(rank, options):
    """What a rank does."""
    mesh = Mesh(options.dp, options.pp, options.cp)
    shape = Shape(options.vocabulary, options.longest, options.layers, options.width, options.heads, options.kv_heads)
    trainer = Trainer(mesh, rank, shape, options.socket, options.seed, getattr(torch, options.dtype), options.lr)
    step = trainer.load(options.checkpoints) if options.checkpoints else 0
    while step < options.steps:
        taken = []
        loss = trainer.forward_backward(taken.append(batch) or batch for batch in trainer.step())
        if loss is None:
            break
        step = taken[0].step
        trainer.update(step)
        if rank == 0:
            line = {"step": step, "loss": loss, "plan_digest": taken[0].plan.plan_digest.hex()}
            print(json.dumps(line), flush=True)
        step += 1
        if options.checkpoints and (step % options.save_every == 0 or step == options.steps):
            trainer.save(options.checkpoints, step)
    trainer.data.close()


def run(rank, ranks, rendezvous, function, arguments):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=ranks)
    function(rank, *arguments)
    distributed.barrier()
    distributed.destroy_process_group()


def launch(function, ranks, *arguments):
    """function(rank, *arguments) in a process for each rank of this machine, forked: torch is loaded once."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(run, (ranks, f"file://{folder}/ranks", function, arguments), ranks,
                                              start_method="fork")


def main():
    parser = argparse.ArgumentParser(description="Trains a small GPT from Ballast on CPUs; one JSON line a step.")
    for name, help in (("dp", "data-parallel replicas"), ("pp", "pipeline stages"), ("cp", "context-parallel ranks")):
        parser.add_argument(f"--{name}", type=int, default=1, help=f"{help}, as the daemon has them (1)")
    parser.add_argument("--socket", help="the daemon's; $BALLAST_SOCKET otherwise")
    parser.add_argument("--steps", type=int, default=100, help="train up to this step (100)")
    parser.add_argument("--checkpoints", metavar="DIR", help="save there, and resume from the newest complete one")
    parser.add_argument("--save-every", type=int, default=10, metavar="STEPS", help="(10)")
    parser.add_argument("--seed", type=int, default=0, help="of the weights (0)")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--lr", type=float, default=1e-3, help="AdamW's learning rate (0.001)")
    for name, default in Shape()._asdict().items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=default, metavar="N", help=f"of the model ({default})")
    options = parser.parse_args()
    if options.checkpoints:
        os.makedirs(options.checkpoints, exist_ok=True)
    ranks = Mesh(options.dp, options.pp, options.cp).ranks
    if "RANK" in os.environ:  # torchrun
        if int(os.environ["WORLD_SIZE"]) != ranks:
            parser.error(f"{os.environ['WORLD_SIZE']} ranks were started, and dp * pp * cp is {ranks}")
        run(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "env://", train, (options,))
    else:
        launch(train, ranks, options)


if __name__ == "__main__":
    main()
