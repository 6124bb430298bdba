#!/usr/bin/python3
"""Every corpus format, written here byte for byte: ranks receive the documents that were written, compressed chunks
and manifests included, and a restart plans and reads the same."""

import gzip
import hashlib
import json
import os
import shutil
import struct
import subprocess
import time

import numpy
import xxhash

from world import Oracle, Skip, World, main, synthetic_documents, write_corpus

EOD = 50256


def save(path, *parts):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(b"".join(p if isinstance(p, bytes) else numpy.ascontiguousarray(p).tobytes() for p in parts))


def flat(documents, dtype):
    return numpy.concatenate([numpy.asarray(d, dtype) for d in documents] or [numpy.empty(0, dtype)])


def write_ds(path, documents, dtype="<u2"):
    """path is a folder of two files, as datatrove's tasks leave them."""
    half = len(documents) // 2
    for rank, some in enumerate((documents[:half], documents[half:])):
        name = os.path.join(path, f"{rank:05d}_unshuffled.ds")
        ends = numpy.cumsum([len(d) for d in some], dtype="<u8")
        total = int(ends[-1]) if some else 0
        save(name, flat(some, dtype))
        save(name + ".index", ends)
        save(name + ".metadata", f"gpt2|{numpy.dtype(dtype).itemsize}\n{total}\n{total} T".encode())


def write_npy(path, documents, dtype="<u4"):
    for part, some in enumerate((documents[:100], documents[100:])):
        name = os.path.join(path, f"part-0-{part:05d}")
        ends = numpy.cumsum([len(d) for d in some])
        save(name + ".npy", flat(some, dtype))
        rows = "".join(f'{e - len(d)},{e},id{i},"s3://a, b",{i}\n' for i, (d, e) in enumerate(zip(some, ends)))
        save(name + ".csv.gz", gzip.compress(rows.encode()))


def write_llm_c(prefix, documents, shard=3001):
    """The id leads; shards are cut anywhere."""
    tokens = flat(documents, "<u2")
    for i, at in enumerate(range(0, len(tokens), shard)):
        some = tokens[at : at + shard]
        header = numpy.zeros(256, "<i4")
        header[:3] = 20240520, 1, len(some)
        save(f"{prefix}_{i + 1:06d}.bin", header, some)


def chunk(samples, between=b""):
    begin = 4 + 4 * (len(samples) + 1) + len(between)
    offsets = begin + numpy.cumsum([0] + [len(s) for s in samples])
    return struct.pack("<I", len(samples)) + offsets.astype("<u4").tobytes() + between + b"".join(samples)


def mds_sample(document, source):
    tokens = numpy.asarray(document, "<i4").tobytes()
    size = 1 if len(document) < 256 else 2 if len(document) < 65536 else 4
    head = bytes([33, 1 << 2 | {1: 0, 2: 1, 4: 2}[size]]) + len(document).to_bytes(size, "little")
    return struct.pack("<II", len(source), len(head) + len(tokens)) + source + head + tokens


def zstd(path, level=3):
    if shutil.which("zstd") is None:
        raise Skip("no zstd program")
    subprocess.run(["zstd", "-q", f"-{level}", "--rm", path, "-o", path + ".zstd"], check=True)
    return path + ".zstd"


def write_mds(path, documents, compress=False, per_shard=60):
    shards = []
    for i, at in enumerate(range(0, len(documents), per_shard)):
        samples = [mds_sample(d, f"doc{at + j}".encode()) for j, d in enumerate(documents[at : at + per_shard])]
        name = f"shard.{i:05d}.mds"
        raw = chunk(samples, b'{"format": "mds"}')
        save(os.path.join(path, name), raw)
        shard = {"column_encodings": ["str", "ndarray"], "column_names": ["source", "tokens"],
                 "column_sizes": [None, None], "compression": None, "format": "mds", "hashes": [],
                 "raw_data": {"basename": name, "bytes": len(raw), "hashes": {}}, "samples": len(samples),
                 "size_limit": 1 << 26, "version": 2, "zip_data": None}
        if compress:
            packed = zstd(os.path.join(path, name))
            shard["compression"] = "zstd:3"
            shard["zip_data"] = {"basename": name + ".zstd", "bytes": os.path.getsize(packed), "hashes": {}}
        shards.append(shard)
    save(os.path.join(path, "index.json"), json.dumps({"version": 2, "shards": shards}).encode())


