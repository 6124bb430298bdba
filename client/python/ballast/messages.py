"""The messages of ballast.proto and ttrpc.proto that a client sends or receives, as tables."""

from typing import List, Optional, Tuple

from .wire import (BOOL, BYTES, I64, MESSAGE, MESSAGES, NUMBERS, ROWS, STRING, U32, U64, Schema, varint_bytes)

# the envelope
KEY_VALUE = Schema("KeyValue", key=(1, STRING), value=(2, STRING))
REQUEST = Schema("Request", service=(1, STRING), method=(2, STRING), payload=(3, BYTES),
                 timeout_nano=(4, I64), metadata=(5, MESSAGES, KEY_VALUE))
STATUS = Schema("Status", code=(1, U32), message=(2, STRING))
RESPONSE = Schema("Response", status=(1, MESSAGE, STATUS), payload=(2, BYTES))

RANK = Schema("Rank", dp=(1, U32), pp=(2, U32), cp=(3, U32), tp=(4, U32))
MESH = Schema("Mesh", dp=(1, U32), pp=(2, U32), cp=(3, U32), tp=(4, U32))
PARTS = {"plan": 1, "tokens": 2, "labels": 3}

HELLO_REQUEST = Schema(
    "HelloRequest", protocol_min=(1, U32), protocol_max=(2, U32), rank=(3, MESSAGE, RANK),
    parts=(4, NUMBERS), job_digest=(5, BYTES), client=(6, STRING), committed_step=(7, U64), generation=(8, U64))
HELLO_RESPONSE = Schema(
    "HelloResponse", protocol=(1, U32), daemon=(2, STRING), job_digest=(3, BYTES), mesh=(4, MESSAGE, MESH),
    next_step=(5, U64), micro_batches=(6, U32), tokens_max=(7, U64), token_bytes=(8, U32),
    data_token=(9, BYTES), slab_bytes=(10, U64), generation=(11, U64), data_path=(12, STRING),
    generation_step=(13, U64), generation_by=(14, STRING))

BATCH_ID = Schema("BatchId", step=(1, U64), dp=(2, U32), index=(3, U32))
STREAM_REQUEST = Schema("StreamRequest", credits=(1, U32), released=(2, MESSAGES, BATCH_ID),
                        waited_ns=(4, NUMBERS), reports_waits=(5, BOOL), **{"from": (3, MESSAGE, BATCH_ID)})


def released(batch: Optional[Tuple[int, int, int]], waits: List[int]) -> bytes:
    """The StreamRequest that goes out with every batch, as `encode` would have it: a credit back, and (step, dp, index)
    of the batch that held it, where the daemon knows it."""
    parts = [b"\x08\x01"]
    if batch is not None:
        known = b"".join([tag + varint_bytes(value) for tag, value in zip((b"\x08", b"\x10", b"\x18"), batch) if value])
        parts += [b"\x12", varint_bytes(len(known)), known]
    if waits:
        packed = b"".join([varint_bytes(value) for value in waits])
        parts += [b"\x22", varint_bytes(len(packed)), packed]
    return b"".join(parts)


END_OF_STEP = Schema("EndOfStep", step=(1, U64), plan_digest=(2, BYTES), micro_batches=(3, U32))
END_OF_DATA = Schema("EndOfData", step=(1, U64))

DOCUMENT = Schema("Document", dataset=(1, U32), document=(2, U64), offset=(3, U32), length=(4, U32),
                  nominal_step=(5, U64), epoch=(6, U64), document_length=(7, U32))
FRAGMENT = Schema("Fragment", document=(1, U32), start=(2, U32), length=(3, U32))
RANK_SHARD = Schema("RankShard", fragments=(1, ROWS, FRAGMENT), rows=(2, U64), pad_rows=(3, U64),
                    predicted_ns=(4, U64), pairs=(5, U64), kv_rows_in=(6, U64))
SHARDING = Schema("Sharding", layout=(1, U32), exchange=(2, U32), ranks=(3, MESSAGES, RANK_SHARD))
MICRO_BATCH = Schema("MicroBatch", dp=(1, U32), index=(2, U32), documents=(3, ROWS, DOCUMENT),
                     tokens=(4, U64), pad_tokens=(5, U64), work_ns=(6, U64), attention_ns=(7, U64),
                     other_ns=(8, U64), sharding=(9, MESSAGE, SHARDING))
