/* units: see units.h. */
#include "client/ctl/units.h"

#include <inttypes.h>
#include <stdio.h>

#define UNITS_DIGEST_BYTES 8u

/* value / scale with three significant digits, rounded down, and a suffix. */
static struct units units_scaled(uint64_t value, uint64_t scale, const char *suffix) {
    struct units out;
    uint64_t whole = value / scale;
    uint64_t thousandths = (uint64_t)((unsigned __int128)(value % scale) * 1000 / scale);
    if (scale == 1 || whole >= 100) {
        (void)snprintf(out.text, sizeof out.text, "%" PRIu64 "%s", whole, suffix);
    } else if (whole >= 10) {
        (void)snprintf(out.text, sizeof out.text, "%" PRIu64 ".%" PRIu64 "%s", whole,
                       thousandths / 100, suffix);
    } else {
        (void)snprintf(out.text, sizeof out.text, "%" PRIu64 ".%02" PRIu64 "%s", whole,
                       thousandths / 10, suffix);
    }
    return out;
}

struct units units_count(uint64_t count) {
    static const char *const suffixes[] = {"K", "M", "G", "T", "P", "E"};
    uint64_t scale = 1000;
    int step = 0;
    if (count < 10000) {
        return units_scaled(count, 1, "");
    }
    while (step < 5 && count / scale >= 1000) {
        scale *= 1000;
        step++;
    }
    return units_scaled(count, scale, suffixes[step]);
}

struct units units_bytes(uint64_t bytes) {
    static const char *const suffixes[] = {" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB"};
    uint64_t scale = 1;
    int step = 0;
    while (step < 6 && bytes / scale >= 1024) {
        scale *= 1024;
        step++;
    }
    return units_scaled(bytes, scale, suffixes[step]);
}

struct units units_time(uint64_t ns) {
    static const char *const suffixes[] = {" ns", " us", " ms", " s"};
    uint64_t scale = 1;
    int step = 0;
    while (step < 3 && ns / scale >= 1000) {
        scale *= 1000;
        step++;
    }
    return units_scaled(ns, scale, suffixes[step]);
}

struct units units_age(uint64_t ms) {
    struct units out;
    uint64_t minutes = ms / 60000;
    if (minutes == 0) {
        (void)snprintf(out.text, sizeof out.text, "%" PRIu64 "s", ms / 1000);
    } else if (minutes < 60) {
        (void)snprintf(out.text, sizeof out.text, "%" PRIu64 "m", minutes);
    } else if (minutes < 2 * 1440) {
        (void)snprintf(out.text, sizeof out.text, "%" PRIu64 "h%02" PRIu64 "m", minutes / 60,
                       minutes % 60);
    } else {
        (void)snprintf(out.text, sizeof out.text, "%" PRIu64 "d", minutes / 1440);
    }
    return out;
}

struct units units_ratio(uint64_t ppm) {
    struct units out;
    (void)snprintf(out.text, sizeof out.text, "%" PRIu64 ".%03" PRIu64, ppm / 1000000,
                   ppm % 1000000 / 1000);
    return out;
}

struct units units_gap(uint64_t ppm) {
    struct units out;
    (void)snprintf(out.text, sizeof out.text, "%" PRIu64 ".%04" PRIu64, ppm / 1000000,
                   ppm % 1000000 / 100);
    return out;
}

struct units units_gain(uint64_t ppm) {
    struct units out;
    uint64_t hundredths = (ppm + 5000) / 10000;
    (void)snprintf(out.text, sizeof out.text, "%" PRIu64 ".%02" PRIu64, hundredths / 100,
                   hundredths % 100);
    return out;
}

struct units units_share(uint64_t ppm) {
    struct units out;
    (void)snprintf(out.text, sizeof out.text, "%" PRIu64 ".%" PRIu64 "%%", ppm / 10000,
                   ppm % 10000 / 1000);
    return out;
}

struct units units_milli(uint64_t milli) {
    struct units out;
    (void)snprintf(out.text, sizeof out.text, "%" PRIu64 ".%03" PRIu64, milli / 1000, milli % 1000);
    return out;
}

struct units units_digest(const uint8_t *bytes, uint64_t count) {
    struct units out = {""};
    for (uint64_t i = 0; i < count && i < UNITS_DIGEST_BYTES; i++) {
        (void)snprintf(out.text + 2 * i, sizeof out.text - 2 * i, "%02x", bytes[i]);
    }
    return out;
}