def write_litdata(path, documents, compress=False, per_chunk=70):
    chunks = []
    for i, at in enumerate(range(0, len(documents), per_chunk)):
        some = documents[at : at + per_chunk]
        name = os.path.join(path, f"chunk-0-{i}.bin")
        raw = chunk([numpy.asarray(d, "<u2").tobytes() for d in some])
        save(name, raw)
        if compress:
            os.rename(zstd(name), os.path.join(path, f"chunk-0-{i}.zstd.bin"))
        chunks.append({"chunk_bytes": len(raw), "chunk_size": len(some), "dim": sum(map(len, some)),
                       "filename": f"chunk-0-{i}{'.zstd' if compress else ''}.bin"})
    config = {"chunk_bytes": 64000000, "chunk_size": None, "compression": "zstd" if compress else None,
              "data_format": ["no_header_numpy:5"], "data_spec": "[1, {}]", "encryption": None,
              "item_loader": "TokensLoader"}
    save(os.path.join(path, "index.json"), json.dumps({"chunks": chunks, "config": config}).encode())


def led(documents):
    """Documents that begin with the id and have it nowhere else."""
    return [[EOD, *d] for d in documents]


def all_formats(folder, compress=False):
    """[(name, path, documents, Megatron's dtype code)], written."""
    made = []
    def add(name, path, documents, code, write, **options):
        write(os.path.join(folder, path), documents, **options)
        made.append((name, os.path.join(folder, path), documents, code))
    def some(seed):
        return synthetic_documents(seed, 150, 900)
    add("ds", "ds", some(1), 8, write_ds)
    add("olmo", "olmo", some(2), 9, write_npy)
    add("llmc", "llmc/train", led(some(3)), 8, write_llm_c)
    add("mds", "mds", some(4), 4, write_mds, compress=compress)
    add("litdata", "litdata/", some(5), 8, write_litdata, compress=compress)
    return made


def megatron_copies(folder, made):
    prefixes = []
    for name, _, documents, code in made:
        prefixes.append(os.path.join(folder, "copy." + name))
        write_corpus(prefixes[-1], documents, code)
    return prefixes


SETTINGS = {"plan": {"window": 512, "micro_batches": 4}, "corpus": {"epochs": 1}}


def check_rank(world, oracle, lines):
    plans = world.plans()
    batches = [(plan, mb) for plan in plans for mb in plan["micro_batches"]]
    assert len(batches) == len(lines) > 50
    for (plan, mb), line in zip(batches, lines):
        assert (line["step"], line["index"]) == (plan["step"], mb["index"])
        assert line["tokens_xxh"] == oracle.hash(mb, 0), (plan["step"], mb["index"])
    return sum(d["length"] for _, mb in batches for d in mb["documents"])


def check_world(world, made, manifests=False):
    oracle = Oracle(megatron_copies(world.dir, made))
    world.config([(name, path, 1) for name, path, _, _ in made], SETTINGS)
    if manifests:
        for _, path, _, _ in made:
            world.ctl("verify", "--write-manifest", path)
    world.start()
    lines = world.rank().finish()
    world.stop()
    tokens = check_rank(world, oracle, lines)
    assert tokens == sum(len(d) for _, _, documents, _ in made for d in documents)
    return lines


def test_ranks_receive_the_documents_of_every_format():
    with World() as world:
        check_world(world, all_formats(world.dir))


def test_compressed_chunks_are_decompressed_once():
    with World() as world:
        made = all_formats(world.dir, compress=True)
        lines = check_world(world, made)
        derived = os.path.join(world.state, "derived")
        times = {name: os.stat(os.path.join(derived, name)).st_mtime_ns for name in os.listdir(derived)}
        assert len(times) > 6
        world.start()
        world.stop()
        assert times == {name: os.stat(os.path.join(derived, name)).st_mtime_ns for name in os.listdir(derived)}
        assert lines


