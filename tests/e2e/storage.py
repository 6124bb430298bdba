#!/usr/bin/python3
"""Storage that fails while tokens are read, and kernels that deny what reading would like to use."""

import collections
import contextlib
import ctypes
import errno
import itertools
import os
import platform
import resource
import shutil
import subprocess
import sys
import time

import numpy

from faults import small_world
from machine import faulty_machine, write
from metrics import monitored, scrape, total
from service import log
from world import ROOT, Oracle, Skip, World, in_order, main, synthetic_documents, write_corpus

sys.path.insert(0, os.path.join(ROOT, "client/python"))
import ballast  # noqa: E402

EVER = 1000000
READERS = ("io_uring", "pread")
SLAB_KB = 256  # a little less than small_world's


def failures(folder, name="failed"):
    """{offset: how often reading there failed, or a mapping from there on had nothing}."""
    path = os.path.join(folder, name)
    with open(path) as f:
        return collections.Counter(int(line) for line in f)


def failures_in_the_end(folder, tries):
    """The same once nothing is tried any more: what lies ahead of a rank is read after it has ended, too. The tries of
    a read that the machine keeps waiting are waited for."""
    before, now, until = None, failures(folder), time.monotonic() + 60
    while now != before or time.monotonic() < until and any(count % tries for count in now.values()):
        time.sleep(0.3)
        before, now = now, failures(folder)
    return now


def failing(world, code, times, backend):
    """A daemon of which the first reads of tokens fail; its machine's folder."""
    with faulty_machine(world) as folder:
        write(folder, "read", f"{code} {times} /d.bin")
        world.start(environment={"BALLAST_READER_BACKEND": backend})
    assert world.live("status")["io_backend"] == backend
    return folder


def served(world, steps=20):
    """What a rank is given, one line a batch."""
    lines = world.rank(0, cp=0, steps=steps).finish(60)
    in_order(lines, 2)
    return lines


def content(lines):
    """Plans, places and hashes of tokens, without the time that it took."""
    return [{k: v for k, v in line.items() if k != "waited_us"} for line in lines]


def right_content(steps=20):
    with small_world() as world:
        world.start()
        return content(served(world, steps))


def test_a_read_that_fails_twice_or_once_for_a_stale_handle_is_nobodys_business():
    right = right_content()
    for code, times, backend in itertools.chain(*([(errno.EIO, 2, b), (errno.ESTALE, 1, b)] for b in READERS)):
        with small_world() as world:
            folder = failing(world, code, times, backend)
            assert content(served(world)) == right
            assert sum(failures(folder).values()) == times, failures(folder)
            assert "cannot be read" not in log(world)
            world.stop()


def test_a_read_that_keeps_failing_ends_the_step_with_its_place_after_three_tries():
    for backend in READERS:
        with small_world() as world:
            folder = failing(world, errno.EIO, EVER, backend)
            rank = world.rank(0, cp=0, steps=20)
            code, text = rank.wait(60)
            assert code != 0 and not rank.lines(), (code, text, rank.lines())
            for word in ("step 0", "d.bin: byte ", "document ", "Input/output error"):
                assert word in text, (word, text)
            tries = failures_in_the_end(folder, 3)
            assert tries and all(count % 3 == 0 for count in tries.values()), tries
            assert world.live("status")["state"] == "serving"
            world.stop()


def test_a_dataset_that_cannot_be_read_ends_the_streams_that_need_it_and_no_other():
    """The replicas' ranks end by and by, each with the bad file's name, never with a part of a batch."""
    for backend in READERS:
        with small_world() as world:
            write_corpus(os.path.join(world.dir, "good"), synthetic_documents(9, 400, 3000))
            with open(world.config_path, "a") as f:
                f.write(f"[dataset good]\npath = {world.dir}/good\nweight = 1000\n[limits]\nlead_steps = 100000\n")
            folder = failing(world, errno.EIO, EVER, backend)
            ranks = [world.rank(dp, cp=0, steps=100000) for dp in range(2)]
            for rank in ranks:
                code, text = rank.wait(60)
                assert code != 0 and "d.bin: byte " in text, (code, text)
                in_order(rank.lines(), 2)
            assert sum(len(rank.lines()) for rank in ranks) > 0 and failures(folder)
            world.stop()


def test_a_stale_handle_that_stays_stale_is_told_as_such():
    for backend in READERS:
        with small_world() as world:
            failing(world, errno.ESTALE, EVER, backend)
            code, text = world.rank(0, cp=0, steps=20).wait(60)
            assert code != 0 and "d.bin: byte " in text and "not the one that was opened" in text, (code, text)
            world.stop()


