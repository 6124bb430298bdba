/* config_keys: see config_keys.h. The table below is the configuration; the rest finds rows. */
#include "daemon/config_keys.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define FIELD(member)                                                                              \
    .offset = offsetof(struct config, member), .bytes = sizeof(((struct config *)0)->member)

static const struct config_key keys[] = {
    {.section = "job",
     .name = "seed",
     .fallback = "0",
     .unit = "",
     .reason = "Key of every shuffle: another seed is another stream of the same documents.",
     .kind = &kind_count,
     .max = UINT64_MAX,
     FIELD(source.order.seed),
     .plan = true},

    {.section = "corpus",
     .name = "epochs",
     .fallback = "repeat",
     .unit = "",
     .reason = "Passes over each dataset. A dataset that is through leaves the blend; the stream\n"
               "ends when all are. Training usually stops by steps, so the default never ends.",
     .kind = &kind_count,
     .words = "repeat",
     .min = 1,
     .max = 1000000,
     FIELD(source.epochs),
     .plan = true},
    {.section = "corpus",
     .name = "overlong",
     .fallback = "split",
     .unit = "",
     .reason = "What becomes of documents longer than the window: cut into parts that follow one\n"
               "another, cut off, left out, or refused at start. Splitting loses no token.",
     .kind = &kind_choice,
     .words = "split|truncate|drop|refuse",
     FIELD(source.overlong),
     .plan = true},
    {.section = "corpus",
     .name = "shuffle",
     .fallback = "block",
     .unit = "",
     .reason = "Reading order: blocks of neighbours, mixed a window at a time, so that reads\n"
               "coalesce; every document by itself; or the order of the file.",
     .kind = &kind_choice,
     .words = "block|full|none",
     FIELD(source.order.shuffle),
     .plan = true},
    {.section = "corpus",
     .name = "block_documents",
     .fallback = "256",
     .unit = "documents",
     .reason = "Neighbours that stay together: a few hundred documents are about 1 MB on disk.",
     .kind = &kind_count,
     .min = 1,
     .max = 1u << 24,
     FIELD(source.order.block_documents),
     .plan = true},
    {.section = "corpus",
     .name = "shuffle_window_blocks",
     .fallback = "64",
     .unit = "blocks",
     .reason = "Blocks whose documents are mixed with one another; more mixes better and reads\n"
               "worse.",
     .kind = &kind_count,
     .min = 1,
     .max = 1u << 24,
     FIELD(source.order.window_blocks),
     .plan = true},

    {.section = "plan",
     .name = "policy",
     .fallback = "wlb:level",
     .unit = "",
     .reason =
         "How documents become micro-batches: concatenated and cut at the window (plain), packed\n"
         "into the windows of K steps at once (fixed:K), of variable length and equal work\n"
         "(wlb:none), with long documents held back until every micro-batch can have one\n"
         "(wlb:bands), or until a step can hide them (wlb:level).",
     .kind = &kind_policy,
     .words = "plain|fixed:1 to fixed:64|wlb:none|wlb:bands|wlb:level",
     FIELD(plan.policy),
     .plan = true},
    {.section = "plan",
     .name = "window",
     .fallback = "131072",
     .unit = "tokens",
     .reason = "Nominal context length of a micro-batch, and the longest part of a document.",
     .kind = &kind_count,
     .min = 1,
     .max = TOKENS_MAX_LIMIT,
     FIELD(plan.window),
     .plan = true},
    {.section = "plan",
     .name = "micro_batches",
     .fallback = "8",
     .unit = "micro-batches",
     .reason = "Micro-batches of a whole step, over all replicas; parallel.dp divides it.",
     .kind = &kind_count,
     .min = 1,
     .max = MICRO_BATCHES_LIMIT,
     FIELD(plan.micro_batches),
     .plan = true},
    {.section = "plan",
     .name = "tokens_max",
     .fallback = "1.25w",
     .unit = "tokens",
     .reason = "Most tokens of one micro-batch, padding included: what must fit the GPU's memory.\n"
               "A quarter above the window lets light micro-batches carry more tokens.",
     .kind = &kind_windows,
     .min = 1,
     .max = TOKENS_MAX_LIMIT,
     FIELD(plan.tokens_max),
     .plan = true},
    {.section = "plan",
     .name = "step_tokens",
     .fallback = "auto",
     .unit = "tokens",
     .reason =
         "Tokens that a step aims at; auto is a window for every micro-batch, at most 95 % of\n"
         "what they hold.",
     .kind = &kind_count,
     .words = "auto",
     .min = 1,
     .max = STEP_TOKENS_LIMIT,
     FIELD(plan.step_tokens),
     .plan = true},
    {.section = "plan",
     .name = "loss_denominator",
     .fallback = "constant",
     .unit = "",
     .reason =
         "What the trainer divides a step's loss by: step_tokens, so that every token weighs\n"
         "the same in every step, or the labels that the step has.",
     .kind = &kind_choice,
     .words = "constant|label_tokens",
     FIELD(plan.loss_denominator),
     .plan = true},
    {.section = "plan",
     .name = "search",
     .fallback = "exact",
     .unit = "",
     .reason =
         "Bin for the next document: the least loaded that has room, or as WLB-LLM prints it,\n"
         "the least loaded, else the emptiest, else none.",
     .kind = &kind_choice,
     .words = "exact|paper",
     FIELD(plan.search),
     .plan = true},
    {.section = "plan",
     .name = "refine_gap",
     .fallback = "0.1%",
     .unit = "",
     .reason =
         "Documents are moved between micro-batches until the heaviest is this near to what no\n"
         "packing can beat, as far as the time for it reaches.",
     .kind = &kind_percent,
     .words = "off",
     .max = LEVEL_PPM,
     FIELD(plan.refine_gap_ppm),
     .plan = true},
    {.section = "plan",
     .name = "documents_max",
     .fallback = "65536",
     .unit = "documents",
     .reason = "Most documents of one step, or of the K steps of fixed:K together; reading stops\n"
               "there. Bounds the size of a plan.",
     .kind = &kind_count,
     .min = 1,
     .max = PARTS_LIMIT,
     FIELD(plan.documents_max),
     .plan = true},

    {.section = "parallel",
     .name = "dp",
     .fallback = "1",
     .unit = "replicas",
     .reason = "Data-parallel replicas of the job.",
     .kind = &kind_count,
     .min = 1,
     .max = CONFIG_REPLICAS_MAX,
     FIELD(plan.dp),
     .plan = true},
    {.section = "parallel",
     .name = "pp",
     .fallback = "1",
     .unit = "stages",
     .reason = "Pipeline stages of a replica.",
     .kind = &kind_count,
     .min = 1,
     .max = RANKS_LIMIT,
     FIELD(plan.pp),
     .plan = true},
    {.section = "parallel",
     .name = "cp",
     .fallback = "1",
     .unit = "ranks",
     .reason = "Context-parallel ranks that share a micro-batch's tokens.",
     .kind = &kind_count,
     .min = 1,
     .max = RANKS_LIMIT,
     FIELD(plan.cp),
     .plan = true},
    {.section = "parallel",
     .name = "tp",
     .fallback = "1",
     .unit = "ranks",
     .reason = "Tensor-parallel ranks that share a layer.",
     .kind = &kind_count,
     .min = 1,
     .max = RANKS_LIMIT,
     FIELD(plan.tp),
     .plan = true},

    {.section = "bands",
     .name = "thresholds",
     .fallback = "auto",
     .unit = "tokens",
     .reason =
         "Lengths from which documents wait for their like, one band each; auto is 3/8 and 5/8\n"
         "of the window. Without wlb:bands there are none.",
     .kind = &kind_thresholds,
     .min = 1,
     .max = TOKENS_MAX_LIMIT,
     FIELD(plan.bands),
     .plan = true},
    {.section = "bands",
     .name = "release",
     .fallback = "once",
     .unit = "",
     .reason =
         "Whether a band that is full several times over gives one group a step, which keeps\n"
         "steps alike, or all of them.",
     .kind = &kind_choice,
     .words = "once|all",
     FIELD(plan.bands.release),
     .plan = true},

    {.section = "level",
     .name = "preset",
     .fallback = "balanced",
     .unit = "",
     .reason =
         "The parameters below, together: even work with steps within a quarter of step_tokens;\n"
         "steps within 1 % of it; less delay; or work as even as bands make it, for micro-batches\n"
         "of two windows. Each may be set by itself, too.",
     .kind = &kind_choice,
     .words = "balanced|steady|prompt|fine",
     FIELD(plan.level_preset),
     .plan = true},
    {.section = "level",
     .name = "token_tolerance",
     .fallback = "preset",
     .unit = "",
     .reason = "Tokens by which a step may miss step_tokens, in percent of it.",
     .kind = &kind_percent,
     .words = "preset",
     .max = LEVEL_PPM,
     FIELD(plan.level.token_tolerance),
     .plan = true},
    {.section = "level",
     .name = "headroom_share",
     .fallback = "preset",
     .unit = "",
     .reason =
         "Share of the room between step_tokens and what the micro-batches hold that a step may\n"
         "use.",
     .kind = &kind_percent,
     .words = "preset",
     .max = LEVEL_PPM,
     FIELD(plan.level.headroom_share),
     .plan = true},
    {.section = "level",
     .name = "allowance",
     .fallback = "preset",
     .unit = "",
     .reason = "Predicted imbalance that is accepted while nothing is urgent.",
     .kind = &kind_percent,
     .words = "preset",
     .max = 1000 * LEVEL_PPM,
     FIELD(plan.level.allowance),
     .plan = true},
    {.section = "level",
     .name = "allowance_urgent",
     .fallback = "preset",
     .unit = "",
     .reason = "Predicted imbalance that is accepted when urgency is 1; at least allowance.",
     .kind = &kind_percent,
     .words = "preset",
     .max = 1000 * LEVEL_PPM,
     FIELD(plan.level.allowance_urgent),
     .plan = true},
    {.section = "level",
     .name = "allowance_ramp",
     .fallback = "preset",
     .unit = "",
     .reason = "What is added to it over the last quarter of urgency.",
     .kind = &kind_percent,
     .words = "preset",
     .max = 1000 * LEVEL_PPM,
     FIELD(plan.level.allowance_ramp),
     .plan = true},
    {.section = "level",
     .name = "urgency_power",
     .fallback = "preset",
     .unit = "",
     .reason = "Power of urgency between the two: 1 for less delay, 2 for balance.",
     .kind = &kind_parameter,
     .words = "preset",
     .min = 1,
     .max = 16,
     FIELD(plan.level.urgency_power),
     .plan = true},
    {.section = "level",
     .name = "imbalance_price",
     .fallback = "preset",
     .unit = "steps",
     .reason = "Steps of delay of step_tokens that an imbalance of 1 is worth.",
     .kind = &kind_parameter,
     .words = "preset",
     .max = 1000,
     FIELD(plan.level.imbalance_price),
     .plan = true},
    {.section = "level",
     .name = "max_age",
     .fallback = "preset",
     .unit = "steps",
     .reason =
         "Steps after which a waiting document is due, whatever it does to the balance. Several\n"
         "times micro_batches over the outliers of a step.",
     .kind = &kind_parameter,
     .words = "preset",
     .max = 1u << 20,
     FIELD(plan.level.max_age),
     .plan = true},
    {.section = "level",
     .name = "max_backlog",
     .fallback = "preset",
     .unit = "steps",
     .reason = "Waiting tokens, in steps' worth, at which urgency is 1.",
     .kind = &kind_steps,
     .words = "preset",
     .max = 1000 * LEVEL_PPM,
     FIELD(plan.level.max_backlog),
     .plan = true},
    {.section = "level",
     .name = "look_ahead",
     .fallback = "preset",
     .unit = "steps",
     .reason = "Steps that a long document may come early.",
     .kind = &kind_parameter,
     .words = "preset",
     .max = 1u << 12,
     FIELD(plan.level.look_ahead),
     .plan = true},
    {.section = "level",
     .name = "horizon",
     .fallback = "preset",
     .unit = "steps",
     .reason =
         "Steps that lengths are looked at ahead; at least look_ahead, and max_backlog and 2.",
     .kind = &kind_parameter,
     .words = "preset",
     .max = 1u << 13,
     FIELD(plan.level.horizon),
     .plan = true},
    {.section = "level",
     .name = "candidate_length",
     .fallback = "preset",
     .unit = "tokens",
     .reason = "Shorter documents never wait on purpose.",
     .kind = &kind_parameter,
     .words = "preset",
     .min = 1,
     .max = TOKENS_MAX_LIMIT,
     FIELD(plan.level.candidate_length),
     .plan = true},
    {.section = "level",
     .name = "companion",
     .fallback = "preset",
     .unit = "",
     .reason = "How long a document must be, of the longest beside it, to come early.",
     .kind = &kind_percent,
     .words = "preset",
     .max = LEVEL_PPM,
     FIELD(plan.level.companion),
     .plan = true},
    {.section = "level",
     .name = "max_evaluations",
     .fallback = "preset",
     .unit = "",
     .reason = "Releases that are predicted in a step, at most: time against balance.",
     .kind = &kind_parameter,
     .words = "preset",
     .min = 1,
     .max = 1u << 16,
     FIELD(plan.level.max_evaluations),
     .plan = true},
    {.section = "level",
     .name = "fit_window",
     .fallback = "preset",
     .unit = "documents",
     .reason = "Short documents that are tried after the first that does not fit a step any more.",
     .kind = &kind_parameter,
     .words = "preset",
     .min = 1,
     .max = 1u << 16,
     FIELD(plan.level.fit_window),
     .plan = true},

    {.section = "queues",
     .name = "max_age",
     .fallback = "64",
     .unit = "steps",
     .reason =
         "Steps after which a document waiting in a band is due, whatever it does to the balance.",
     .kind = &kind_count,
     .min = 1,
     .max = 1u << 20,
     FIELD(plan.bands.age_max),
     .plan = true},
    {.section = "queues",
     .name = "max_backlog",
     .fallback = "4",
     .unit = "steps",
     .reason =
         "Tokens that may be held beyond a step's own, in steps' worth; reading stops there.\n"
         "For wlb:bands and wlb:none: what waits under wlb:level is bounded by its clock.",
     .kind = &kind_count,
     .max = BACKLOG_LIMIT - 1,
     FIELD(plan.backlog_max),
     .plan = true},
    {.section = "queues",
     .name = "waiting_max",
     .fallback = "262144",
     .unit = "documents",
     .reason =
         "Documents that may be held, a step's own and those that wlb:level looks at ahead among\n"
         "them; reading stops there. Each that waits is up to 24 bytes of state. At least\n"
         "plan.documents_max.",
     .kind = &kind_count,
     .min = 1,
     .max = PARTS_LIMIT,
     FIELD(plan.waiting_max),
     .plan = true},

    {.section = "sharding",
     .name = "layouts",
     .fallback = "per-sequence,per-document",
     .unit = "",
     .reason =
         "How a micro-batch may be dealt to its context-parallel ranks; the one whose slowest\n"
         "rank is predicted fastest is taken. One name forces it.",
     .kind = &kind_layouts,
     .words = "per-sequence|per-document",
     .min = LAYOUT_PER_SEQUENCE,
     FIELD(plan.layouts.allowed),
     .plan = true},
    {.section = "sharding",
     .name = "fragments_max",
     .fallback = "65536",
     .unit = "fragments",
     .reason =
         "Layouts that cut a micro-batch into more fragments, all ranks together, are passed\n"
         "over. Bounds the size of a plan.",
     .kind = &kind_count,
     .min = 2,
     .max = 1u << 24,
     FIELD(plan.layouts.fragments_max),
     .plan = true},

    {.section = "model",
     .name = "layers",
     .fallback = "32",
     .unit = "layers",
     .reason = "Transformer layers of the whole model.",
     .kind = &kind_count,
     .min = 1,
     .max = 4096,
     FIELD(plan.model.layers),
     .plan = true},
    {.section = "model",
     .name = "hidden",
     .fallback = "4096",
     .unit = "",
     .reason = "Width of the residual stream.",
     .kind = &kind_count,
     .min = 1,
     .max = 1u << 20,
     FIELD(plan.model.hidden),
     .plan = true},
    {.section = "model",
     .name = "ffn",
     .fallback = "14336",
     .unit = "",
     .reason = "Inner width of the feed-forward layer (gated: three matrices).",
     .kind = &kind_count,
     .min = 1,
     .max = 1u << 22,
     FIELD(plan.model.ffn),
     .plan = true},
    {.section = "model",
     .name = "q_heads",
     .fallback = "32",
     .unit = "heads",
     .reason = "Query heads of a layer, all tensor-parallel ranks together.",
     .kind = &kind_count,
     .min = 1,
     .max = 1024,
     FIELD(plan.model.q_heads),
     .plan = true},
    {.section = "model",
     .name = "kv_heads",
     .fallback = "8",
     .unit = "heads",
     .reason = "Key and value heads of a layer, all tensor-parallel ranks together.",
     .kind = &kind_count,
     .min = 1,
     .max = 1024,
     FIELD(plan.model.kv_heads),
     .plan = true},
    {.section = "model",
     .name = "head_dim",
     .fallback = "128",
     .unit = "",
     .reason = "Width of a head; the analytic model has figures for 64 and 128.",
     .kind = &kind_count,
     .min = 1,
     .max = 1024,
     FIELD(plan.model.head_dim),
     .plan = true},
    {.section = "model",
     .name = "sm_margin",
     .fallback = "8",
     .unit = "SMs",
     .reason = "Streaming multiprocessors that attention leaves to communication.",
     .kind = &kind_count,
     .max = 64,
     FIELD(plan.model.sm_margin),
     .plan = true},
    {.section = "model",
     .name = "gemm_tflops",
     .fallback = "600",
     .unit = "TFLOP/s",
     .reason = "Rate of the matrix products as they run in training, not the data sheet's.",
     .kind = &kind_decimal,
     .min = 1,
     .max = 100000000,
     FIELD(plan.model.gemm_flops_per_ns),
     .plan = true},
    {.section = "model",
     .name = "memory_gbps",
     .fallback = "2800",
     .unit = "GB/s",
     .reason = "Rate of GPU memory as element-wise kernels reach it.",
     .kind = &kind_decimal,
     .min = 1,
     .max = 1000000000,
     FIELD(plan.model.memory_bytes_per_us),
     .plan = true},
    {.section = "model",
     .name = "cost",
     .fallback = "analytic",
     .unit = "",
     .reason = "What a document is taken to cost: from the model's shape on an H100, or in plain\n"
               "numbers L*(L+C) for a length L, written L2/C.",
     .kind = &kind_cost,
     .min = 1,
     .max = UINT32_MAX,
     FIELD(plan.model.cost_linear),
     .plan = true},

    {.section = "node",
     .name = "replicas",
     .fallback = "all",
     .unit = "",
     .reason = "Data-parallel replicas that have ranks on this node: only their tokens are read.",
     .kind = &kind_replicas,
     FIELD(replicas_local)},

    {.section = "daemon",
     .name = "socket",
     .fallback = "/run/ballast/ballast.sock",
     .unit = "",
     .reason = "Control socket; the data socket beside it has \".data\" appended.",
     .kind = &kind_path,
     .min = 1,
     .max = 102,
     FIELD(socket_path),
     .path = true},
    {.section = "daemon",
     .name = "state_dir",
     .fallback = "/var/lib/ballast",
     .unit = "",
     .reason = "Where the stream's position is kept, on a local disk; one daemon each.",
     .kind = &kind_path,
     .min = 1,
     .max = CONFIG_PATH_BYTES - 32,
     FIELD(state_dir),
     .path = true},
    {.section = "daemon",
     .name = "ahead_steps",
     .fallback = "4",
     .unit = "steps",
     .reason = "Steps planned and read ahead of the fastest rank: hides the disk and the commits.",
     .kind = &kind_count,
     .min = 1,
     .max = 1024,
     FIELD(ahead_steps)},
    {.section = "daemon",
     .name = "lease",
     .fallback = "60s",
     .unit = "",
     .reason = "Silence after which a lost rank no longer holds back the others.",
     .kind = &kind_duration,
     .min = 10,
     .max = 86400000,
     FIELD(lease_ms)},
    {.section = "daemon",
     .name = "allow_uids",
     .fallback = "",
     .unit = "",
     .reason = "Users whose trainers are served, beside root and the daemon's own.",
     .kind = &kind_uids,
     FIELD(uids_serve)},
    {.section = "daemon",
     .name = "admin_uids",
     .fallback = "",
     .unit = "",
     .reason = "Users who may look and administer, beside root and the daemon's own.",
     .kind = &kind_uids,
     FIELD(uids_admin)},
    {.section = "daemon",
     .name = "log_level",
     .fallback = "info",
     .unit = "",
     .reason = "Least important lines that are logged.",
     .kind = &kind_choice,
     .words = "error|warning|notice|info|debug",
     .min = 3,
     FIELD(log_level)},

    {.section = "reader",
     .name = "backend",
     .fallback = "auto",
     .unit = "",
     .reason =
         "How files are read: auto takes io_uring where the kernel and the container allow it,\n"
         "and a pool of threads elsewhere. The bytes are the same.",
     .kind = &kind_choice,
     .words = "auto|io_uring|pread",
     FIELD(reader_backend)},
    {.section = "reader",
     .name = "queue_depth",
     .fallback = "64",
     .unit = "reads",
     .reason = "Reads in flight: 64 of them keep an NVMe disk busy.",
     .kind = &kind_count,
     .min = 1,
     .max = 4096,
     FIELD(reader.queue_depth)},
    {.section = "reader",
     .name = "threads",
     .fallback = "4",
     .unit = "threads",
     .reason = "Threads of the pool: 4 for data in the page cache, 16 for a cold disk.",
     .kind = &kind_count,
     .min = 1,
     .max = 256,
     FIELD(reader.threads)},
    {.section = "reader",
     .name = "payload_hashes",
     .fallback = "false",
     .unit = "",
     .reason = "Whether every batch carries a hash of its tokens (about a memory copy's cost).",
     .kind = &kind_choice,
     .words = "false|true",
     FIELD(payload_hashes)},

    {.section = "slab",
     .name = "slots",
     .fallback = "auto",
     .unit = "slots",
     .reason = "Micro-batches in shared memory. auto holds, for each local replica, ahead_steps\n"
               "steps, what its ranks may have in flight (limits.credits) and 2.",
     .kind = &kind_count,
     .words = "auto",
     .min = 1,
     .max = 1u << 20,
     FIELD(slots)},

    {.section = "limits",
     .name = "connections",
     .fallback = "256",
     .unit = "connections",
     .reason = "Clients at a time; one more is turned away.",
     .kind = &kind_count,
     .min = 1,
     .max = 65536,
     FIELD(connections_max)},
    {.section = "limits",
     .name = "credits",
     .fallback = "8",
     .unit = "batches",
     .reason = "Batches that one rank may have in flight, however many it asks for.",
     .kind = &kind_count,
     .min = 1,
     .max = 1024,
     FIELD(credits_max)},
    {.section = "limits",
     .name = "steps_retained",
     .fallback = "1000",
     .unit = "steps",
     .reason = "Steps kept in the store behind the committed one, to be looked at.",
     .kind = &kind_count,
     .min = 1,
     .max = 1u << 24,
     FIELD(steps_retained)},
};