TILE = Schema("Tile", dp=(1, U32), block=(2, U32), head_shard=(3, U32), home=(4, U32), worker=(5, U32),
              pairs=(6, U64), row=(7, U64), rows=(8, U64))
TRANSFER = Schema("Transfer", payload=(1, U32), source=(2, U32), worker=(3, U32), dp=(4, U32), row=(5, U64),
                  rows=(6, U64), head_begin=(7, U32), head_count=(8, U32), bytes=(9, U64))
POOL_REPLICA = Schema("PoolReplica", dp=(1, U32), tokens=(2, U64), lengths=(3, NUMBERS))
POOL_PART = Schema(
    "PoolPart", worker=(1, U32), tiles=(2, ROWS, TILE), transfers=(3, ROWS, TRANSFER), ga_index=(4, U32),
    replicas=(5, MESSAGES, POOL_REPLICA), block_tokens=(6, U32), head_shards=(7, U32), heads=(8, U32),
    kv_heads=(9, U32), head_dim=(10, U32), element_bytes=(11, U32))
# of the same bytes, with the plan of a micro-batch still packed
BATCH_ENVELOPE = Schema(
    "BatchEnvelope", id=(1, MESSAGE, BATCH_ID), plan=(2, BYTES), pool=(3, MESSAGE, POOL_PART),
    slab_offset=(4, U64), slab_bytes=(5, U64), slot_generation=(6, U64), payload_hash=(7, U64),
    plan_digest=(8, BYTES), loss_denominator=(9, U64), label_tokens=(10, U64), micro_batches=(11, U32))
STREAM_ENVELOPE = Schema("StreamEnvelope", batch=(1, MESSAGE, BATCH_ENVELOPE), end_of_step=(2, MESSAGE, END_OF_STEP),
                         end_of_data=(3, MESSAGE, END_OF_DATA))

MEASURED = Schema("Measured", index=(1, U32), attention_ns=(2, U64), total_ns=(3, U64),
                  expert_tokens=(4, NUMBERS))
COMMIT_REQUEST = Schema("CommitRequest", step=(1, U64), measured=(2, MESSAGES, MEASURED))
COMMIT_RESPONSE = Schema("CommitResponse", durable_step=(1, U64))
SEEK_REQUEST = Schema("SeekRequest", step=(1, U64), generation=(2, U64))
SEEK_RESPONSE = Schema("SeekResponse", next_step=(1, U64), generation=(2, U64), plan_digest=(3, BYTES))
EXPORT_REQUEST = Schema("ExportRequest", step=(1, U64))
EXPORT_RESPONSE = Schema("ExportResponse", state=(1, BYTES))
IMPORT_REQUEST = Schema("ImportRequest", state=(1, BYTES), generation=(2, U64))
IMPORT_RESPONSE = Schema("ImportResponse", next_step=(1, U64), generation=(2, U64), plan_digest=(3, BYTES))
PING_REQUEST = Schema("PingRequest")
PING_RESPONSE = Schema("PingResponse")

FETCH_REQUEST = Schema("FetchRequest", id=(1, MESSAGE, BATCH_ID))
FETCH_RESPONSE = Schema("FetchResponse", payload=(1, BYTES))

# of Admin.Status, what a doctor looks at
STATUS_REQUEST = Schema("StatusRequest")
RANK_STATUS = Schema("RankStatus", rank=(1, MESSAGE, RANK), pid=(2, U32), uid=(3, U32), step=(4, U64),
                     credits=(5, U32), waiting_ms=(6, U64), waits=(7, U64), waited_ns=(8, U64), waited_ns_max=(9, U64),
                     lease_ms=(10, U64), batches=(11, U64), waits_for=(12, MESSAGE, RANK), steps_behind=(13, U64),
                     led_ns=(14, U64))
STATUS_RESPONSE = Schema("StatusResponse", version=(1, STRING), job_digest=(2, BYTES), next_step=(3, U64),
                         committed_step=(4, U64), durable_step=(5, U64), generation=(6, U64),
                         ranks=(9, MESSAGES, RANK_STATUS), state=(17, STRING), io_lacks=(28, STRING))
