#!/usr/bin/env python3
"""Seeded bugs of the kernels: each is put in, compiled for the emulator and must be found.

BUGS is the list: name, file, what is there, what stands there instead. A bug whose text is not there
exactly once (or as often as it says) fails the test: the list follows the kernels.
"""
import concurrent.futures
import os
import subprocess
import sys
import tempfile
import time

import patched

F, B, Q, R, C = "forward.h", "backward.h", "backward_queries.h", "rows.h", "block.h"

BUGS = [
    # Forward: operands and their layouts.
    ("k_step", C, "(uint32_t)(k % 4) * 32", "(uint32_t)(k % 4) * 16"),
    ("bad_stride", C, "16, 8 * ROW_BYTES);", "16, 16 * ROW_BYTES);"),
    ("bad_lead", C, "panel_rows * ROW_BYTES, 8 * ROW_BYTES)", "panel_rows * 64, 8 * ROW_BYTES)"),
    ("swapped_panels", C, "full, panel * 64, head", "full, (PANELS - 1 - panel) * 64, head"),
    ("scores_not_reset", F, "0, k), k > 0);", "0, k), 1);"),
    ("o_not_reset", F, "clear_sums(o, HEAD_DIM / 2);", "o[0] += 0;"),
    ("consumer_row", F, "ATTN_TILE_ROWS, consumer * 64, k)", "ATTN_TILE_ROWS, 0, k)"),
    ("stages_overlap", F, "block.v = base + FORWARD_V;", "block.v = base + FORWARD_V - 1024;"),
    ("beyond_shared", F, "block.q_full = base + FORWARD_BARRIERS;",
     "block.q_full = base + FORWARD_BARRIERS + 1024;"),
    # Forward: barriers and their counts.
    ("no_k_wait", F, """    for (b--; b >= 0; b--) {
        mbarrier_wait(block->k_full + 8 * k->stage, k->parity);""", "    for (b--; b >= 0; b--) {"),
    ("no_v_wait", F, """        mbarrier_wait(block->v_full + 8 * v->stage, v->parity);
        forward_values""", "        forward_values"),
    ("no_last_v_wait", F, """    warp_arrive(block->q_empty, place.lane);
    mbarrier_wait(block->v_full + 8 * v->stage, v->parity);""",
     "    warp_arrive(block->q_empty, place.lane);"),
    ("no_q_wait", F, "            mbarrier_wait(block->q_full, q.parity);\n", ""),
    ("no_q_empty_wait", F, "        mbarrier_wait(block->q_empty, q.parity ^ 1);\n", ""),
    ("no_k_empty_wait", F, "    mbarrier_wait(block->k_empty + 8 * ring.stage, ring.parity ^ 1);\n",
     ""),
    ("early_k_release", F, """    WGMMA_WAIT(0);
    wgmma_hold(s, ATTN_KEYS / 2);
    warp_arrive(block->k_empty + 8 * k->stage, place.lane);""",
     """    warp_arrive(block->k_empty + 8 * k->stage, place.lane);
    WGMMA_WAIT(0);
    wgmma_hold(s, ATTN_KEYS / 2);"""),
    ("early_v_release", F, """        WGMMA_WAIT(0);
        wgmma_hold(o, HEAD_DIM / 2);
        warp_arrive(block->v_empty + 8 * v->stage, place.lane);""",
     """        warp_arrive(block->v_empty + 8 * v->stage, place.lane);
        WGMMA_WAIT(0);
        wgmma_hold(o, HEAD_DIM / 2);"""),
    ("no_fence", F, """    wgmma_hold(o, HEAD_DIM / 2);
    wgmma_fence();
#pragma""", """    wgmma_hold(o, HEAD_DIM / 2);
#pragma"""),
    ("no_wait_before_softmax", F, "        WGMMA_WAIT(1);\n", ""),
    ("no_wait_before_rescale", F, """        WGMMA_WAIT(0);
        wgmma_hold(o, HEAD_DIM / 2);
        warp_arrive""", "        warp_arrive"),
    ("probabilities_packed_early", F, """        softmax_step(softmax, s, params->scale_log2);
        WGMMA_WAIT(0);""", """        softmax_step(softmax, s, params->scale_log2);
        forward_pack(s, p);
        WGMMA_WAIT(0);"""),
    ("parity", C, "ring->parity ^= 1;\n    }", "ring->parity ^= 0;\n    }"),
    ("empty_count", C, "mbarrier_init(empty + 8 * i, CONSUMER_WARPS);",
     "mbarrier_init(empty + 8 * i, CONSUMER_WARPS + 1);"),
    ("empty_count_low", C, "mbarrier_init(empty + 8 * i, CONSUMER_WARPS);",
     "mbarrier_init(empty + 8 * i, CONSUMER_WARPS / 2);"),
    ("bytes", F, "mbarrier_expect(block->v_full + 8 * ring.stage, FORWARD_BYTES);",
     "mbarrier_expect(block->v_full + 8 * ring.stage, FORWARD_BYTES - 128);"),
    ("group_bytes", F, "(uint32_t)(ATTN_TILE_ROWS / params->group * params->group);",
     "(uint32_t)ATTN_TILE_ROWS;"),
    ("one_arrival_per_warpgroup", C, "DEVICE void warp_arrive(uint32_t barrier, uint32_t lane) {\n"
     "    if (lane == 0) {\n        mbarrier_arrive(barrier);",
     "DEVICE void warp_arrive(uint32_t barrier, uint32_t lane) {\n"
     "    if (lane == 0 && thread_index() % 128 == 0) {\n"
     "        for (int i = 0; i < 4; i++) mbarrier_arrive(barrier);"),
    ("no_first_turn", F, "        barrier_arrive(FORWARD_TURN, CONSUMER_THREADS);\n", ""),
    ("no_last_turn", F, "        barrier_sync(FORWARD_TURN, CONSUMER_THREADS);\n", ""),
    ("producer_skips_less", F, "t >= params->tile_count || params->tiles[t].blocks == 0",
     "t >= params->tile_count"),
    # Forward: masks, heads, rows.
    ("mask_off_by_one", C, "i % 2 > last_key", "i % 2 >= last_key"),
    ("mask_skipped", F, "if (key + ATTN_KEYS - 1 <= min_int", "if (key + ATTN_KEYS - 17 <= min_int"),
    ("mask_token", F, "tile->tile.reach + (int)at.token);", "tile->tile.reach + (int)at.token + (int)at.head);"),
    ("kv_head", F, "tile->kv_head, row, ATTN_KEYS);", "tile->head, row, ATTN_KEYS);", 2),
    ("row_guard", F, "at.token >= tile->tokens || at.head >= tile->heads", "at.head >= tile->heads"),
    ("head_guard", F, "at.token >= tile->tokens || at.head >= tile->heads", "at.token >= tile->tokens"),
    ("blind_rows", F, "largest == -INFINITY ? 0 : largest", "largest"),
    ("no_rescale", F, "        softmax_rescale(softmax, o);\n", ""),
    ("tail_not_cleared", F, "if (params->zero_tails && b *", "if (0 && b *"),
    ("tail_one_short", F, "(uint32_t)(tile->tile.keys - b * ATTN_KEYS), ATTN_KEYS, FORWARD",
     "(uint32_t)(tile->tile.keys - b * ATTN_KEYS) + 1, ATTN_KEYS, FORWARD"),
    ("turn_order", C, "blocks - 1 - block_index()", "block_index() + 1"),
    # Backward by key tiles.
    ("bwd_no_kv_wait", B, "            mbarrier_wait(block->kv_full, kv.parity);\n", ""),
    ("bwd_no_q_empty_wait", B,
     "    mbarrier_wait(block->q_empty + 8 * ring.stage, ring.parity ^ 1);\n", ""),
    ("bwd_early_q_release", B, """    backward_accumulate(ds, q, dk);
    wgmma_commit();""", """    backward_accumulate(ds, q, dk);
    if (place.lane == 0) { mbarrier_arrive(block->q_empty + 8 * stage); return; }
    wgmma_commit();"""),
    ("bwd_no_wait_for_scores", B, "    WGMMA_WAIT(1);\n    wgmma_hold(s, 32);\n    backward_mask",
     "    backward_mask"),
    ("bwd_no_wait_for_dp", B, "    WGMMA_WAIT(1);\n    wgmma_hold(d, 32);\n", ""),
    ("bwd_no_fence", B, """    wgmma_hold(d, HEAD_DIM / 2);
    wgmma_fence();""", "    wgmma_hold(d, HEAD_DIM / 2);"),
    ("bwd_no_ds_fence", B, "        backward_store_ds(block->ds, place, ds);\n        fence_async();",
     "        backward_store_ds(block->ds, place, ds);"),
    ("bwd_no_ds_barrier", B, """        fence_async();
        backward_ds_barrier(place.consumer);""", "        fence_async();"),
    ("bwd_no_ds_reuse_barrier", B,
     "        backward_ds_barrier(place.consumer); /* the one before has been multiplied */\n", ""),
    ("bwd_ds_swizzle", B, "(first ^ (2 * k + i / 2) * 16)", "(first + (2 * k + i / 2) * 16)"),
    ("bwd_dq_panel", B, "uint32_t panel = PANELS == 2 ? consumer : 0;", "uint32_t panel = 0;"),
    ("bwd_dq_keys", B, "i < ATTN_KEYS * PANELS / 32", "i < ATTN_KEYS * PANELS / 64"),
    ("bwd_stage_reused_early", B, "        BULK_WAIT_READ(0);\n", ""),
    ("bwd_no_stage_fence", B, "    backward_stage_dq(staged, place, d);\n    fence_async();",
     "    backward_stage_dq(staged, place, d);"),
    ("bwd_no_stage_barrier", B, "    fence_async();\n    barrier_sync(barrier, CONSUMER_THREADS / 2);",
     "    fence_async();"),
    ("bwd_ends_before_sums_land", B, "        BULK_WAIT(0);\n", ""),
    ("bwd_sum_columns", B, "staged + ATTN_STEP_ROWS * ROW_BYTES, column + 32",
     "staged + ATTN_STEP_ROWS * ROW_BYTES, column"),
    ("bwd_mask_off_by_one", B, "8 > min_int(step->keys - 1, reach)",
     "8 >= min_int(step->keys - 1, reach)"),
    ("bwd_mask_skipped", B, "if (tile->key + ATTN_KEYS - 1 <=", "if (tile->key + ATTN_KEYS - 33 <="),
    ("bwd_unloaded_rows", B, "    backward_clear_unloaded(params, block);\n", ""),
    ("bwd_group_bytes", B, "(uint32_t)(ATTN_STEP_ROWS / params->pack * params->pack);",
     "(uint32_t)ATTN_STEP_ROWS;"),
    ("bwd_key_guard", B, "        if (key < tile->rows) {", "        if (key < ATTN_KEYS) {"),
    ("bwd_dk_unscaled", B, "dk, h, place.column, params->scale);", "dk, h, place.column, 1);"),
    ("bwd_statistics_of_other_step", B, "params->stats + (int64_t)index * 2 * ATTN_STEP_ROWS",
     "params->stats + (int64_t)(index / 2) * 2 * ATTN_STEP_ROWS"),
    ("bwd_kv_released_early", B, """            backward_tile_run(params, block, tile, &q, adds_dq, dk, dv);
""", """            warp_arrive(block->kv_empty, (uint32_t)thread_index() % 32);
            backward_tile_run(params, block, tile, &q, adds_dq, dk, dv);
            if (0)
"""),
    # Backward by query tiles, rows.
    ("qry_no_wait", Q, "    WGMMA_WAIT(0);\n    wgmma_hold(d, QUERY_KEYS / 2);\n", ""),
    ("qry_released_early", Q, """    wgmma_commit();
    WGMMA_WAIT(0);
    wgmma_hold(dq, HEAD_DIM / 2);
    warp_arrive(block->kv_empty + 8 * stage, place.lane);""", """    wgmma_commit();
    warp_arrive(block->kv_empty + 8 * stage, place.lane);
    WGMMA_WAIT(0);"""),
    ("qry_mask", Q, "rows[0].last_key, rows[1].last_key", "rows[0].last_key, rows[0].last_key"),
    ("qry_blind_rows", Q, "lse == -INFINITY ? INFINITY : lse * LOG2_E", "lse * LOG2_E"),
    ("qry_tail", Q, "if (params->zero_tails && (b + 1)", "if (0 && (b + 1)"),
    ("rows_blind", R, "lse == -INFINITY ? INFINITY : lse * LOG2_E", "lse * LOG2_E"),
    ("rows_sums_not_cleared", R, "params->dq_sum && i < HEAD_DIM", "params->dq_sum && i < HEAD_DIM / 2"),
    ("rows_delta", R, " + bf16_high(x) * bf16_high(y)", ""),
    ("finish_unscaled", R, "sum[2 * i] * params->scale", "sum[2 * i]"),
    # The finest: a thousandth of O, found where a row sees many blocks.
    ("stale_o", F, "o[4 * j + i] *= softmax->rescale[i / 2];",
     "o[4 * j + i] *= softmax->rescale[i / 2] * 0.999f;"),
]

