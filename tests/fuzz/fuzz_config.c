/* A config file of arbitrary bytes is refused with a reason, or printed it loads as itself. */
#include "daemon/config.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct config *load(const void *bytes, size_t count, struct error *error) {
    static int fd = -1;
    struct config *config = NULL;
    char path[64];
    if (fd < 0) {
        fd = memfd_create("config", MFD_CLOEXEC);
        assert(fd >= 0);
    }
    assert(ftruncate(fd, 0) == 0);
    assert(pwrite(fd, bytes, count, 0) == (ssize_t)count);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int code = config_load(path, NULL, 0, &config, error);
    assert((code == 0) == (config != NULL));
    assert(code == 0 || (error->code == code && error->text[0] != '\0'));
    return config;
}

/* A line of a [from STEP] section, under its heading. */
static void print_elastic(FILE *stream, const struct config_setting *setting, uint64_t *from) {
    if (setting->from > *from) {
        fprintf(stream, "[from %llu]\n", (unsigned long long)setting->from);
        *from = setting->from;
    }
    fprintf(stream, "%s = %s\n", setting->name, setting->value);
}

static char *print(const struct config *config, size_t *bytes) {
    char *text = NULL;
    uint64_t from = 0;
    FILE *stream = open_memstream(&text, bytes);
    assert(stream != NULL);
    for (size_t i = 0; i < config_setting_count(config); i++) {
        struct config_setting setting;
        config_setting(config, i, &setting);
        if (setting.from > 0) {
            print_elastic(stream, &setting, &from);
            continue;
        }
        char *point = strrchr(setting.name, '.');
        *point = '\0';
        if (strncmp(setting.name, "dataset.", 8) == 0) {
            setting.name[7] = ' ';
        }
        fprintf(stream, "[%s]\n%s = %s\n", setting.name, point + 1, setting.value);
    }
    assert(fclose(stream) == 0);
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct error error = {0};
    struct config *first = load(data, size, &error);
    if (first == NULL) {
        return 0;
    }
    size_t bytes = 0;
    char *text = print(first, &bytes);
    struct config *second = load(text, bytes, &error);
    assert(second != NULL);
    size_t again_bytes = 0;
    char *again = print(second, &again_bytes);
    assert(bytes == again_bytes && memcmp(text, again, bytes) == 0);
    char *history = config_plan_text(first, NULL, NULL);
    char *history_again = config_plan_text(second, NULL, NULL);
    assert(history != NULL && history_again != NULL && strcmp(history, history_again) == 0);
    free(history);
    free(history_again);
    free(text);
    free(again);
    config_destroy(first);
    config_destroy(second);
    return 0;
}
