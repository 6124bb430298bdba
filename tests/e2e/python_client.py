#!/usr/bin/python3
"""The Python client: byte for byte what ballast-rank gets, over every policy and layout, with numpy and
without; misuse is answered; a daemon that comes back is not noticed."""

import atexit
import contextlib
import gc
import io
import json
import multiprocessing
import os
import pickle
import re
import subprocess
import sys
import threading
import time
import warnings

import numpy

from c_forms import LIBRARY, compare_forms
from transport import need_tls, world_on_tcp, world_on_tls, write_token
from world import FULL, ROOT, World, main, synthetic_documents, write_corpus

sys.path.insert(0, os.path.join(ROOT, "client", "python"))
import ballast  # noqa: E402

os.environ["BALLAST_LIBRARY"] = LIBRARY
COLUMNS = ("tokens", "labels", "positions")


def world_of(dp=1, cp=1, seed=5, epochs=None, **sections):
    """A world with a corpus of 400 documents; `sections` change the config."""
    world = World()
    prefix = os.path.join(world.dir, "d")
    write_corpus(prefix, synthetic_documents(seed, 400, 6000))
    settings = {"plan": {"window": 2048, "micro_batches": 4}, "parallel": {"dp": dp, "cp": cp}, "daemon": {}}
    if epochs is not None:
        settings["corpus"] = {"epochs": epochs}
    for section, keys in sections.items():
        settings.setdefault(section, {}).update(keys)
    world.config([("d", prefix, 1)], settings)
    return world


@contextlib.contextmanager
def common_world():
    """One daemon for all tests that commit nothing and change no setting."""
    if not common:
        common.append(world_of())
        atexit.register(common[0].__exit__, None, None, None)
        common[0].start()
    yield common[0]


common = []


@contextlib.contextmanager
def library(native):
    """Clients that are opened have libballast, or not."""
    before, os.environ["BALLAST_LIBRARY"] = os.environ["BALLAST_LIBRARY"], LIBRARY if native else "none"
    try:
        yield
    finally:
        os.environ["BALLAST_LIBRARY"] = before


def c_columns(world, steps, places, **options):
    """{place: {(step, index): columns}} as ballast-rank dumps them; nothing is committed."""
    ranks = [world.rank(*place, steps=steps, dump=world.dir, commit_every=0, **options) for place in places]
    found = {}
    for place, rank in zip(places, ranks):
        mine = found[place] = {}
        for line in rank.finish(60):
            name = ".".join(map(str, (line["step"], *place, line["index"])))
            mine[line["step"], line["index"]] = (line["plan_digest"], [
                numpy.fromfile(os.path.join(world.dir, f"{name}.{column}"), "<i4") for column in COLUMNS])
    return found


def python_columns(world, steps, places, native=True, forms=False, **options):
    """The same from the Python client, as int32: with libballast or without; `forms` are compared too."""
    found = {}
    for dp, pp, cp, tp in places:
        mine = found[dp, pp, cp, tp] = {}
        with library(native), ballast.Client(world.socket, dp=dp, pp=pp, cp=cp, tp=tp, start=(0, 0), **options) as client:
            for step in client:
                for batch in step:
                    if forms:
                        compare_forms(batch, ballast.Unsupported)
                    mine[batch.step, batch.index] = (batch.plan_digest.hex(), [batch.gather(c) for c in COLUMNS])
                if step.number + 1 == steps:
                    break
    return found


def same(a, b):
    assert a.keys() == b.keys()
    for place in a:
        assert a[place].keys() == b[place].keys(), (place, sorted(a[place]), sorted(b[place]))
        for at, (digest, columns) in a[place].items():
            assert digest == b[place][at][0], (place, at)
            for name, one, other in zip(COLUMNS, columns, b[place][at][1]):
                assert numpy.array_equal(one, other), (place, at, name)


PLANS = [("plain", "per-sequence"), ("fixed:2", "hybrid"), ("wlb:level", "per-document"), ("wlb:bands", "variable-degree"),
         ("wlb:none", "ulysses"), ("wlb:level", "per-sequence,per-document,variable-degree,hybrid"),
         ("pool:2", "per-sequence"), ("wlb:level+pool:2", "per-sequence")]


