/* failpoint: see failpoint.h. Part of builds with BALLAST_FAILPOINTS only. */
#include "daemon/failpoint.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum failpoint_can { CAN_NOTHING = 0, CAN_ERROR = 1, CAN_SHORT = 2 };
enum failpoint_does { DOES_NOTHING, DOES_KILL, DOES_ERROR, DOES_SHORT, DOES_DELAY };

#define POINT(name, can, where) {#name, where, CAN_##can},
static const struct {
    const char *name;
    const char *where;
    enum failpoint_can can;
} failpoints[FAILPOINT_COUNT] = {FAILPOINTS(POINT)};
#undef POINT

static const struct {
    const char *name;
    int code;
} failpoint_errors[] = {{"EIO", EIO},       {"ENOSPC", ENOSPC}, {"ENOMEM", ENOMEM},
                        {"EACCES", EACCES}, {"EMFILE", EMFILE}, {"EBADMSG", EBADMSG}};

/* What is to happen where. Immutable after failpoint_load but for the count. */
static struct {
    enum failpoint_does does;
    int code;
    unsigned ms;
    unsigned nth;      /* 0: at every hit */
    bool from_then_on; /* ... from the nth on */
    atomic_uint hits;
} failpoint_orders[FAILPOINT_COUNT];

static int failpoint_find(const char *name, size_t bytes) {
    for (int i = 0; i < (int)FAILPOINT_COUNT; i++) {
        if (strlen(failpoints[i].name) == bytes && memcmp(failpoints[i].name, name, bytes) == 0) {
            return i;
        }
    }
    return -1;
}

static bool failpoint_parse_error(int point, const char *action) {
    for (size_t i = 0; i < sizeof failpoint_errors / sizeof failpoint_errors[0]; i++) {
        if (strcmp(action, failpoint_errors[i].name) == 0) {
            failpoint_orders[point].does = DOES_ERROR;
            failpoint_orders[point].code = -failpoint_errors[i].code;
            return failpoints[point].can == CAN_ERROR;
        }
    }
    return false;
}

static bool failpoint_parse_action(int point, const char *action) {
    if (strcmp(action, "kill") == 0) {
        failpoint_orders[point].does = DOES_KILL;
        return true;
    }
    if (strcmp(action, "short") == 0) {
        failpoint_orders[point].does = DOES_SHORT;
        return failpoints[point].can == CAN_SHORT;
    }
    if (strncmp(action, "delay:", 6) == 0) {
        failpoint_orders[point].does = DOES_DELAY;
        failpoint_orders[point].ms = (unsigned)strtoul(action + 6, NULL, 10);
        return failpoint_orders[point].ms > 0;
    }
    return failpoint_parse_error(point, action);
}

/* One "name=action[@nth[+]]". */
static bool failpoint_parse(char *entry) {
    char *equals = strchr(entry, '=');
    int point = equals == NULL ? -1 : failpoint_find(entry, (size_t)(equals - entry));
    if (point < 0) {
        return false;
    }
    char *at = strchr(equals, '@');
    if (at != NULL) {
        char *end;
        *at = '\0';
        failpoint_orders[point].nth = (unsigned)strtoul(at + 1, &end, 10);
        failpoint_orders[point].from_then_on = *end == '+';
        if (failpoint_orders[point].nth == 0 || end[*end == '+'] != '\0') {
            return false;
        }
    }
    return failpoint_parse_action(point, equals + 1);
}

int failpoint_load(const char *text, struct error *error) {
    char entry[128];
    while (text != NULL && *text != '\0') {
        size_t bytes = strcspn(text, ",");
        (void)snprintf(entry, sizeof entry, "%.*s", (int)bytes, text);
        if (bytes >= sizeof entry || !failpoint_parse(entry)) {
            return error_set(error, -EINVAL,
                             FAILPOINT_ENVIRONMENT ": '%.*s' is no POINT=ACTION[@NTH[+]]; "
                                                   "--failpoints lists the points",
                             (int)bytes, text);
        }
        text += bytes + (text[bytes] == ',');
    }
    return 0;
}

void failpoint_print(void) {
    static const char *const can[] = {
        [CAN_NOTHING] = "-", [CAN_ERROR] = "error", [CAN_SHORT] = "short"};
    for (int i = 0; i < (int)FAILPOINT_COUNT; i++) {
        (void)printf("%-18s %-6s %s\n", failpoints[i].name, can[failpoints[i].can],
                     failpoints[i].where);
    }
}

static void failpoint_delay(unsigned ms) {
    struct timespec left = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    while (nanosleep(&left, &left) < 0) {
    }
}

int failpoint_hit(enum failpoint point) {
    unsigned nth = failpoint_orders[point].nth;
    if (failpoint_orders[point].does == DOES_NOTHING) {
        return 0;
    }
    unsigned hit = 1 + atomic_fetch_add_explicit(&failpoint_orders[point].hits, 1,
                                                 memory_order_relaxed);
    if (nth != 0 && (failpoint_orders[point].from_then_on ? hit < nth : hit != nth)) {
        return 0;
    }
    switch (failpoint_orders[point].does) {
    case DOES_NOTHING:
        break;
    case DOES_KILL:
        (void)raise(SIGKILL);
        break;
    case DOES_ERROR:
        return failpoint_orders[point].code;
    case DOES_SHORT:
        return FAILPOINT_DOES_SHORT;
    case DOES_DELAY:
        failpoint_delay(failpoint_orders[point].ms);
        break;
    }
    return 0;
}