static const struct section {
    const char *name;
    const char *reason;
} sections[] = {
    {"job", "The stream's identity."},
    {"corpus", "What is read, and in which order."},
    {"plan", "How documents are packed into the micro-batches of a step."},
    {"parallel", "The job's mesh, the same on all nodes."},
    {"bands", "Outlier queues of wlb:bands (WLB-LLM, Algorithm 1)."},
    {"level", "How wlb:level releases outliers."},
    {"queues", "Bounds on what waits."},
    {"sharding", "Context-parallel layouts."},
    {"model", "The model and the machine, as the cost of a document depends on them."},
    {"node", "What this node serves."},
    {"daemon", "The process."},
    {"reader", "Reading tokens."},
    {"slab", "Shared memory in which batches are handed over."},
    {"limits", "Bounds on what clients and history take."},
};

#define KEY_COUNT     (sizeof keys / sizeof keys[0])
#define SECTION_COUNT (sizeof sections / sizeof sections[0])
_Static_assert(KEY_COUNT <= CONFIG_KEYS_MAX, "raise CONFIG_KEYS_MAX");
_Static_assert(LEVEL_AUTO == UINT32_MAX && REFINE_NOT == UINT32_MAX, "named values of kinds");
_Static_assert(RANKS_LIMIT <= CONFIG_REPLICAS_MAX, "replicas are up to parallel.dp");

