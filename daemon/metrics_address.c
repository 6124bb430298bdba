/* metrics_address: see metrics_address.h. */
#include "daemon/metrics_address.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#define UNIX_PREFIX "unix:"

static bool is_loopback(const char *host) {
    struct in_addr four;
    struct in6_addr six;
    if (inet_pton(AF_INET, host, &four) == 1) {
        return ntohl(four.s_addr) >> 24 == 127;
    }
    return inet_pton(AF_INET6, host, &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six);
}

static int parse_port(const char *text, uint16_t *out) {
    char *end;
    unsigned long port = strtoul(text, &end, 10);
    if (!isdigit((unsigned char)text[0]) || *end != '\0' || port == 0 || port > UINT16_MAX) {
        return -EINVAL;
    }
    *out = (uint16_t)port;
    return 0;
}

int metrics_address_parse(const char *text, struct metrics_address *out) {
    size_t prefix = strlen(UNIX_PREFIX);
    *out = (struct metrics_address){0};
    if (strncmp(text, UNIX_PREFIX, prefix) == 0) {
        out->path = text + prefix;
        bool fits = strlen(out->path) < sizeof(((struct sockaddr_un *)0)->sun_path);
        return out->path[0] == '/' && fits ? 0 : -EINVAL;
    }
    const char *colon = strrchr(text, ':');
    bool bracket = text[0] == '[';
    if (colon == NULL || (bracket && (colon == text || colon[-1] != ']'))) {
        return -EINVAL;
    }
    const char *from = text + bracket;
    size_t bytes = (size_t)(colon - from) - bracket;
    if (bytes >= sizeof out->host) {
        return -EINVAL;
    }
    memcpy(out->host, from, bytes);
    if (!is_loopback(out->host) || (strchr(out->host, ':') != NULL) != bracket) {
        return -EINVAL;
    }
    return parse_port(colon + 1, &out->port);
}