def drop_half_from_the_cache(path):
    with open(path, "rb") as f:
        os.fsync(f.fileno())
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        f.read(os.path.getsize(path) // 2)


def test_through_the_page_cache_past_it_or_as_it_comes_the_bytes_are_the_same():
    once = {"corpus": {"epochs": 1}}
    right, steps = None, 8
    for direct, backend in (("off", "io_uring"), ("auto", "io_uring"), ("on", "pread"), ("auto", "pread")):
        with small_world(**once, reader={"direct": direct, "backend": backend}) as world:
            drop_half_from_the_cache(os.path.join(world.dir, "d.bin"))
            world.start()
            told = log(world)
            if direct != "off" and "cannot be read past" in told:
                raise Skip("no O_DIRECT here")
            assert f"direct={0 if direct == 'off' else 1}" in told, told
            given = content(served(world, steps))
            assert len(given) == 2 * steps and given == (right or given)
            right = given
            world.stop()


def mapped_world(**sections):
    """Of any micro-batch every second document of a stretch of the file, in the page cache: each extent is mapped."""
    world = World()
    prefix = os.path.join(world.dir, "d")
    rng = numpy.random.default_rng(6)
    write_corpus(prefix, [rng.integers(0, 50000, rng.integers(1000, 4000)) for _ in range(2000)])
    world.config([("d", prefix, 1)], {"corpus": {"shuffle": "none"}, "plan": {"window": 65536, "micro_batches": 2},
                                      **sections})
    return world


def fail(world, times=EVER):
    """Reads of the file, and whatever is touched of it in a mapping, from now on."""
    write(os.path.join(world.dir, "machine"), "read", f"{errno.EIO} {times} /d.bin")


def test_what_is_taken_from_mappings_is_what_reads_give():
    """And what is read because mappings had nothing."""
    right = None
    for mapped, backend, times in (("off", "pread", 0), ("auto", "pread", 0), ("auto", "io_uring", 0),
                                   ("auto", "pread", 2), ("auto", "io_uring", 2)):
        with mapped_world(reader={"mapped": mapped, "backend": backend}) as world:
            with faulty_machine(world) as folder:
                if times > 0:
                    fail(world, times)
                world.start()
            if mapped == "auto" and "mapped=0" in log(world):
                raise Skip("the temporary folder is on a file system whose files are not mapped")
            assert f"mapped={0 if mapped == 'off' else 1}" in log(world), log(world)
            given = content(served(world))
            assert len(given) == 40 and given == (right or given)
            assert times == 0 or sum(failures(folder).values()) == times and failures(folder, "unmapped")
            right = given
            world.stop()


def cut_off_and_on_again(world):
    path = os.path.join(world.dir, "d.bin")
    size = os.path.getsize(path)
    for at in range(0, size, size // 100):
        os.truncate(path, at)
        os.truncate(path, size)


def replace(world):
    path = os.path.join(world.dir, "d.bin")
    shutil.copyfile(path, path + ".new")
    os.rename(path + ".new", path)


def test_a_mapped_file_that_is_lost_is_told_with_its_place_and_no_wrong_token_is_given():
    """Cut off between its pages being mapped and copied, replaced, and on storage that delivers nothing any more."""
    with mapped_world() as world:
        world.start()
        right = {(line["step"], line["index"]): line for line in content(served(world, 100))}
        world.stop()
    for lose, backend in itertools.product((cut_off_and_on_again, replace, fail), READERS):
        with mapped_world(reader={"backend": backend}) as world:
            with faulty_machine(world) as folder:
                world.start()
            rank = world.rank(0, cp=0, steps=100, think_ms=5)
            world.wait_for(lambda r=rank: len(r.lines()) > 4, "the rank is served")
            lose(world)
            code, text = rank.wait(60)
            assert code != 0 and world.live("status")["state"] == "serving", (code, text)
            for word in ("dataset 'd'", "d.bin: byte ", "document ", "restore the file"):
                assert word in text, (lose, word, text)
            for line in content(rank.lines()):
                assert line == right[line["step"], line["index"]]
            if lose == fail:
                assert "Input/output error" in text, text
                assert "mapped=0" in log(world) or failures(folder, "unmapped")
                assert all(count % 3 == 0 for count in failures_in_the_end(folder, 3).values()), failures(folder)
            world.stop()


class Filter(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32)]


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint16), ("filters", ctypes.POINTER(Filter))]


LIBC = ctypes.CDLL(None, use_errno=True)
SECCOMP, NO_NEW_PRIVILEGES, DROP_BOUNDING = 22, 38, 24
IPC_LOCK = 14
# io_uring_setup ends with EPERM, as the filters of container runtimes have it.
DENIED = (Filter * 4)(Filter(0x20, 0, 0, 0), Filter(0x15, 0, 1, 425), Filter(0x06, 0, 0, 0x00050000 | errno.EPERM),
                      Filter(0x06, 0, 0, 0x7FFF0000))