size_t config_key_count(void) {
    return KEY_COUNT;
}

const struct config_key *config_key_at(size_t i) {
    assert(i < KEY_COUNT);
    return &keys[i];
}

size_t config_key_find(const char *section, const char *name) {
    size_t i = 0;
    while (i < KEY_COUNT &&
           (strcmp(keys[i].section, section) != 0 || strcmp(keys[i].name, name) != 0)) {
        i++;
    }
    return i;
}

static const struct section *section_find(const char *name) {
    for (size_t i = 0; i < SECTION_COUNT; i++) {
        if (strcmp(sections[i].name, name) == 0) {
            return &sections[i];
        }
    }
    return NULL;
}

bool config_section_known(const char *section) {
    return section_find(section) != NULL;
}

const char *config_section_reason(const char *section) {
    const struct section *found = section_find(section);
    return found == NULL ? "" : found->reason;
}

/* Levenshtein distance of the first 48 characters. */
static unsigned edit_distance(const char *a, const char *b) {
    unsigned row[49];
    size_t columns = strnlen(b, 48);
    for (size_t j = 0; j <= columns; j++) {
        row[j] = (unsigned)j;
    }
    for (size_t i = 1; i <= strnlen(a, 48); i++) {
        unsigned diagonal = row[0];
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= columns; j++) {
            unsigned change = diagonal + (a[i - 1] != b[j - 1]);
            unsigned add = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            diagonal = row[j];
            row[j] = change < add ? change : add;
        }
    }
    return row[columns];
}

/* Names further apart than this are not suggested: a third of the word, at least two letters. */
static unsigned nearness_limit(const char *word) {
    size_t third = strlen(word) / 3;
    return third < 2 ? 2 : (unsigned)third;
}

const struct config_key *config_key_nearest(const char *section, const char *name) {
    const struct config_key *best = NULL;
    unsigned best_distance = 2 * nearness_limit(name) + 1;
    for (size_t i = 0; i < KEY_COUNT; i++) {
        unsigned elsewhere = strcmp(keys[i].section, section) != 0;
        unsigned distance = 2 * edit_distance(keys[i].name, name) + elsewhere;
        if (distance < best_distance) {
            best = &keys[i];
            best_distance = distance;
        }
    }
    return best;
}

const char *config_section_nearest(const char *section) {
    const char *best = NULL;
    unsigned best_distance = nearness_limit(section) + 1;
    for (size_t i = 0; i < SECTION_COUNT; i++) {
        unsigned distance = edit_distance(sections[i].name, section);
        if (distance < best_distance) {
            best = sections[i].name;
            best_distance = distance;
        }
    }
    return best;
}
