"""What libballast's functions of a batch give for a batch of the Python client, by ctypes: the structs of
client/ballast.h, filled from the Python batch's own tables."""

import ctypes
import os

import numpy

from world import BIN

LIBRARY = os.path.join(BIN, "../client/libballast.so")
U32, U64, P = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p
FRAGMENT = numpy.dtype([(name, "<u4") for name in ("document", "start", "length", "row")])
DOCUMENT = numpy.dtype([("dataset", "<u4"), ("document", "<u8"), ("offset", "<u4"), ("length", "<u4"),
                        ("document_length", "<u4"), ("nominal_step", "<u8"), ("epoch", "<u8")], align=True)
RUN = numpy.dtype([(name, "<u4") for name in ("document", "start", "length", "row")])


class Shard(ctypes.Structure):
    _fields_ = [("rows", U64), ("pad_rows", U64), ("fragment_count", U32), ("fragments", P)]


class Batch(ctypes.Structure):
    _fields_ = [("step", U64), ("dp", U32), ("index", U32), ("plan_digest", ctypes.c_uint8 * 16), ("layout", U32),
                ("rows", U64), ("pad_rows", U64), ("loss_denominator", U64), ("label_tokens", U64), ("waited_us", U64),
                ("document_count", U32), ("fragment_count", U32), ("documents", P), ("fragments", P),
                ("micro_batches", U32), ("group_rank", U32), ("group_ranks", U32), ("shards", ctypes.POINTER(Shard)),
                ("exchange", U32), ("pool", P)]


class Llama3(ctypes.Structure):
    _fields_ = [("cu_seqlens_q", P), ("cu_seqlens_k", P), ("capacity", ctypes.c_size_t), ("max_seqlen_q", ctypes.c_int32),
                ("max_seqlen_k", ctypes.c_int32), ("key_begin", ctypes.c_int64), ("key_end", ctypes.c_int64)]


def records(table, dtype):
    out = numpy.zeros(len(table), dtype)
    for name in dtype.names:
        out[name] = table.columns[name]
    return out


class Forms:
    """The C functions for one batch."""

    library = None

    def __init__(self, batch):
        if Forms.library is None:
            Forms.library = ctypes.CDLL(LIBRARY)
            for name in ("ballast_order", "ballast_key_index"):
                getattr(Forms.library, name).restype = ctypes.c_int64
        tables = [records(shard.fragments, FRAGMENT) for shard in batch.shards]
        documents = records(batch.documents, DOCUMENT)
        shards = (Shard * len(tables))(*(Shard(s.rows, s.pad_rows, len(t), t.ctypes.data) for s, t in zip(batch.shards, tables)))
        me = tables[batch.group_rank]
        self.kept = (tables, documents, shards)
        self.batch = Batch(batch.step, batch.dp, batch.index, layout=batch.layout, rows=batch.rows, pad_rows=batch.pad_rows,
                           document_count=len(documents), fragment_count=len(me), documents=documents.ctypes.data,
                           fragments=me.ctypes.data, micro_batches=batch.micro_batches, group_rank=batch.group_rank,
                           group_ranks=len(tables), shards=shards, exchange=batch.exchange)

    def call(self, name, *arguments):
        return getattr(self.library, name)(ctypes.byref(self.batch), *(
            a.ctypes.data_as(P) if isinstance(a, numpy.ndarray) else a for a in arguments))

    def cu_seqlens(self):
        q, k = (numpy.empty(self.batch.fragment_count + 1, "int32") for _ in range(2))
        assert self.call("ballast_cu_seqlens", q, k, ctypes.c_size_t(len(q))) == len(q)
        return q, k

    def max_seqlens(self):
        q, k = numpy.empty(1, "int32"), numpy.empty(1, "int32")
        assert self.call("ballast_max_seqlens", q, k) == 0
        return int(q[0]), int(k[0])

    def order(self):
        order = numpy.empty(self.batch.rows * self.batch.group_ranks, "int32")
        assert self.call("ballast_order", order, ctypes.c_size_t(len(order))) == len(order)
        return order

    def key_index(self, order, keys):
        index = numpy.empty(keys, "int32")
        assert self.call("ballast_key_index", order, index, ctypes.c_size_t(keys)) == keys
        return index

    def key_runs(self, reader, owner):
        runs = numpy.empty(self.kept[0][owner].size, RUN)
        found = self.call("ballast_key_runs", reader, owner, runs, ctypes.c_size_t(len(runs)))
        assert found >= 0, found
        return runs[:found].tolist()

    def thd(self, name):
        """(cu_seqlens, longest) of ballast_thd or ballast_zigzag, or the sentence of its refusal."""
        out, longest, why = numpy.empty(self.batch.document_count + 1, "int32"), numpy.empty(1, "int32"), ctypes.create_string_buffer(256)
        found = self.call(name, out, ctypes.c_size_t(len(out)), longest, why, ctypes.c_size_t(256))
        return (out.tolist(), int(longest[0])) if found == len(out) else why.value.decode()

    def llama3(self):
        out, why = numpy.empty((2, self.batch.document_count + 2), "int32"), ctypes.create_string_buffer(256)
        form = Llama3(out[0].ctypes.data, out[1].ctypes.data, out.shape[1])
        found = self.call("ballast_llama3", ctypes.byref(form), why, ctypes.c_size_t(256))
        if found < 0:
            return why.value.decode()
        return (out[0][:found].tolist(), out[1][:found].tolist(), form.max_seqlen_q, form.max_seqlen_k, form.key_begin, form.key_end)


def plain(form):
    return tuple(value.tolist() if isinstance(value, numpy.ndarray) else value for value in form)


def compare_forms(batch, unsupported):
    """Every derived form of a Python batch against the C function's output; `unsupported` is the error of a
    form that the batch does not have."""
    c = Forms(batch)
    assert plain(batch.cu_seqlens()) == plain(c.cu_seqlens()) and batch.max_seqlens() == c.max_seqlens()
    order = batch.order()
    assert (order == c.order()).all()
    keys = batch.key_index(order)
    assert (keys == c.key_index(order, len(keys))).all() and len(keys) == batch.cu_seqlens()[1][-1]
    ranks = range(batch.group_ranks)
    for reader, owner in ((r, o) for r in ranks for o in ranks if r != o):
        assert [tuple(map(int, run)) for run in batch.key_runs(reader, owner)] == c.key_runs(reader, owner)
    for ours, theirs in ((batch.thd, lambda: c.thd("ballast_thd")), (batch.zigzag, lambda: c.thd("ballast_zigzag")),
                         (batch.llama3, c.llama3)):
        try:
            assert plain(ours()) == theirs()
        except unsupported:
            assert isinstance(theirs(), str) and theirs(), "C takes it"
