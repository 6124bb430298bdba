#include "config_world.h"
#include "daemon/config_keys.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "/tmp/ballast-config-XXXXXX";
static char file[64];

static void folder_remove(void) {
    (void)unlink(file);
    (void)rmdir(folder);
}

const char *world_folder(void) {
    if (file[0] == '\0') {
        assert_non_null(mkdtemp(folder));
        (void)snprintf(file, sizeof file, "%s/test.conf", folder);
        atexit(folder_remove);
    }
    return folder;
}

const char *world_write(const char *text, size_t bytes) {
    (void)world_folder();
    FILE *stream = fopen(file, "w");
    assert_non_null(stream);
    assert_int_equal(fwrite(text, 1, bytes, stream), bytes);
    assert_int_equal(fclose(stream), 0);
    return file;
}

int world_load(const char *text, const struct config_override *overrides, size_t count,
               struct config **out, struct error *error) {
    return config_load(world_write(text, strlen(text)), overrides, count, out, error);
}

struct config *world_config(const char *text) {
    struct config *config = NULL;
    struct error error = {0};
    if (world_load(text, NULL, 0, &config, &error) != 0) {
        fail_msg("%s", error.text);
    }
    return config;
}

static const struct config_setting *setting_find(const struct config *config, const char *name) {
    static struct config_setting setting;
    for (size_t i = 0; i < config_setting_count(config); i++) {
        config_setting(config, i, &setting);
        if (strcmp(setting.name, name) == 0) {
            return &setting;
        }
    }
    fail_msg("no setting %s", name);
    return NULL;
}

const char *world_value(const struct config *config, const char *name) {
    return setting_find(config, name)->value;
}

const char *world_origin(const struct config *config, const char *name) {
    return setting_find(config, name)->origin;
}

bool world_automatic(const struct config *config, const char *name) {
    return setting_find(config, name)->automatic;
}

char *world_print(const struct config *config) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    assert_non_null(stream);
    uint64_t from = 0;
    for (size_t i = 0; i < config_setting_count(config); i++) {
        struct config_setting setting;
        config_setting(config, i, &setting);
        if (setting.from > 0) {
            if (setting.from > from) {
                fprintf(stream, "[from %" PRIu64 "]\n", setting.from);
            }
            fprintf(stream, "%s = %s\n", setting.name, setting.value);
            from = setting.from;
            continue;
        }
        char *point = strrchr(setting.name, '.');
        *point = '\0';
        bool dataset = strncmp(setting.name, "dataset.", 8) == 0;
        if (dataset) {
            setting.name[7] = ' ';
        }
        fprintf(stream, "[%s]\n%s = %s\n", setting.name, point + 1, setting.value);
    }
    assert_int_equal(fclose(stream), 0);
    return text;
}
