/* metrics_address: what metrics.listen may say: unix:PATH, or a loopback address with a port. */
#ifndef BALLAST_DAEMON_METRICS_ADDRESS_H
#define BALLAST_DAEMON_METRICS_ADDRESS_H

#include <stdint.h>

struct metrics_address {
    const char *path; /* in the text; NULL: TCP */
    char host[48];    /* numeric, of the loopback network */
    uint16_t port;
};

/* 0, or -EINVAL for anything else, "off" too. */
int metrics_address_parse(const char *text, struct metrics_address *out);

#endif
