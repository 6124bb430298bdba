/* units: quantities for people, in integers. Exact values are what --json is for.
 *
 * The results are values, so they can stand in an argument list: units_count(n).text. */
#ifndef BALLAST_CTL_UNITS_H
#define BALLAST_CTL_UNITS_H

#include <stdint.h>

struct units {
    char text[24];
};

struct units units_count(uint64_t count); /* 9999, 13.1K, 1.05M */
struct units units_bytes(uint64_t bytes); /* 512 B, 12.3 KiB, 1.05 GiB */
struct units units_time(uint64_t ns);     /* 850 ns, 12.3 us, 4.56 ms, 1.23 s */
struct units units_age(uint64_t ms);      /* 0s, 59s, 12m, 3h20m, 4d */
struct units units_ratio(uint64_t ppm);   /* 1.023 */
struct units units_gap(uint64_t ppm);     /* 1.0058: where gaps are of thousandths */
struct units units_gain(uint64_t ppm);    /* 1.02, rounded: models are not worth a third digit */
struct units units_share(uint64_t ppm);   /* 51.2% */
struct units units_milli(uint64_t milli); /* 0.853 */

/* Lowercase hex of the first 8 bytes: enough to tell digests apart. */
struct units units_digest(const uint8_t *bytes, uint64_t count);

#endif
