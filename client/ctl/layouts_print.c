/* layouts_print: rows of a simulation of layouts, for people and as JSON. */
#include "client/ctl/layouts.h"

#include "client/ctl/json.h"
#include "client/ctl/table.h"
#include "client/ctl/units.h"

#include <inttypes.h>

static const char *row_name(const struct layouts_row *row) {
    return row->layout == LAYOUT_NONE ? "chosen" : layout_name(row->layout);
}

void layouts_print(const struct scenario *scenario, const struct plan_options *plan,
                   const struct layouts_row *rows, size_t count) {
    static const struct table_column columns[] = {
        {"LAYOUT", TABLE_LEFT, 0}, {"PAIRS", TABLE_RIGHT, 0},  {"WORST", TABLE_RIGHT, 0},
        {"BOUND", TABLE_RIGHT, 0}, {"WORST", TABLE_RIGHT, 0},  {"KV", TABLE_RIGHT, 0},
        {"FRAGS", TABLE_RIGHT, 0}, {"CHOSEN", TABLE_RIGHT, 0},
    };
    struct table table;
    printf("%s: %" PRIu64 " windows of %" PRIu32 " tokens on %" PRIu32
           " ranks. PAIRS: the largest rank over the mean; BOUND:\nthe predicted slowest rank over "
           "an even split of whole documents; KV: rows a rank needs\nof others, of the window's "
           "tokens; FRAGS: of a rank; CHOSEN: windows\n\n",
           scenario_source(scenario), rows[count - 1].windows, plan->window, plan->cp);
    table_init(&table, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < count; i++) {
        table_cell(&table, "%s", row_name(&rows[i]));
        table_cell(&table, "%s", units_gap(rows[i].pairs_ppm).text);
        table_cell(&table, "%s", units_ratio(rows[i].pairs_worst_ppm).text);
        table_cell(&table, "%s", units_gap(rows[i].bound_ppm).text);
        table_cell(&table, "%s", units_ratio(rows[i].bound_worst_ppm).text);
        table_cell(&table, "%s", units_share(rows[i].keys_ppm).text);
        table_cell(&table, "%" PRIu64, (rows[i].fragments_milli + 500) / 1000);
        table_cell(&table, "%" PRIu64, i + 1 < count ? rows[i].chosen : rows[i].windows);
    }
    table_print(&table, stdout);
    table_deinit(&table);
}

static void row_json(struct json *json, const struct layouts_row *row) {
    const struct {
        const char *name;
        uint64_t value;
    } members[] = {
        {"windows", row->windows},
        {"pairs_ppm", row->pairs_ppm},
        {"pairs_worst_ppm", row->pairs_worst_ppm},
        {"bound_ppm", row->bound_ppm},
        {"bound_worst_ppm", row->bound_worst_ppm},
        {"keys_ppm", row->keys_ppm},
        {"fragments_milli", row->fragments_milli},
        {"chosen", row->layout == LAYOUT_NONE ? row->windows : row->chosen},
    };
    json_object_begin(json);
    json_key(json, "layout");
    json_text(json, row_name(row));
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        json_member_u64(json, members[i].name, members[i].value);
    }
    json_object_end(json);
}

void layouts_print_json(const struct layouts_row *rows, size_t count) {
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