def compare(policy, layouts, cp, steps=2):
    pooled = "pool" in policy
    with world_of(dp=2 if pooled else 1, cp=cp, plan={"policy": policy}, sharding={"layouts": layouts}) as world:
        world.start()
        places = [(0, 0, c, 0) for c in range(cp)]
        known = c_columns(world, steps, places)
        same(known, python_columns(world, steps, places, forms=True))
        same(known, python_columns(world, steps, places, native=False))


def test_a_pools_part_has_the_tiles_and_transfers_of_the_c_client():
    with world_of(dp=2, cp=2, plan={"policy": "wlb:level+pool:2", "window": 8192}) as world:
        world.start()
        place = (1, 0, 1, 0)
        rank = world.rank(*place, steps=3, commit_every=0, verify=True)
        known = {(line["step"], line["index"]): line["verified"] for line in rank.finish(60)}
        with ballast.Client(world.socket, dp=1, cp=1, start=(0, 0)) as client:
            for step in client:
                for batch in step:
                    pool = batch.pool
                    assert len(pool.tiles) + len(pool.transfers) == known[batch.step, batch.index] > 0
                    assert pool.worker == 3 and {t.worker for t in pool.tiles} | {t.home for t in pool.tiles} <= {0, 1, 2, 3}
                    mine = [t for t in pool.tiles if t.home == pool.worker and t.head_shard == 0]
                    assert sum(t.rows for t in mine) == batch.rows - batch.pad_rows
                if step.number == 2:
                    break


def test_every_policy_and_layout_gives_the_bytes_of_the_c_client():
    for i, (policy, layouts) in enumerate(PLANS):
        for cp in (1, 2, 4) if FULL else (4, 2 - i % 2):
            compare(policy, layouts, cp)


PURE = """
import json, sys
sys.modules["numpy"] = None
sys.path.insert(0, sys.argv[1])
import ballast
with ballast.Client(sys.argv[2], cp=1, start=(0, 0)) as client:
    for step in client:
        for batch in step:
            view = batch.view()
            print(json.dumps([batch.step, batch.index, batch.plan_digest.hex(), [list(batch.gather(c, "int64")) for c in
                  ("tokens", "labels", "positions")], batch.pool is not None and len(batch.pool.tiles), len(view),
                  list(batch.order()), [list(side) for side in batch.cu_seqlens()]]))
        if step.number == 2:
            break
try:
    print(view[0])
except ValueError:
    print("null")
"""


