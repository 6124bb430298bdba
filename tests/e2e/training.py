#!/usr/bin/python3
"""The example trainer: whatever the plan and the mesh, its loss and gradients are those of a plain model that
sees one document at a time, and killed or resized jobs go on with the loss they would have had."""

import contextlib
import functools
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback

import numpy

from world import FULL, ROOT, Oracle, World, main, synthetic_documents, write_corpus

try:
    import torch
except ImportError:
    print("skip  no torch for this python: install python3-torch")
    sys.exit(77)

sys.path.insert(0, os.path.join(ROOT, "examples"))
import trainer as example  # noqa: E402
from trainer import GPT, Mesh, Shape, Trainer  # noqa: E402

torch.set_num_threads(1)
SHAPE = Shape(vocabulary=61, longest=128, layers=3, width=32, heads=8, kv_heads=4)
SEED = 3
STEPS = 2 if FULL else 1
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
LAYOUTS = ("per-sequence", "per-document", "variable-degree", "hybrid", "ulysses")


def world_of(policy, mesh, layouts="per-sequence,per-document", exchange="all-gather", chain="off", **plan):
    world = World()
    prefix = os.path.join(world.dir, "d")
    write_corpus(prefix, [d % SHAPE.vocabulary for d in synthetic_documents(11, 600, 300)])
    world.config([("d", prefix, 1)], {
        "plan": {"policy": policy, "window": SHAPE.longest, "micro_batches": 4, "tokens_max": "2w", **plan},
        "parallel": mesh._asdict(), "sharding": {"layouts": layouts, "exchange": exchange},
        "model": {"q_heads": SHAPE.heads, "kv_heads": SHAPE.kv_heads, "head_dim": 64, "cost": "L2/32"},
        "pools": {"block_tokens": 16, "chain": chain}, "corpus": {"shuffle": "full"}, "daemon": {"lease": "2s"}})
    world.prefix = prefix
    return world


# The plain model: one document, one process, every key in its place. It shares nothing with the example but
# names and shapes of weights.


