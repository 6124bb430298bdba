/* history: see history.h. */
#include "daemon/history.h"
#include "daemon/config_keys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The step of a line "[from STEP]"; 0 for another line. */
static uint64_t history_step(const char *line) {
    return strncmp(line, "[from ", 6) == 0 ? strtoull(line + 6, NULL, 10) : 0;
}

/* Whether the section goes on with this line. */
static bool history_goes_on(const char *line) {
    return line[0] != '\0' && history_step(line) == 0;
}

static void history_line(const char *line, uint64_t section, char out[HISTORY_LINE_BYTES]) {
    int chars = (int)strcspn(line, "\n");
    if (chars == 0) {
        (void)snprintf(out, HISTORY_LINE_BYTES, "nothing");
    } else if (section == 0 || !history_goes_on(line)) {
        (void)snprintf(out, HISTORY_LINE_BYTES, "%.*s", chars, line);
    } else {
        (void)snprintf(out, HISTORY_LINE_BYTES, "[from %llu] %.*s", (unsigned long long)section,
                       chars, line);
    }
}

/* Whether `b` begins with a key that `a`, at the same place, does not know, and its default. */
static bool history_implied(const char *a, const char *b) {
    size_t name = strcspn(b, " \n");
    return strncmp(a, b, name + 1) != 0 && config_line_is_default(b);
}

/* A key that is said only where it is not its default, as what it means where it is not said. */
static void history_unsaid(const char *line, const char *other, char out[HISTORY_LINE_BYTES]) {
    size_t name = strcspn(line, " \n");
    if (strncmp(line, other, name + 1) != 0 && config_line_is_sparse(line)) {
        (void)snprintf(out, HISTORY_LINE_BYTES, "%.*s = %s", (int)name, line, CONFIG_NO_PROFILE);
    }
}

bool history_differs(const char *a, const char *b, struct history_difference *out) {
    uint64_t section = 0;
    for (;;) {
        size_t chars = strcspn(a, "\n");
        if (chars != strcspn(b, "\n") || memcmp(a, b, chars) != 0) {
            if (section > 0 || !history_implied(a, b)) {
                break;
            }
            b += strcspn(b, "\n");
            b += *b == '\n';
            continue;
        }
        if (a[0] == '\0') {
            return false;
        }
        section = history_step(a) > 0 ? history_step(a) : section;
        a += chars + (a[chars] == '\n');
        b += chars + (b[chars] == '\n');
    }
    uint64_t next_a = history_step(a);
    uint64_t next_b = history_step(b);
    history_line(a, section, out->a);
    history_line(b, section, out->b);
    if (section == 0) {
        history_unsaid(b, a, out->a);
        history_unsaid(a, b, out->b);
    }
    if (history_goes_on(a) || history_goes_on(b)) {
        out->step = section;
    } else {
        out->step = next_b == 0 || (0 < next_a && next_a < next_b) ? next_a : next_b;
    }
    return true;
}