def test_without_numpy_it_is_the_same_bytes():
    with world_of(dp=2, cp=2, plan={"policy": "wlb:level+pool:2"}) as world:
        world.start()
        place = (0, 0, 1, 0)
        known = python_columns(world, 3, [place])
        done = subprocess.run([sys.executable, "-c", PURE, os.path.join(ROOT, "client/python"), world.socket],
                              capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        *lines, view = map(json.loads, done.stdout.splitlines())
        assert view is None, "a view outlived its batch"
        pure = {}
        for step, index, digest, columns, tiles, tokens, order, (q, k) in lines:
            pure[step, index] = (digest, [numpy.asarray(c, "int32") for c in columns])
            assert tiles > 0 and tokens > 0 and sorted(order) == list(range(len(order)))
            assert len(q) == len(k) and q[0] == k[0] == 0
        same(known, {place: pure})


def test_fetched_batches_are_the_same_bytes():
    with world_of(cp=2, reader={"payload_hashes": "true"}) as world:
        world.start()
        places = [(0, 0, c, 0) for c in range(2)]
        shared = python_columns(world, 3, places, transport="shared")
        same(shared, python_columns(world, 3, places, transport="fetch"))
        os.rename(world.socket + ".data", world.socket + ".gone")  # a container that has only the control socket
        same(shared, python_columns(world, 3, places))
        raises(ballast.Unavailable, lambda: ballast.Client(world.socket, transport="shared", connect_timeout=3), ".data")
        with ballast.Client(world.socket, transport="fetch", start=(0, 0), credits=1) as client:
            while (batch := client.next(0)) is None:  # nothing is lost between tries
                assert client.export_state(0)
            assert (batch.tokens() == shared[0, 0, 0, 0][0, 0][1][0]).all() and len(batch.view()) == batch.tokens_total


def test_over_tcp_and_tls_the_bytes_are_the_same():
    with world_on_tcp() as world:
        world.start()
        place = (0, 0, 1, 0)
        known = python_columns(world, 2, [place])
        unix, world.socket = world.socket, world.tcp
        same(known, python_columns(world, 2, [place], token_file=world.token))
        raises(ballast.InvalidArgument, lambda: ballast.Client(world.tcp), "token_file=")
        raises(ballast.InvalidArgument, lambda: ballast.Client("tcp:10.0.0.1:7"), "tls:10.0.0.1:7")
        raises(ballast.InvalidArgument, lambda: ballast.Client("tcp:nowhere"), "is none of")
        other = write_token(world, "other", "x" * 32)
        raises(ballast.Error, lambda: ballast.Client(world.tcp, token_file=other), "this token is not the one")
        os.chmod(other, 0o644)
        raises(ballast.PermissionDenied, lambda: ballast.Client(world.tcp, token_file=other), "chmod")
        with ballast.Client("unix:" + unix) as client:
            assert client.next().index == 0
    with world_on_tls() as world:
        need_tls(world)
        world.start()
        files = world.authority.client("trainer")
        world.socket = world.tls
        same(known, python_columns(world, 2, [place], **files))
        raises(ballast.InvalidArgument, lambda: ballast.Client(world.tls), "tls_ca=")
        raises(ballast.PermissionDenied, lambda: ballast.Client(world.tls, **{**files, "tls_name": "other.test"}), "other.test")
        bare = {"tls_ca": files["tls_ca"]}
        raises(ballast.PermissionDenied, lambda: ballast.Client(world.tls, **bare), "CERTIFICATE_REQUIRED")


def test_memory_is_registered_once_a_mapping_and_until_nothing_points_into_it():
    told, untold = [], []
    with world_of() as world:
        world.start()
        with ballast.Client(world.socket, start=(0, 0), map=lambda v: told.append(len(v)),
                            unmap=lambda v: untold.append(len(v))) as client:
            view = client.next().view()
            assert len(told) == 1 and told[0] > len(view) and not untold
        del view, client
        gc.collect()
        assert untold == told

        def full(view):
            raise MemoryError(f"{len(view)} bytes cannot be registered")
        raises(MemoryError, lambda: ballast.Client(world.socket, map=full), "cannot be registered")


def test_memory_that_is_gathered_from_stays_whatever_another_thread_gives_back():
    untold = []
    with common_world() as world:
        client = ballast.Client(world.socket, start=(0, 0), unmap=lambda view: untold.append(len(view)))
        batch = client.next()
        fill = batch._plan.fill_unlocked

        def meanwhile(*arguments):
            batch.release()
            client.close()
            gc.collect()
            assert not untold, "unmapped under a gather"
            return fill(*arguments)

        known = batch.tokens()
        batch._fill, batch._plan.fill_unlocked = None, meanwhile  # as of a large one
        assert (batch.tokens() == known).all() and client._closed
        del batch, client
        gc.collect()
        assert len(untold) == 1


def test_a_plan_is_a_batchs_for_as_long_as_anything_has_the_batch():
    class Alive:
        def __del__(self):
            kept.append(self.batch)

    with common_world() as world, ballast.Client(world.socket, start=(0, 0)) as client:
        plans, kept, known = client._reader._plans, [], []
        for turn in range(6):
            batch = client.next()
            known.append(batch.documents.length.tolist())
            batch._plan.known = None
            if turn % 2:  # the garbage collector finds it, and it comes back
                held = Alive()
                held.batch, batch.cycle = batch, held
            else:
                kept.append(batch)
            batch.release()
            del batch
            held = None
            gc.collect()
            if turn == 3:
                client.next()
        assert [batch.documents.length.tolist() for batch in kept] == known and len(plans) == 6
        del kept[:]
        gc.collect()
        del kept[:]
        for event in (client.next() for _ in range(12)):
            if isinstance(event, ballast.Batch):
                event.release()
        assert len(plans) == 6


def test_a_plan_is_freed_when_nothing_reads_it_any_more():
    class Alive:
        def __del__(self):
            read.append((self.batch.documents.length.tolist(), list(freed)))
            try:
                self.batch.tokens(out=numpy.zeros(self.batch.rows, "int32"))
            except ballast.Released:
                pass

    read, freed = [], []
    with common_world() as world:
        client, held = ballast.Client(world.socket, start=(0, 0)), Alive()
        library, destroy = client.library, client.library.destroy
        library.destroy = lambda address: (freed.append(address), destroy(address))
        try:
            batch = held.batch = client.next()
            known, batch.cycle, batch._plan.known = batch.documents.length.tolist(), held, None
            del client, batch, held
            gc.collect()
            assert read == [(known, [])] and len(freed) == 1, (read, freed)
        finally:
            library.destroy = destroy


def test_what_is_pickled_of_a_batch_is_all_that_is_known_of_it():
    names = ("step", "dp", "index", "micro_batches", "rows", "pad_rows", "layout", "exchange", "plan_digest", "label_tokens",
             "loss_denominator", "tokens_total", "group_rank", "group_ranks", "parts", "generation", "connection")
    with common_world() as world:
        for native in (True, False):
            with library(native), ballast.Client(world.socket, start=(0, 0)) as client:
                for _ in range(3):
                    batch = client.next()
                    again = pickle.loads(pickle.dumps(batch))
                    assert [getattr(again, name) for name in names] == [getattr(batch, name) for name in names]
                    assert again.documents[0] == batch.documents[0] and again.fragments[0] == batch.fragments[0]
                    assert not again.held and batch.held
                    raises(ballast.Released, again.tokens)


def test_a_client_says_what_it_waits_for():
    with world_of() as world:
        said = []
        raises(ballast.Unavailable, lambda: ballast.Client(world.socket, waiting=said.append, waiting_after=0.05,
                                                           connect_timeout=0.3), "tried for 0.3 s")
        assert len(said) == 1 and re.match("waiting for the daemon since [0-9]+[.]. s, for 0 s at most: no daemon", said[0]), said
        assert "start ballastd" in said[0]


def test_parts_types_and_destinations():
    with common_world() as world:
        with ballast.Client(world.socket, parts="labels", start=(0, 0)) as client:
            batch = client.next()
            kept = numpy.full(batch.rows + 5, 7, "int64")
            labels = batch.labels(out=kept)
            assert labels.base is kept and (kept[-5:] == 7).all() and (labels == batch.labels()).all()
            for wrong in (lambda: batch.tokens(), lambda: batch.labels("float32"), lambda: batch.gather("tokenz"),
                          lambda: batch.labels(out=kept[:3]), lambda: batch.labels(out=kept.reshape(-1, 1))):
                raises(ballast.InvalidArgument, wrong)
            batch.release()
        with ballast.Client(world.socket, parts="plan") as client:
            batch = client.next()
            assert len(batch.positions()) == batch.rows
            raises(ballast.InvalidArgument, batch.tokens)
            raises(ballast.InvalidArgument, batch.view)


def test_memory_of_columns_is_used_again_when_nothing_has_any_of_it():
    known, ballast.columns.SPARE_BYTES_MIN = ballast.columns.SPARE_BYTES_MIN, 1
    try:
        with common_world() as world:
            for native in (True, False):
                with library(native), ballast.Client(world.socket, start=(0, 0), credits=2) as client:
                    batch = client.next()
                    kept = [batch.tokens()[::2], batch.labels()[:9], memoryview(batch.positions())]
                    copies = [numpy.array(column) for column in kept]
                    places = {address(column) for column in kept}
                    others = {address(batch.tokens()) for _ in range(5)}
                    assert len(places) == 3 and len(others) == 1 and not others & places
                    assert len(batch.tokens("int64")) == batch.rows
                    assert all((numpy.asarray(a) == b).all() for a, b in zip(kept, copies))
                    del kept[:]
                    again = [batch.tokens(), batch.labels(), batch.positions(), batch.positions()]
                    assert {address(column) for column in again} == places | others
                    many = [batch.tokens() for _ in range(20)]
                    assert len({address(column) for column in many}) == 20
    finally:
        ballast.columns.SPARE_BYTES_MIN = known


def address(column):
    return numpy.asarray(column).ctypes.data


def raises(kind, call, *words):
    """The sentence of the error that call() raises."""
    try:
        call()
    except kind as error:
        for word in words:
            assert word in str(error), (word, str(error))
        return str(error)
    raise AssertionError(f"{kind.__name__} was not raised")


def test_a_batch_is_not_read_after_its_release():
    with common_world() as world:
        with ballast.Client(world.socket) as client:
            first = client.next()
            first.release()
            for use in (first.tokens, first.labels, first.positions, first.view, first.check, first.release):
                raises(ballast.Released, use, "released already")
            with client.next() as second:
                assert second.index == 1
            raises(ballast.Released, second.tokens)


def test_a_view_holds_its_slot_until_it_is_gone():
    with common_world() as world:
        with ballast.Client(world.socket, credits=2) as client:
            batch = client.next()
            view = batch.view()
            raises(ValueError, lambda: view.__setitem__(0, 1))
            cut = view[10:20]
            del view
            kept = cut.copy()
            batch.release()
            other = client.next()
            raises(ballast.FailedPrecondition, client.next, "1 of them by views")
            assert (cut == kept).all()
            raises(ballast.FailedPrecondition, lambda: client.commit(0), "view of step 0")
            del cut
            assert client.next().index == 2
            other.release()


def test_every_batch_must_be_taken_and_credits_bound_what_is_held():
    with common_world() as world:
        with ballast.Client(world.socket, credits=2) as client:
            steps = iter(client)
            step = next(steps)
            next(step)
            raises(ballast.FailedPrecondition, lambda: next(steps), "not gone through")
            step.skip()
            held = [client.next(), client.next()]
            raises(ballast.FailedPrecondition, client.next, "all 2 batches are held")
            held[0].release()
            assert client.next().index == 2
            assert client.step == 1


def test_a_wrong_job_rank_or_option_is_refused_by_name():
    with common_world() as world:
        raises(ballast.FailedPrecondition, lambda: ballast.Client(world.socket, job_digest=bytes(16)), "job")
        raises(ballast.Error, lambda: ballast.Client(world.socket, dp=3), "dp 3")
        with ballast.Client(world.socket) as client:
            job = client.job
            raises(ballast.AlreadyExists, lambda: ballast.Client(world.socket), "dp 0")
            assert client.next().index == 0  # the first stays
        with ballast.Client(world.socket, job_digest=job.digest.hex()) as client:
            assert client.job.digest == job.digest
        for wrong in ({"parts": ()}, {"parts": "token"}, {"credits": 0}, {"cp": -1}, {"job_digest": b"x"}):
            raises(ballast.InvalidArgument, lambda: ballast.Client(world.socket, **wrong))
        raises(ballast.Unavailable, lambda: ballast.Client(world.socket + "x", connect_timeout=0.1), "no daemon listens")


def child(kind, client, queue):
    try:
        if kind == "fork":
            client.next()
        else:
            event = client.next()
            queue.put((event.step, event.index, event.tokens().sum()))
            client.close()
            return
        queue.put("used")
    except ballast.Error as error:
        queue.put((type(error).__name__, str(error)))


def test_a_forked_child_is_told_and_does_not_keep_its_parents_rank_alive():
    with world_of() as world:
        world.start()
        queue = multiprocessing.get_context("fork").Queue()
        with ballast.Client(world.socket) as client:
            batch = client.next()
            process = multiprocessing.get_context("fork").Process(target=child, args=("fork", client, queue))
            process.start()
            name, text = queue.get(timeout=30)
            process.join()
            assert name == "Forked" and str(os.getpid()) in text, (name, text)
            assert len(batch.tokens()) == batch.rows  # the parent's is as it was
        world.wait_for(lambda: not world.live("status")["ranks"] or world.live("status")["ranks"][0]["pid"] == 0, "it left")
        read, write = os.pipe()
        if os.fork() == 0:  # a trainer that dies while its forked worker lives on
            client = ballast.Client(world.socket)
            worker = os.fork()
            if worker == 0:
                os.close(write)
                time.sleep(60)
                os._exit(0)
            os.write(write, b"%d" % worker)
            os._exit(0)
        worker = int(os.read(read, 100))
        os.wait()
        world.wait_for(lambda: world.live("status")["ranks"][0]["pid"] == 0, "the rank is free")
        with ballast.Client(world.socket) as client:
            assert client.next().index == 0
        os.kill(worker, 9)


def test_a_client_that_is_dropped_gives_up_its_rank_with_a_warning():
    with common_world() as world, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        client = ballast.Client(world.socket)
        with client.next() as batch:
            pass
        del client, batch
        assert [str(one.message)[:30] for one in caught] == ["unclosed <ballast.Client rank "], caught
        client = ballast.Client(world.socket)  # the rank is free at once
        batch = client.next()
        client.close()
        del client, batch
        assert len(caught) == 1, caught


def test_a_second_thread_in_a_client_is_told_and_the_first_gets_its_batch():
    with world_of() as world:
        world.start()
        with ballast.Client(world.socket) as client:
            got = []

            def take():
                while len(got) < 8:
                    event = client.next()
                    got.append((event.step, 4 if isinstance(event, ballast.EndOfStep) else event.index))
                    if isinstance(event, ballast.Batch):
                        event.release()

            world.kill()
            thread = threading.Thread(target=take)
            thread.start()
            world.wait_for(lambda: client._inside and client.fileno() == -1, "it waits for the daemon")
            for call in (client.next, lambda: client.commit(0), lambda: client.export_state(0), lambda: client.seek(0)):
                raises(ballast.Busy, call, f"thread {thread.ident} is in a call", "one thread at a time")
            world.start()
            thread.join()
            assert got == [(step, index) for step in range(2) for index in range(5)][:8]
            assert client.next().index == 3


def test_a_spawned_process_connects_with_the_same_options():
    with common_world() as world:
        with ballast.Client(world.socket, start=(1, 2)) as client:
            again = pickle.loads(pickle.dumps(client))
            assert again.options == client.options and again.fileno() == -1
            batch = client.next()
            known = (1, 2, batch.tokens().sum())
        context = multiprocessing.get_context("spawn")
        queue = context.Queue()
        process = context.Process(target=child, args=("spawn", again, queue))
        process.start()
        assert queue.get(timeout=60) == known
        process.join()


def test_a_restarted_daemon_is_not_noticed():
    with world_of(epochs=1) as world:
        plans = world.plans()
        world.start()
        seen = []
        with ballast.Client(world.socket) as client:
            for step in client:
                for batch in step:
                    if (batch.step, batch.index) in ((1, 2), (3, 0), (4, 3)):
                        before = batch.tokens()
                        world.kill()
                        again = threading.Thread(target=world.start)
                        again.start()
                        assert (batch.tokens() == before).all()
                        if batch.index:
                            again.join()
                    seen.append((batch.step, batch.index, batch.plan_digest.hex()))
                if step.number == 2:
                    world.kill()
                    world.start()
                step.commit([ballast.Measured(0, total_ns=5, expert_tokens=[1, 2])])
            last = client.next()
            assert isinstance(last, ballast.EndOfData) and last.step == len(plans)
        assert seen == [(p["step"], i, p["digest"]) for p in plans for i in range(4)]
        assert world.live("status")["committed_step"] == len(plans)


def test_seek_export_and_import_go_where_they_say():
    with world_of() as world:
        world.start()
        with ballast.Client(world.socket) as client:
            first = []
            for step in client:
                first.append([(b.plan_digest, b.tokens()) for b in step])
                step.commit()
                if step.number == 5:
                    break
            state = client.export_state(3)
            held = client.next()
            client.seek(2)
            held.release()
            for step in client:
                assert [b.plan_digest for b in step] == [digest for digest, _ in first[step.number]]
                step.commit()
                if step.number == 4:
                    break
            raises(ballast.DataLoss, lambda: client.import_state(state[:-1] + bytes([state[-1] ^ 1])))
            raises(ballast.OutOfRange, lambda: client.export_state(1 << 40))
            client.import_state(state, generation=7)
            assert client.job.generation == 7
            batch = client.next()
            assert batch.step == 3 and (batch.tokens() == first[3][0][1]).all()
            client.agree(lambda mine: [mine, mine])
            other = mine_at_another_step(client.agreement())
            raises(ballast.Disagreement, lambda: client.agree(lambda mine: [mine, other, mine]), "rank 1 of 3", "step 4")


def mine_at_another_step(record):
    return record[:8] + (4).to_bytes(8, "little") + record[16:]


def interrupted_at(count, turn):
    """Whether turn() was interrupted, at its count-th line within the package."""
    left = [count]

    def trace(frame, kind, _):
        code = frame.f_code
        if f"{os.sep}ballast{os.sep}" not in code.co_filename or code.co_name == "__del__":
            return None
        if kind == "return":  # no signal's handler runs between a function and its caller
            return trace
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        turn()
        return False
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)