# Found under the rarest schedules only, in five seconds and more: with BALLAST_TEST_FULL.
LONG = {"no_v_wait", "no_q_wait", "one_arrival_per_warpgroup", "bwd_no_ds_reuse_barrier", "qry_released_early"}


def hunt(bug, hunter, source, compiler, base, *sound):
    """Found what? '' for nothing."""
    with tempfile.TemporaryDirectory() as folder:
        patched.copy_sources(folder, source)
        changed = patched.put_in(folder, bug[0], [bug[1:]] if len(bug) > 1 else [])
        kernels = patched.compile_kernels(compiler, folder, source, 128, changed)
        patched.link_libcuda(compiler, folder, base, kernels, sound)
        result = subprocess.run([hunter], env={**os.environ, "LD_LIBRARY_PATH": folder},
                                capture_output=True, text=True, timeout=300, check=False)
        if result.returncode in (126, 127):
            raise RuntimeError(f"{bug[0]}: {hunter} did not start: {result.stderr}")
        found = result.stdout.strip() or result.stderr.strip() or f"exit {result.returncode}"
        return found if result.returncode != 0 else ""


def main():
    only = os.environ.get("BALLAST_BUG")
    full = "BALLAST_TEST_FULL" in os.environ
    bugs = [bug for bug in BUGS if bug[0] == only or (not only and (full or bug[0] not in LONG))]
    sound_one = [("without a bug",)] if full and not only else []
    started = time.monotonic()
    wrong = 0
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        hunts = [(bug, pool.submit(hunt, bug, *sys.argv[1:])) for bug in sound_one + bugs]
        for bug, future in hunts:
            what = future.result()
            good = (what == "") == (bug in sound_one)
            wrong += not good
            print(f"{bug[0]:28} {what[:110] or 'nothing found'}{'' if good else '  <-- WRONG'}", flush=True)
    print(f"{len(bugs)} bugs, {wrong} wrong, {time.monotonic() - started:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
