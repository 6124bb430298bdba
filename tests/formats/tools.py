"""What the tools write and read back, and what ranks receive of the same files. See tests/formats/run."""

import importlib
import json
import os
import sys

import numpy

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from formats import check_world  # noqa: E402
from world import Skip, World, main  # noqa: E402


def tool(name):
    """A module of a tool, or Skip with what importing it said."""
    try:
        return importlib.import_module(name)
    except Exception as error:  # whatever a tool's dependencies raise
        raise Skip(f"{name}: {error!r}"[:200]) from error


def documents(seed, count=400, longest=700, vocab=50000):
    """None is empty: some of the tools cannot write such."""
    rng = numpy.random.default_rng(seed)
    return [rng.integers(0, vocab, n) for n in numpy.clip(rng.lognormal(4.5, 1.3, count).astype(int), 1, longest)]


def check(written, read, path, world, code):
    assert len(written) == len(read)
    for mine, theirs in zip(written, read):
        assert numpy.array_equal(mine, theirs)
    check_world(world, [("tool", path, [numpy.asarray(d) for d in read], code)])


def test_megatron_core():
    module = tool("megatron.core.datasets.indexed_dataset")
    torch = tool("torch")
    for code, dtype in ((8, numpy.uint16), (4, numpy.int32)):
        with World() as world:
            prefix = os.path.join(world.dir, "x_text_document")
            builder = module.IndexedDatasetBuilder(prefix + ".bin", dtype=dtype)
            written = documents(1)
            for d in written:
                builder.add_document(torch.from_numpy(d.astype(numpy.int64)), [len(d)])
            builder.finalize(prefix + ".idx")
            dataset = module.IndexedDataset(prefix)
            check(written, [dataset[i] for i in range(len(dataset))], prefix, world, code)


def test_datatrove():
    module = tool("datatrove.pipeline.tokens.tokenizer")
    reader = tool("datatrove.utils.dataset")
    for code, size in ((8, 2), (9, 4)):
        with World() as world:
            written = documents(2)
            out = module.TokenizedFile(world.dir, "00000_unshuffled.ds", token_size=size, save_final_metadata=True,
                                       tokenizer_name_or_path="gpt2")
            for d in written:
                out.write(d.tolist(), None)
            out.close()
            path = os.path.join(world.dir, "00000_unshuffled.ds")
            windows = reader.DatatroveFileDataset(path, seq_len=0, token_size=size)
            tokens = numpy.array([int(windows[i]["input_ids"][0]) for i in range(len(windows))])
            read = numpy.split(tokens, numpy.cumsum([len(d) for d in written])[:-1])
            check(written, read, path, world, code)


def test_mosaicml_streaming():
    streaming = tool("streaming")
    variants = (({"tokens": "ndarray:uint16", "source": "str"}, numpy.uint16, 8, {}),
                ({"tokens": "ndarray"}, numpy.int32, 4, {"compression": "zstd:3", "hashes": ["xxh64"]}),
                ({"input_ids": "ndarray:int64"}, numpy.int64, 5, {}))
    for columns, dtype, code, options in variants:
        with World() as world:
            path = os.path.join(world.dir, "mds")
            written = documents(3)
            name = next(c for c in columns if c != "source")
            with streaming.MDSWriter(out=path, columns=columns, size_limit=1 << 14, **options) as out:
                for i, d in enumerate(written):
                    out.write({c: f"document {i}" if c == "source" else d.astype(dtype) for c in columns})
            copy = os.path.join(world.dir, "read")
            dataset = streaming.LocalDataset(path) if not options else streaming.StreamingDataset(
                remote=path, local=copy, shuffle=False, batch_size=1)
            check(written, [dataset[i][name] for i in range(len(written))], path, world, code)
            assert world.ctl_json("verify", path)["hashes"] == ("hold" if "hashes" in options else "none")


def items_torch(d):
    import torch
    yield torch.from_numpy(d.astype(numpy.int32))


def items_numpy(d):
    yield d.astype(numpy.uint16)


def test_litdata():
    litdata = tool("litdata")
    loader = tool("litdata.streaming.item_loader").TokensLoader
    for function, code, options in ((items_torch, 4, {}),
                                    (items_numpy, 8, {"compression": "zstd", "compression_level": "chunk"})):
        with World() as world:
            path = os.path.join(world.dir, "litdata")
            written = documents(4)
            litdata.optimize(fn=function, inputs=written, output_dir=path, chunk_size=4001, num_workers=1,
                             item_loader=loader(), **options)
            with open(os.path.join(path, "index.json"), encoding="utf-8") as f:
                assert json.load(f)["config"]["compression"] == options.get("compression")
            dataset = litdata.StreamingDataset(path, item_loader=loader(block_size=1), shuffle=False)
            tokens = numpy.array([int(dataset[i][0]) for i in range(len(dataset))])
            read = numpy.split(tokens, numpy.cumsum([len(d) for d in written])[:-1])
            check(written, read, path, world, code)


if __name__ == "__main__":
    main(globals())