def test_an_interrupt_anywhere_loses_no_batch_and_no_credit():
    with common_world() as world:
        for native in (True, False):
            with library(native), ballast.Client(world.socket, start=(0, 0), credits=2) as client:
                expected, line, held = (0, 0), 0, []

                def turn():
                    held.append(client.next(30))
                    if isinstance(held[-1], ballast.Batch):
                        held[-1].release()

                while line == 0 or interrupted_at(line, turn):
                    for event in held:
                        ended = isinstance(event, ballast.EndOfStep)
                        assert (event.step, 4 if ended else event.index) == expected, (line, event, expected)
                        expected = (event.step + 1, 0) if ended else (event.step, event.index + 1)
                        if not ended and event.held:
                            event.release()
                    assert client._held() == 0, line
                    held.clear()
                    line += 1 if FULL else 13
                assert line > 100, line


def test_an_interrupt_anywhere_in_a_step_with_its_commit_loses_no_batch_and_no_credit():
    with world_of() as world:
        world.start()
        step, line = 0, 0
        for native in (True, False):
            with library(native), ballast.Client(world.socket, start=(step, 0), credits=2) as client:
                places = []

                def turn():
                    """To the end of the step, from wherever it stands."""
                    while len(places) < 5:
                        event = client.next(30)
                        places.append((event.step, 4 if isinstance(event, ballast.EndOfStep) else event.index))
                        if isinstance(event, ballast.Batch):
                            event.view()
                            event.release()
                    client.commit(step)

                while line == 0 or interrupted_at(line, turn):
                    for batch in [batch for batch in client._batches if batch.held]:
                        batch.release()
                    turn()
                    assert places == [(step, index) for index in range(5)], (native, line, places)
                    places.clear()
                    step += 1
                    line += 1 if FULL else 13
                assert line > 300, line
                line = 0