def plain_attention(weights, name, x):
    qkv = x @ weights[name + ".qkv.weight"].T + weights[name + ".qkv.bias"]
    head, groups, rows = SHAPE.width // SHAPE.heads, SHAPE.heads // SHAPE.kv_heads, len(x)
    q = qkv[:, :SHAPE.width]
    k, v = qkv[:, SHAPE.width:].chunk(2, 1)
    out = []
    for h in range(SHAPE.heads):
        mine, theirs = slice(h * head, (h + 1) * head), slice(h // groups * head, (h // groups + 1) * head)
        scores = q[:, mine] @ k[:, theirs].T / head ** 0.5
        scores = scores + torch.full((rows, rows), -torch.inf).triu(1)
        out.append(scores.softmax(1) @ v[:, theirs])
    return torch.cat(out, 1) @ weights[name + ".out.weight"].T + weights[name + ".out.bias"]


def plain_logits(weights, tokens):
    def norm(name, x):
        return torch.nn.functional.layer_norm(x, x.shape[1:], weights[name + ".weight"], weights[name + ".bias"])

    x = weights["tokens.weight"][tokens] + weights["positions.weight"][:len(tokens)]
    for i in range(SHAPE.layers):
        block = f"blocks.{i}."
        x = x + plain_attention(weights, block + "attention", norm(block + "norm_attention", x))
        hidden = norm(block + "norm_mlp", x) @ weights[block + "up.weight"].T + weights[block + "up.bias"]
        hidden = torch.nn.functional.gelu(hidden)
        x = x + hidden @ weights[block + "down.weight"].T + weights[block + "down.bias"]
    return norm("norm", x) @ weights["head.weight"].T


def document_losses(world, plan, weights):
    """Of every document part of a step: the sum of its labels' losses, and how many there are."""
    oracle = Oracle([world.prefix])
    for micro_batch in plan["micro_batches"]:
        for document in micro_batch["documents"]:
            whole, start, end = oracle.part(document)
            labels = torch.from_numpy(whole[start + 1:end + 1].astype("int64"))
            logits = plain_logits(weights, torch.from_numpy(whole[start:end].astype("int64")))
            losses = -logits.log_softmax(1)[torch.arange(len(labels)), labels]
            yield micro_batch, losses.sum(), len(labels)


@functools.lru_cache
def initial_weights():
    torch.set_default_dtype(torch.float32)
    return {name: p.double() for name, p in GPT(SHAPE, SEED).state_dict().items()}


def plain_step(world, plan):
    """The loss of a step and its gradients, in float64, one document at a time."""
    weights = {name: p.clone().requires_grad_() for name, p in initial_weights().items()}
    total = 0.0
    for _, loss, _ in document_losses(world, plan, weights):
        loss = loss / plan["loss_denominator"]
        loss.backward()
        total += loss.item()
    return total, {name: p.grad for name, p in weights.items()}


def off(found, expected):
    return float((found.double() - expected).norm() / expected.norm())


def compare(found, expected, tolerance, what):
    """The worst relative difference."""
    (loss, gradients), (plain, plain_gradients) = found, expected
    assert gradients.keys() == plain_gradients.keys()
    worst = {name: off(gradient, plain_gradients[name]) for name, gradient in gradients.items()}
    worst["loss"] = abs(loss - plain) / abs(plain)
    name = max(worst, key=worst.get)
    assert worst[name] <= tolerance, f"{what}: {name} is off by {worst[name]:.2e}"
    return worst[name]


def train_steps(rank, mesh, socket, folder, kind=Trainer, dtypes=(torch.float64, torch.float32)):
    """The gradients of some steps at the initial weights; each stage leaves its own in a file."""
    trainer = kind(mesh, rank, SHAPE, socket, SEED, start=(0, 0))
    weights = {name: p.double() for name, p in trainer.model.state_dict().items()}
    found = []
    for step in range(STEPS):
        batches = list(trainer.step())
        for dtype in dtypes:
            trainer.dtype = dtype
            trainer.model.to(dtype).load_state_dict(weights)
            trainer.optimizer.zero_grad(set_to_none=True)
            loss = trainer.forward_backward(batches)
            found.append((loss, {name: gradient.clone() for name, gradient in trainer.gradients().items()}))
    if trainer.place[0] == trainer.place[2] == 0:
        torch.save(found, os.path.join(folder, f"stage.{trainer.place[1]}"))
    trainer.data.close()


def steps_of(world, mesh, **options):
    """[(loss, gradients of all stages)] for each step and dtype."""
    example.launch(functools.partial(train_steps, **options), mesh.ranks, mesh, world.socket, world.dir)
    stages = [torch.load(os.path.join(world.dir, f"stage.{s}")) for s in range(mesh.pp)]
    return [(at[0][0], {name: g for _, gradients in at for name, g in gradients.items()}) for at in zip(*stages)]


def passes_on(plan):
    """Whether some worker gets keys that it sends further."""
    for pool in plan["pools"]:
        keys = [t for t in pool["transfers"] if t["payload"] == "PAYLOAD_KV"]
        for a, b in itertools.product(keys, keys):
            same = all(a[k] == b[k] for k in ("dp", "head_begin"))
            if same and a["worker"] == b["source"] and a["row"] < b["row"] + b["rows"] and b["row"] < a["row"] + a["rows"]:
                return True
    return False


def same_mathematics(policy, mesh, layouts=None, exchange="all-gather", chain="off", **plan):
    layouts = {} if layouts is None else {"layouts": layouts}
    with world_of(policy, mesh, exchange=exchange, chain=chain, **layouts, **plan) as world:
        world.start()
        found = iter(steps_of(world, mesh))
        for step in range(STEPS):
            plan = world.plan(step)
            assert passes_on(plan) if chain == "on" and step == 0 else chain == "on" or not passes_on(plan)
            expected = plain_step(world, plan)
            for dtype, tolerance in TOLERANCE.items():
                what = (policy, mesh, layouts, exchange, chain, step, dtype)
                yield dtype, compare(next(found), expected, tolerance, what)


def unpooled():
    """Every policy, mesh, layout and exchange without pools."""
    for policy, dp, pp in itertools.product(("plain", "wlb:bands", "wlb:level"), (1, 2), (1, 2)):
        yield policy, Mesh(dp, pp, 1)
        for cp, layout, exchange in itertools.product((2, 4), LAYOUTS, ("all-gather", "needed-only")):
            if layout != "ulysses" or exchange == "all-gather":
                yield policy, Mesh(dp, pp, cp), layout, exchange


POOLED = [(policy, Mesh(dp, pp, cp)) for policy in ("pool:2", "wlb:level+pool:2", "pool:1")
          for dp in (1, 2) for pp in (1, 2) for cp in (1, 2, 4) if dp == 2 or policy == "pool:1"]
CHAINED = [(policy, Mesh(2, pp, cp), None, "all-gather", "on") for policy in ("pool:2", "wlb:level+pool:2")
           for pp in (1, 2) for cp in (2, 4)]
OTHERS = [
    ("fixed:2", Mesh(1, 1, 2)),
    ("wlb:none", Mesh(1, 2, 2), "variable-degree", "needed-only"),
    ("wlb:bands+pool:2", Mesh(2, 1, 2), None, "all-gather", "on"),
    ("pool:4", Mesh(4, 1, 2), None, "all-gather", "on"),
    ("pool:2", Mesh(4, 1, 1)),
]
COVER = [
    ("plain", Mesh()),
    ("wlb:level", Mesh(2, 1, 1)),
    ("wlb:bands", Mesh(1, 2, 1)),
    ("wlb:level", Mesh(1, 1, 4), "per-document", "needed-only"),
    ("plain", Mesh(1, 1, 4), "hybrid", "all-gather"),
    ("wlb:level", Mesh(1, 2, 2), "variable-degree", "all-gather"),
    ("wlb:bands", Mesh(2, 2, 2), "per-sequence", "needed-only"),
    ("wlb:level", Mesh(1, 2, 4), "ulysses", "all-gather"),
    ("pool:2", Mesh(2, 1, 2), None, "all-gather", "on"),
    ("wlb:level+pool:2", Mesh(2, 2, 2)),
]


def test_loss_and_every_gradient_are_those_of_one_document_at_a_time():
    worst = dict.fromkeys(TOLERANCE, 0.0)
    cases = [*enumerate([*unpooled(), *POOLED, *CHAINED, *OTHERS] if FULL else COVER)][int(os.environ.get("BALLAST_TEST_FROM", 0)):]
    for number, case in cases:
        for dtype, difference in same_mathematics(*case):
            worst[dtype] = max(worst[dtype], difference)
        if FULL:
            print(f"      {number}: {case}, up to here {', '.join(f'{difference:.1e}' for difference in worst.values())}", flush=True)
    print(f"      {len(cases)} plans and meshes, the worst difference: " +
          ", ".join(f"{difference:.1e} in {str(dtype)[6:]}" for dtype, difference in worst.items()), flush=True)


class Logits(Trainer):
    """Keeps the logits of each micro-batch."""

    def loss(self, batch, logits):
        self.logits[batch.index] = logits.detach().clone()
        return super().loss(batch, logits)

    def logits_of(self, batches):
        self.logits = {}
        self.forward_backward(batches)
        return self.logits


def rows_of(batch, document):
    """This rank's rows of a document, and which of its tokens they are."""
    mine = batch.fragments[batch.fragments[:, 0] == document].tolist()
    return [(row + i, start + i) for _, start, length, row in mine for i in range(length)]


def probe(rank, mesh, socket):
    """Changes one token of one document of replica 0 at a time, and looks at every row of every rank."""
    trainer = Logits(mesh, rank, SHAPE, socket, SEED, torch.float64, start=(0, 0))
    batches = list(trainer.step())
    known = trainer.logits_of(batches)
    for index, batch in enumerate(batches if FULL else batches[:1]):
        batch.tokens = None if batch.tokens is None else batch.tokens.clone()
        lengths = batch.plan.documents.length.tolist()
        for document in range(3 if FULL else 2):  # of replica 0; the others change nothing, and take part
            touched = lengths[document] // 2 if document < len(lengths) else 0
            here = [row for row, at in rows_of(batch, document) if at == touched and trainer.place[0] == 0]
            for row in here if trainer.first else ():
                batch.tokens[row] = (batch.tokens[row] + 1) % SHAPE.vocabulary
            found = trainer.logits_of(batches)
            for row in here if trainer.first else ():
                batch.tokens[row] = (batch.tokens[row] - 1) % SHAPE.vocabulary
            if trainer.last:
                later = [row for row, at in rows_of(batch, document) if at >= touched and trainer.place[0] == 0]
                for i, logits in found.items():
                    changed = (logits != known[i]).any(1).nonzero()[:, 0].tolist()
                    assert changed == (sorted(later) if i == index else []), (index, document, i, changed, later)
    trainer.data.close()


def test_no_token_of_a_document_touches_the_logits_of_another():
    for policy, mesh in (("wlb:level", Mesh(1, 1, 2)), ("wlb:level+pool:2", Mesh(2, 1, 2))):
        with world_of(policy, mesh) as world:
            world.start()
            example.launch(probe, mesh.ranks, mesh, world.socket)


class MeanOfMeans(Trainer):
    """How it is done wrong: each rank averages over its own labels."""

    def loss(self, batch, logits):
        labels = int((batch.labels != -100).sum())
        everyone = batch.micro_batches * self.mesh.dp * self.mesh.cp
        return super().loss(batch, logits) * batch.loss_denominator / max(1, labels) / everyone


def test_every_label_weighs_the_same_in_unequal_micro_batches():
    mesh = Mesh(2, 1, 1)
    for denominator in ("constant", "label_tokens"):
        with world_of("wlb:level", mesh, loss_denominator=denominator) as world:
            world.start()
            plan = world.plan(0)
            counts = {}
            for micro_batch, _, labels in document_losses(world, plan, initial_weights()):
                key = micro_batch["dp"], micro_batch["index"]
                counts[key] = counts.get(key, 0) + labels
            assert max(counts.values()) > 1.05 * min(counts.values()), counts
            if denominator == "label_tokens":
                assert plan["loss_denominator"] == sum(counts.values())
            expected = plain_step(world, plan)
            right, wrong = (steps_of(world, mesh, kind=kind, dtypes=(torch.float64,))[0] for kind in (Trainer, MeanOfMeans))
            compare(right, expected, 1e-9, denominator)
            if denominator == "label_tokens":
                assert off(wrong[1]["head.weight"], expected[1]["head.weight"]) > 1e-3


# resuming

PROGRAM = os.path.join(ROOT, "examples", "trainer.py")


def forked(arguments, errors):
    """The program in a child that has torch already, which takes seconds to load: (pid, its output)."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.dup2(writing, 1)
        os.dup2(errors.fileno(), 2)
        os.close(reading)
        os.close(writing)
        sys.stdout = os.fdopen(1, "w")
        sys.stderr = os.fdopen(2, "w")
        sys.argv = [PROGRAM, *arguments]
        code = 1
        try:
            example.main()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    os.close(writing)
    return child, os.fdopen(reading)


class Job:
    """The example as a program; its steps."""

    def __init__(self, world, mesh, steps, checkpoints=None, shape=SHAPE):
        arguments = ["--socket", world.socket, *self.arguments(mesh, steps, shape)]
        if checkpoints:
            arguments += ["--checkpoints", checkpoints, "--save-every", "3"]
        self.errors = tempfile.TemporaryFile("w+")
        self.process, self.output = forked(arguments, self.errors)

    @staticmethod
    def arguments(mesh, steps, shape=SHAPE):
        sizes = [f"--{name.replace('_', '-')}={size}" for name, size in {**mesh._asdict(), **shape._asdict()}.items()]
        return ["--steps", str(steps), "--seed", "5", *sizes]

    def wait(self):
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])

    def finish(self):
        lines = [json.loads(line) for line in self.output]
        code = self.wait()
        self.errors.seek(0)
        assert code == 0, self.errors.read()
        return lines

    def kill_after(self, step):
        """kill -9 of every rank as soon as a step is said to be done; the steps that were."""
        lines = []
        for line in self.output:
            lines.append(json.loads(line))
            if lines[-1]["step"] == step:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.process, signal.SIGKILL)
        self.wait()
        return lines


def test_a_killed_job_goes_on_with_the_loss_it_would_have_had():
    mesh, steps, kills = Mesh(1, 2, 2), *((12, (4, 8)) if FULL else (8, (4,)))
    with world_of("wlb:level", mesh) as world:
        world.start()
        known = Job(world, mesh, steps).finish()
        assert [line["step"] for line in known] == list(range(steps)) and known[-1]["loss"] < known[0]["loss"]
        world.stop()
        world.state += ".again"
        with open(world.config_path) as f:
            text = f.read()
        with open(world.config_path, "w") as f:
            f.write(text.replace("/state\n", "/state.again\n"))
        checkpoints = os.path.join(world.dir, "checkpoints")
        first = 0
        for until in kills:
            world.start()
            lines = Job(world, mesh, steps, checkpoints).kill_after(until)
            world.kill()
            assert lines == known[first:first + len(lines)] and lines[-1]["step"] >= until
            first = max(int(name[5:13]) for name in os.listdir(checkpoints) if name.endswith(".pt"))
            assert 3 <= first <= lines[-1]["step"] + 1
        world.start()
        assert Job(world, mesh, steps, checkpoints).finish() == known[first:]


def documents_of(plan):
    return sorted(tuple(d[k] for k in ("dataset", "document", "offset", "length", "epoch"))
                  for micro_batch in plan["micro_batches"] for d in micro_batch["documents"])


def test_at_another_data_parallel_size_steps_have_the_same_documents_and_loss():
    before, steps = (6, 12) if FULL else (3, 6)
    with world_of("wlb:level", Mesh()) as world, world_of("wlb:level", Mesh()) as other:
        other.start()
        known = Job(other, Mesh(), steps).finish()
        world.start()
        checkpoints = os.path.join(world.dir, "checkpoints")
        assert Job(world, Mesh(), before, checkpoints).finish() == known[:before]
        world.stop()
        with open(world.config_path, "a") as f:
            f.write(f"[from {before}]\nparallel.dp = 2\n")
        world.start()
        found = Job(world, Mesh(2), steps, checkpoints).finish()
        assert [line["step"] for line in found] == list(range(before, steps))
        for line, expected in zip(found, known[before:]):
            plan = world.plan(line["step"])
            assert documents_of(plan) == documents_of(other.plan(line["step"])) and line["plan_digest"] == plan["digest"]
            line["off"] = abs(line["loss"] / expected["loss"] - 1)
        worst = max(line["off"] for line in found)
        assert worst <= 1e-6, worst
        print(f"      the worst difference of a step's loss: {worst:.1e}", flush=True)


def torchrun(world, ranks, mesh, steps):
    """torch 1.13 does not know its own default of --redirects and --tee under Python 3.11."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--redirects", "2", "--tee", "2",
               "--log_dir", world.dir, "--nproc_per_node", str(ranks), PROGRAM]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "BALLAST_SOCKET": world.socket}
    return subprocess.run(command + Job.arguments(mesh, steps), capture_output=True, text=True, timeout=120, env=environment)


