/* config, version: what is in force, and what is running. */
#include "client/ctl/answers.h"
#include "client/ctl/json.h"
#include "client/ctl/print.h"
#include "client/ctl/table.h"
#include "client/ctl/units.h"
#include "daemon/config_keys.h"
#include "daemon/store.h"
#include "planner/planner.h"

#include <inttypes.h>
#include <string.h>
#include <xxhash.h>

static bool is_limit(const Ballast__V1__Setting *setting) {
    return setting->used != 0 || setting->high_water != 0;
}

static bool any_limit(const Ballast__V1__ConfigResponse *response) {
    for (size_t i = 0; i < response->n_settings; i++) {
        if (is_limit(response->settings[i])) {
            return true;
        }
    }
    return false;
}

/* "12 (auto)", or "auto" where nothing else is known. */
static void print_value(struct table *table, const Ballast__V1__Setting *setting) {
    const char *value = setting->in_use[0] != '\0' ? setting->in_use : setting->value;
    bool chosen = setting->automatic && strcmp(value, CONFIG_AUTO) != 0;
    table_cell(table, "%s%s", value, chosen ? " (auto)" : "");
}

/* Use and high-water marks are columns only where something is in use. */
static void print_settings(const Ballast__V1__ConfigResponse *response) {
    static const struct table_column columns[] = {
        {"NAME", TABLE_LEFT, 0},  {"VALUE", TABLE_LEFT, 0}, {"FROM", TABLE_LEFT, 0},
        {"USED", TABLE_RIGHT, 0}, {"HIGH", TABLE_RIGHT, 0},
    };
    struct table table;
    bool limits = any_limit(response);
    table_init(&table, columns, limits ? 5 : 3);
    for (size_t i = 0; i < response->n_settings; i++) {
        const Ballast__V1__Setting *setting = response->settings[i];
        table_cell(&table, "%s", setting->name);
        print_value(&table, setting);
        if (setting->from > 0) {
            table_cell(&table, "step %" PRIu64, setting->from);
        } else {
            table_cell(&table, "%s", setting->source);
        }
        if (limits) {
            table_cell(&table, "%s", is_limit(setting) ? units_count(setting->used).text : "");
            table_cell(&table, "%s",
                       is_limit(setting) ? units_count(setting->high_water).text : "");
        }
    }
    table_print(&table, stdout);
    table_deinit(&table);
}

int ctl_config(struct ctl *ctl, int argc, char **argv) {
    ctl_parse_none(ctl,
                   "Shows every setting and where it comes from, with (auto) what an auto came "
                   "to, then what [from STEP] sections "
                   "change and from which step on; limits with their use and high-water mark. With "
                   "--config alone, what a daemon would make of FILE.",
                   argc, argv);
    Ballast__V1__ConfigResponse *response;
    int rc = answers_choose(ctl, true)->config(ctl, &response);
    if (rc < 0) {
        return rc;
    }
    if (ctl->json) {
        print_message(&response->base);
    } else {
        print_settings(response);
    }
    return 0;
}

struct version_row {
    const char *key; /* in alphabetical order */
    const char *name;
    char version[32];
};

static void print_versions(const struct version_row *rows, size_t count) {
    static const struct table_column columns[] = {{"NAME", TABLE_LEFT, 0},
                                                  {"VERSION", TABLE_LEFT, 0}};
    struct table table;
    table_init(&table, columns, 2);
    for (size_t i = 0; i < count; i++) {
        table_cell(&table, "%s", rows[i].name);
        table_cell(&table, "%s", rows[i].version);
    }
    table_print(&table, stdout);
    table_deinit(&table);
}

static void print_versions_json(const struct version_row *rows, size_t count) {
    struct json json;
    json_init(&json, stdout);
    json_object_begin(&json);
    for (size_t i = 0; i < count; i++) {
        json_member_string(&json, rows[i].key, rows[i].version);
    }
    json_object_end(&json);
    json_line(&json);
}

int ctl_version(struct ctl *ctl, int argc, char **argv) {
    ctl_parse_none(ctl, "Shows versions.", argc, argv);
    struct version_row rows[] = {
        {"algorithm", "planning algorithm", ""},
        {"ballast", "ballast", BALLAST_VERSION},
        {"protobuf_c", "protobuf-c", ""},
        {"protocol", "wire protocol", ""},
        {"sqlite", "sqlite", ""},
        {"xxhash", "xxhash", ""},
    };
    unsigned xxhash = XXH_versionNumber();
    (void)snprintf(rows[0].version, sizeof rows[0].version, "%u", PLAN_ALGORITHM_VERSION);
    (void)snprintf(rows[2].version, sizeof rows[2].version, "%s", protobuf_c_version());
    (void)snprintf(rows[3].version, sizeof rows[3].version, "%u", 1u);
    (void)snprintf(rows[4].version, sizeof rows[4].version, "%s", store_library_version());
    (void)snprintf(rows[5].version, sizeof rows[5].version, "%u.%u.%u", xxhash / 10000,
                   xxhash / 100 % 100, xxhash % 100);
    if (ctl->json) {
        print_versions_json(rows, sizeof rows / sizeof rows[0]);
    } else {
        print_versions(rows, sizeof rows / sizeof rows[0]);
    }
    return 0;
}