def test_a_rank_that_works_on_is_told_where_the_job_went():
    with world_of(cp=2) as world:
        world.start()
        with ballast.Client(world.socket, cp=0) as seeker, ballast.Client(world.socket, cp=1) as other:
            for client in (seeker, other):
                for step in client:
                    step.skip()
                    step.commit()
                    if step.number == 3:
                        break
            seeker.seek(1)
            raises(ballast.Stale, lambda: [step.skip() for step in other], "step 1", "cp 0")
            raises(ballast.Stale, lambda: other.commit(4), "generation")
            assert other.job.generation_step == 1
            other.seek(other.job.generation_step)
            assert seeker.next().plan_digest == other.next().plan_digest
            other.agree(lambda mine: [seeker.agreement(), mine])


def test_a_slot_that_was_reused_is_noticed_and_the_batch_comes_again():
    with world_of(daemon={"lease": "200ms"}, slab={"slots": 10}, cp=2) as world:
        world.start()
        with ballast.Client(world.socket, cp=0, credits=1) as slow, ballast.Client(world.socket, cp=1) as fast:
            batch = slow.next()
            known = batch.tokens()
            view = batch.view()
            for step in fast:
                step.skip()
                step.commit()
                if slow_slot_is_gone(batch):
                    break
            raises(ballast.Stale, batch.tokens, "comes again")
            del view
            batch.release()
            again = slow.next()
            assert (again.step, again.index) == (batch.step, batch.index) and (again.tokens() == known).all()