def test_damage_to_any_file_of_a_folder_is_found_by_its_manifest():
    with World() as world:
        made = all_formats(world.dir)
        check_world(world, made, manifests=True)
        for name, path, _, _ in made:
            shown = world.ctl_json("verify", path)
            assert shown["manifest"] == "holds", name
        victims = ("ds/00001_unshuffled.ds", "olmo/part-0-00001.npy", "llmc/train_000002.bin",
                   "mds/shard.00001.mds", "litdata/chunk-0-1.bin")
        for victim, (name, path, _, _) in zip(victims, made):
            victim = os.path.join(world.dir, victim)
            with open(victim, "r+b") as f:
                f.seek(-9, os.SEEK_END)
                byte = f.read(1)[0]
                f.seek(-9, os.SEEK_END)
                f.write(bytes([byte ^ 1]))
            done = world.ctl("verify", path, expect=1)
            assert "manifest" in done.stderr and path.rstrip("/") in done.stderr, (name, done.stderr)


def test_hashes_of_an_index_are_compared():
    hashes = {"xxh64": xxhash.xxh64, "xxh3_64": xxhash.xxh3_64, "xxh128": xxhash.xxh128, "xxh32": xxhash.xxh32,
              "sha1": hashlib.sha1, "sha256": hashlib.sha256, "md5": hashlib.md5, "sha3_256": hashlib.sha3_256}
    with World() as world:
        path = os.path.join(world.dir, "mds")
        write_mds(path, synthetic_documents(4, 150, 900), compress=True)
        index = os.path.join(path, "index.json")

        def hashed(extra=()):
            with open(index) as f:
                whole = json.load(f)
            for shard in whole["shards"]:
                packed = os.path.join(path, shard["zip_data"]["basename"])
                raw = subprocess.run(["zstd", "-dqc", packed], stdout=subprocess.PIPE, check=True).stdout
                with open(packed, "rb") as f:
                    zipped = f.read()
                shard["raw_data"]["hashes"] = {n: h(raw).hexdigest() for n, h in hashes.items()} | dict(extra)
                shard["zip_data"]["hashes"] = {n: h(zipped).hexdigest() for n, h in hashes.items()}
            save(index, json.dumps(whole).encode())

        assert world.ctl_json("verify", path)["hashes"] == "none"
        hashed()
        assert world.ctl_json("verify", path)["hashes"] == "hold"
        assert "those of 6 files hold" in world.ctl("verify", path).stdout
        hashed({"blake2b": "00"})
        assert world.ctl_json("verify", path)["hashes"] == "unknown"
        assert "3 by blake2b and the like were not compared" in world.ctl("verify", path).stdout
        for name in hashes:
            hashed({name: "00" * 8})
            done = world.ctl("verify", path, expect=1)
            assert f"its {name} is " in done.stderr and "copy it again" in done.stderr, done.stderr
        hashed()
        victim = os.path.join(path, "shard.00001.mds.zstd")
        with open(victim, "ab") as f: # a skippable frame: the same shard comes out
            f.write(struct.pack("<II", 0x184D2A50, 1) + b"x")
        done = world.ctl("verify", path, expect=1)
        assert "shard.00001.mds.zstd: its " in done.stderr and "index.json says " in done.stderr, done.stderr


def test_derived_files_are_shown_and_removed_when_stale():
    with World() as world:
        path = os.path.join(world.dir, "litdata")
        documents = synthetic_documents(5, 150, 900)
        write_litdata(path, documents, compress=True)
        world.config([("d", path, 1)], SETTINGS)
        def shown(*arguments):
            return world.ctl_json("--config", world.config_path, "derived", *arguments)
        assert shown() == {"bytes": 0, "files": 0, "folder": os.path.join(world.state, "derived"), "in_use": False,
                           "oldest_s": 0, "removed": False, "stale_bytes": 0, "stale_files": 0}
        world.start()
        kept = shown()
        assert kept["files"] == 3 and kept["bytes"] > 0 and kept["in_use"] and kept["stale_files"] == 0, kept
        done = world.ctl("--config", world.config_path, "derived", "--prune", expect=1)
        assert "nothing was removed" in done.stderr, done.stderr
        world.stop()
        for name in os.listdir(path):
            os.utime(os.path.join(path, name), (1, 1)) # another version of each
        world.start()
        kept = shown()
        assert (kept["files"], kept["stale_files"]) == (6, 3), kept
        world.stop()
        world.start() # removes them
        assert (shown()["files"], shown()["stale_files"]) == (3, 0)
        with open(world.daemon_log) as f:
            assert "stale files were removed files=3" in f.read()
        derived = os.path.join(world.state, "derived")
        os.unlink(os.path.join(derived, sorted(n for n in os.listdir(derived) if n != "lock")[0]))
        code, text = world.rank().wait()
        assert code != 0 and "dataset 'd': " in text and "start the daemon again" in text, text
        world.stop()
        world.start()
        world.rank(steps=3).finish()
        assert shown()["files"] == 3, "it was made again"
        world.stop()
        for name in os.listdir(derived):
            os.utime(os.path.join(derived, name), (time.time() - 31 * 86400, os.stat(os.path.join(derived, name)).st_mtime))
        assert shown()["stale_files"] == 3
        assert "removed" in world.ctl("--config", world.config_path, "derived", "--prune").stdout
        assert os.listdir(derived) == ["lock"]


