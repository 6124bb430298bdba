/* pools_print: rows of a simulation of pools, for people and as JSON. */
#include "client/ctl/pools.h"

#include "client/ctl/json.h"
#include "client/ctl/table.h"
#include "client/ctl/units.h"

#include <inttypes.h>

static void row_begin(struct table *table, const struct pools_row *row) {
    table_cell(table, "%" PRIu32, row->p);
    table_cell(table, "%" PRIu32, row->h);
    table_cell(table, "%" PRIu32, row->b);
}

static void print_balance(const struct pools_row *rows, size_t count) {
    static const struct table_column columns[] = {
        {"P", TABLE_RIGHT, 0},      {"H", TABLE_RIGHT, 0},     {"B", TABLE_RIGHT, 0},
        {"BEFORE", TABLE_RIGHT, 0}, {"AFTER", TABLE_RIGHT, 0}, {"BOUND", TABLE_RIGHT, 0},
        {"INTRA", TABLE_RIGHT, 0},  {"WORST", TABLE_RIGHT, 0}, {"STEP", TABLE_RIGHT, 0},
        {"TILE", TABLE_RIGHT, 0},   {"", TABLE_LEFT, 0},
    };
    struct table table;
    table_init(&table, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < count; i++) {
        row_begin(&table, &rows[i]);
        table_cell(&table, "%s", units_gap(rows[i].inter_before_ppm).text);
        table_cell(&table, "%s", units_gap(rows[i].inter_after_ppm).text);
        table_cell(&table, "%s", units_gap(rows[i].bound_ppm).text);
        table_cell(&table, "%s", units_gap(rows[i].intra_ppm).text);
        table_cell(&table, "%s", units_gap(rows[i].intra_max_ppm).text);
        table_cell(&table, "%s", units_gap(rows[i].straggler_ppm).text);
        table_cell(&table, "%s", units_ratio(rows[i].tile_ppm).text);
        table_cell(&table, "%s", rows[i].proposed ? "*" : " ");
    }
    table_print(&table, stdout);
    table_deinit(&table);
}

static void print_bytes(const struct pools_row *rows, size_t count) {
    static const struct table_column columns[] = {
        {"P", TABLE_RIGHT, 0},     {"H", TABLE_RIGHT, 0},      {"B", TABLE_RIGHT, 0},
        {"Q", TABLE_RIGHT, 0},     {"KV", TABLE_RIGHT, 0},     {"O", TABLE_RIGHT, 0},
        {"ALL", TABLE_RIGHT, 0},   {"MAX IN", TABLE_RIGHT, 0}, {"MAX OUT", TABLE_RIGHT, 0},
        {"MOVED", TABLE_RIGHT, 0}, {"PLAN", TABLE_RIGHT, 0},
    };
    struct table table;
    table_init(&table, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < count; i++) {
        row_begin(&table, &rows[i]);
        table_cell(&table, "%s", units_bytes(rows[i].q_bytes).text);
        table_cell(&table, "%s", units_bytes(rows[i].kv_bytes).text);
        table_cell(&table, "%s", units_bytes(rows[i].o_bytes).text);
        table_cell(&table, "%s", units_bytes(rows[i].bytes_mean).text);
        table_cell(&table, "%s", units_bytes(rows[i].bytes_in_max).text);
        table_cell(&table, "%s", units_bytes(rows[i].bytes_out_max).text);
        table_cell(&table, "%s", units_share(rows[i].moved_ppm).text);
        table_cell(&table, "%s", units_time(rows[i].plan_ns).text);
    }
    table_print(&table, stdout);
    table_deinit(&table);
}