def slow_slot_is_gone(batch):
    return batch._slab.generation(batch._offset) != batch._slot_generation


def brute_keys(batch, reader):
    """{(document, key)} that a rank's queries see."""
    return {(d, k) for d, s, n, _ in batch.shards[reader].fragments for k in range(s + n)}


def test_derived_forms_are_what_the_fragments_say():
    with world_of(cp=2, sharding={"exchange": "needed-only", "layouts": "hybrid"}) as world:
        world.start()
        with ballast.Client(world.socket, cp=0) as client, ballast.Client(world.socket, cp=1) as peer:
            for _ in range(3):
                batch, other = client.next(), peer.next()
                every = numpy.concatenate([batch.tokens(), other.tokens()])
                order = batch.order()
                tokens = batch.view()
                assert (every[order][:len(tokens)] == tokens).all() and sorted(order) == list(range(len(every)))
                q, k = batch.cu_seqlens()
                assert q[-1] == batch.rows - batch.pad_rows and numpy.diff(q).max() == batch.max_seqlens()[0]
                keys = batch.key_index(order)
                at = numpy.cumsum([0, *batch.documents.length])
                for i, (document, start, length, row) in enumerate(batch.fragments):
                    piece = tokens[at[document]:at[document] + start + length]
                    assert (every[keys[k[i]:k[i + 1]]] == piece).all()
                runs = batch.key_runs(0, 1)
                got = {(r.document, r.start + i) for r in runs for i in range(r.length)}
                owned = {(d, s + i) for d, s, n, _ in batch.shards[1].fragments for i in range(n)}
                assert got == brute_keys(batch, 0) & owned
                assert batch.exchange_counts()[1][1] == other.exchange_counts()[0][0] == len(got)
                raises(ballast.Unsupported, batch.llama3, "contiguous")
                raises(ballast.Unsupported, batch.thd, "per-document")
                del tokens
                batch.release()
                other.release()