def test_what_was_derived_is_used_on_a_file_system_that_may_only_be_read():
    with World() as world:
        path, derived = (os.path.join(world.dir, name) for name in ("litdata", "derived"))
        write_litdata(path, synthetic_documents(5, 150, 900), compress=True)
        os.mkdir(derived)
        world.config([("d", path, 1)], {**SETTINGS, "corpus": {"epochs": 1, "derived": derived}})
        world.start()
        world.stop()
        if subprocess.run(["mount", "--bind", derived, derived], capture_output=True).returncode != 0:
            raise Skip("nothing can be mounted here")
        try:
            for lock in (True, False): # an image may have been made without it
                if not lock:
                    os.unlink(os.path.join(derived, "lock"))
                subprocess.run(["mount", "-o", "remount,ro,bind", derived], check=True)
                world.start()
                assert world.rank(steps=2).finish()
                world.stop()
                kept = world.ctl_json("--config", world.config_path, "derived", "--prune")
                assert (kept["files"], kept["in_use"], kept["stale_files"]) == (3, False, 0), kept
                subprocess.run(["mount", "-o", "remount,rw,bind", derived], check=True)
            for name in os.listdir(derived):
                os.utime(os.path.join(derived, name), (1, 1))
            subprocess.run(["mount", "-o", "remount,ro,bind", derived], check=True)
            done = world.ctl("--config", world.config_path, "derived", "--prune", expect=1)
            assert "cannot be removed (Read-only file system)" in done.stderr, done.stderr
        finally:
            subprocess.run(["umount", "-l", derived], check=True)


def test_a_token_file_without_an_index_needs_the_users_word():
    with World() as world:
        documents = [[*d, EOD] for d in synthetic_documents(8, 150, 900)]
        prefix = os.path.join(world.dir, "nano")
        save(prefix + ".bin", flat(documents, "<u2"))
        done = world.ctl("verify", prefix, expect=None)
        assert done.returncode != 0 and "corpus.format = bin" in done.stderr, done.stderr
        shown = world.ctl_json("verify", prefix, "--format", "bin", "--eod", EOD, "--vocab", EOD + 1)
        assert (shown["documents"], shown["tokens"], shown["format"]) == (150, sum(map(len, documents)), "bin")
        world.config([("nano", prefix, 1)],
                     {**SETTINGS, "corpus": {"epochs": 1, "format": "bin", "eod": EOD}})
        write_corpus(os.path.join(world.dir, "copy"), documents)
        world.start()
        lines = world.rank().finish()
        world.stop()
        check_rank(world, Oracle([os.path.join(world.dir, "copy")]), lines)


def test_a_format_may_change_under_the_same_tokens():
    """The stream is of the tokens: the daemon that had .ds goes on with Megatron's files."""
    with World() as world:
        documents = synthetic_documents(9, 400, 900)
        write_ds(os.path.join(world.dir, "ds"), documents)
        write_corpus(os.path.join(world.dir, "megatron"), documents)
        world.config([("d", os.path.join(world.dir, "ds"), 1)], SETTINGS)
        world.start()
        first = world.rank(steps=10).finish()
        world.stop()
        world.config([("d", os.path.join(world.dir, "megatron"), 1)], SETTINGS)
        world.start()
        rest = world.rank().finish()
        world.stop()
        assert rest[0]["step"] == first[-1]["step"] + 1
        check_rank(world, Oracle([os.path.join(world.dir, "megatron")]), first + rest)


if __name__ == "__main__":
    main(globals())