static void print_times(const struct pools_row *rows, size_t count) {
    static const struct table_column columns[] = {
        {"P", TABLE_RIGHT, 0},         {"H", TABLE_RIGHT, 0},       {"B", TABLE_RIGHT, 0},
        {"KV PIECES", TABLE_RIGHT, 0}, {"COMPUTE", TABLE_RIGHT, 0}, {"EXPOSED", TABLE_RIGHT, 0},
        {"SHARE", TABLE_RIGHT, 0},
    };
    struct table table;
    table_init(&table, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < count; i++) {
        uint64_t compute_ns = rows[i].compute_ns > 0 ? rows[i].compute_ns : 1;
        row_begin(&table, &rows[i]);
        table_cell(&table, "%" PRIu32, rows[i].kv_pieces);
        table_cell(&table, "%s", units_time(rows[i].compute_ns).text);
        table_cell(&table, "%s", units_time(rows[i].exposed_ns).text);
        table_cell(&table, "%s", units_share(rows[i].exposed_ns * 1000000 / compute_ns).text);
    }
    table_print(&table, stdout);
    table_deinit(&table);
}

void pools_print(const struct scenario *scenario, const struct pools_row *rows, size_t count) {
    printf(
        "%s: largest over mean, less 1: of pools BEFORE and AFTER they are grouped, the BOUND of\n"
        "any grouping, of a pool's workers INTRA and its WORST, of pools that run at a time "
        "STEP;\nTILE: the largest tile over a worker's mean load\n\n",
        scenario_source(scenario));
    print_balance(rows, count);
    printf("\nbytes that a worker receives in a layer's forward pass, the busiest receiver and "
           "sender,\nshare of tiles moved, time to plan a step\n\n");
    print_bytes(rows, count);
    if (rows[0].compute_ns > 0) {
        printf(
            "\nattention of the slowest worker, one layer forward at model.gemm_tflops, and what "
            "the\nexchange adds to it; K/V travels in so many pieces\n\n");
        print_times(rows, count);
    }
    for (size_t i = 0; i < count; i++) {
        if (rows[i].proposed) {
            printf("\n* take P = %" PRIu32 ", H = %" PRIu32 ", B = %" PRIu32
                   ": policy pool:%" PRIu32 ", pools.head_shards = %" PRIu32
                   ", pools.block_tokens = %" PRIu32 "\n",
                   rows[i].p, rows[i].h, rows[i].b, rows[i].p, rows[i].h, rows[i].b);
        }
    }
}

static void row_json(struct json *json, const struct pools_row *row) {
    const struct {
        const char *name;
        uint64_t value;
    } members[] = {
        {"p", row->p},
        {"h", row->h},
        {"b", row->b},
        {"inter_before_ppm", row->inter_before_ppm},
        {"inter_after_ppm", row->inter_after_ppm},
        {"bound_ppm", row->bound_ppm},
        {"intra_ppm", row->intra_ppm},
        {"intra_max_ppm", row->intra_max_ppm},
        {"straggler_ppm", row->straggler_ppm},
        {"q_bytes", row->q_bytes},
        {"kv_bytes", row->kv_bytes},
        {"o_bytes", row->o_bytes},
        {"bytes_mean", row->bytes_mean},
        {"bytes_in_max", row->bytes_in_max},
        {"bytes_out_max", row->bytes_out_max},
        {"moved_ppm", row->moved_ppm},
        {"tiles", row->tiles},
        {"tile_ppm", row->tile_ppm},
        {"kv_pieces", row->kv_pieces},
        {"compute_ns", row->compute_ns},
        {"exposed_ns", row->exposed_ns},
        {"plan_ns", row->plan_ns},
    };
    json_object_begin(json);
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        json_member_u64(json, members[i].name, members[i].value);
    }
    json_key(json, "proposed");
    json_bool(json, row->proposed);
    json_object_end(json);
}

void pools_print_json(const struct pools_row *rows, size_t count) {
    struct json json;
    json_init(&json, stdout);
    json_object_begin(&json);
    json_key(&json, "rows");
    json_array_begin(&json);
    for (size_t i = 0; i < count; i++) {
        row_json(&json, &rows[i]);
    }
    json_array_end(&json);
    json_object_end(&json);
    json_line(&json);
}