PROGRAM = Program(4, DENIED)


def deny_io_uring():
    if LIBC.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) or LIBC.prctl(SECCOMP, 2, ctypes.byref(PROGRAM), 0, 0):
        raise OSError("no seccomp")


def lock_memory(kilobytes):
    LIBC.prctl(DROP_BOUNDING, IPC_LOCK, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (kilobytes << 10, kilobytes << 10))


def lock_no_memory():
    lock_memory(0)


def lock_less_than_the_slab():
    lock_memory(SLAB_KB)


def test_without_io_uring_or_locked_memory_the_bytes_are_the_same_and_it_is_said_once():
    if platform.machine() not in ("x86_64", "aarch64"):
        raise Skip("the number of io_uring_setup is not known here")
    right = right_content()
    for deny, backend, reason in ((deny_io_uring, "pread", "seccomp"), (lock_no_memory, None, "MEMLOCK"),
                                  (lock_less_than_the_slab, None, "MEMLOCK")):
        with monitored() as world:
            world.start(preexec_fn=deny)
            assert content(served(world)) == right
            used = world.live("status")["io_backend"]
            assert used == (backend or used), used  # some kernels count rings as locked memory
            samples = scrape(world)
            assert total(samples, "ballast_io_backend_info", backend=used, registered="false") == 1
            assert total(samples, "ballast_io_degraded") == 1
            remedy = next(line for line in world.ctl("--socket", world.socket, "status").stdout.splitlines()
                          if line.startswith("reading  "))
            assert reason in remedy and (backend or "set LimitMEMLOCK=" in remedy), remedy
            doctor = subprocess.run([sys.executable, "-m", "ballast.doctor", "--socket", world.socket, "--dp", "1"],
                                    env={**os.environ, "PYTHONPATH": os.path.join(ROOT, "client/python")},
                                    capture_output=True, text=True, timeout=60).stdout
            assert reason in next(line for line in doctor.splitlines() if "is planned next" in line), doctor
            told = [line for line in log(world).splitlines() if line.startswith(("warning", "notice  reader"))]
            assert len(told) == 1 and " reader: " in told[0] and reason in told[0], log(world)
            world.stop()


POOL = "/proc/sys/vm/nr_hugepages"


@contextlib.contextmanager
def huge_pages(count):
    """So many more huge pages than before; Skip where the kernel gives none."""
    with open(POOL) as f:
        before = int(f.read())
    try:
        with open(POOL, "w") as f:
            f.write(str(before + count))
        with open(POOL) as f:
            got = int(f.read()) - before
        if got < count:
            raise Skip(f"{got} of {count} huge pages could be reserved")
        yield
    except PermissionError:
        raise Skip("reserving huge pages needs root") from None
    finally:
        with contextlib.suppress(OSError), open(POOL, "w") as f:
            f.write(str(before))


def slab_mapping(pid):
    """What the kernel says of the slab's memory, as in numa_maps."""
    with open(f"/proc/{pid}/numa_maps") as f:
        return next(line for line in f if "memfd:ballast-slab" in line)


def test_a_slab_of_huge_pages_on_one_node_gives_the_same_bytes_by_either_reader():
    if not os.path.exists(POOL):
        raise Skip("this kernel has no huge pages")
    right = right_content()
    with huge_pages(8):
        for backend in READERS:
            with small_world(slab={"huge_pages": "on", "numa_node": 0}, reader={"backend": backend}) as world:
                world.start()
                assert "pages=huge" in log(world)
                assert content(served(world)) == right
                mapping = slab_mapping(world.daemon.pid)
                assert " huge " in mapping and " bind:0 " in mapping, mapping
                with ballast.Client(world.socket, dp=1, cp=1) as client:
                    batch = next(iter(next(iter(client))))
                    plan = world.plan(batch.step)["micro_batches"]
                    mine = next(mb for mb in plan if (mb["dp"], mb["index"]) == (1, batch.index))
                    expected = Oracle([os.path.join(world.dir, "d")]).columns(mine, 1)
                    assert list(batch.tokens()) == list(expected[0]) and list(batch.labels()) == list(expected[1])
                world.stop()
    with small_world(slab={"huge_pages": "on"}) as world, open(POOL) as pool:
        if int(pool.read()) == 0:
            world.start(ready=False)
            assert world.daemon.wait(60) == 74 and "vm.nr_hugepages" in log(world), log(world)


if __name__ == "__main__":
    main(globals())