def test_the_forms_of_attention_libraries_take_what_they_can_and_refuse_the_rest():
    documents = [list(range(1, 1 + n)) for n in [256] * 64]
    for layouts in ("per-document", "ulysses"):
        with world_of(cp=2, sharding={"layouts": layouts}) as world:
            write_corpus(os.path.join(world.dir, "d"), documents)
            world.start()
            clients = [ballast.Client(world.socket, cp=c) for c in range(2)]
            batches = [client.next() for client in clients]
            if layouts == "ulysses":
                forms = [batch.llama3() for batch in batches]
                assert forms[0].cu_seqlens_q[-1] == batches[0].rows and forms[1].key_end == 2 * batches[0].rows
                assert forms[1].max_seqlen_k <= 256
                raises(ballast.Unsupported, batches[0].thd, "per-document")
            else:
                forms = [batch.thd() for batch in batches]
                assert (numpy.diff(forms[0].cu_seqlens) == 256).all() and forms[0].max_seqlen == 256
                assert (forms[0].cu_seqlens == forms[1].cu_seqlens).all()
                assert (batches[0].zigzag().cu_seqlens * 2 == forms[0].cu_seqlens).all()
                raises(ballast.Unsupported, batches[0].llama3, "ulysses")
            for client in clients:
                client.close()


def run_programs(world, name, torch):
    """The Python programs of a document, those that need torch or those that do not."""
    with open(os.path.join(ROOT, name)) as f:
        programs = re.findall(r"^```python\n(.*?)^```$", f.read(), re.M | re.S)
    os.environ["BALLAST_SOCKET"] = world.socket
    for program in programs:
        if ("torch" in program) == torch:
            with ballast.Client() as client:
                client.seek(0)
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(program, name, "exec"), {})
    return len(programs)


def test_the_programs_of_the_documents_run():
    with world_of(epochs=1) as world:
        world.start()
        for name in ("README.md", "client/python/README.md", "docs/python.md"):
            assert run_programs(world, name, torch=False) > 0


if __name__ == "__main__":
    main(globals())