def test_torchrun_starts_the_same_job():
    mesh = Mesh(1, 1, 2)
    with world_of("wlb:level", mesh) as world, world_of("wlb:level", mesh) as other:
        other.start()
        known = Job(other, mesh, 2).finish()
        world.start()
        done = torchrun(world, 2, mesh, 2)
        assert done.returncode == 0, done.stderr
        assert [json.loads(line) for line in done.stdout.splitlines()] == known
        if FULL:
            done = torchrun(world, 1, mesh, 2)
            assert done.returncode != 0 and "1 ranks were started, and dp * pp * cp is 2" in done.stderr, done.stderr


def refused(world, sentence, **shape):
    job = Job(world, Mesh(), 1, shape=SHAPE._replace(**shape))
    code = job.wait()
    job.errors.seek(0)
    text = job.errors.read()
    assert code != 0 and sentence in text, text


def test_a_mesh_that_is_not_the_daemons_is_refused():
    with world_of("wlb:level", Mesh(2)) as world:
        world.start()
        refused(world, "the daemon's mesh is dp 2")


def test_tokens_and_positions_that_the_model_does_not_know_are_refused_by_name():
    with world_of("wlb:level", Mesh()) as world:
        world.start()
        refused(world, "started with --vocabulary 9", vocabulary=9)
        refused(world, "started with --longest 16", longest=16)


if __name__ == "__main__":
    main(globals())
