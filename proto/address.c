/* address: see address.h. */
#include "proto/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>

static int address_port(const char *text, uint16_t *out) {
    uint32_t value = 0;
    size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > 5 || text[digits] != '\0') {
        return -EINVAL;
    }
    for (size_t i = 0; i < digits; i++) {
        value = value * 10 + (uint32_t)(text[i] - '0');
    }
    if (value == 0 || value > UINT16_MAX) {
        return -EINVAL;
    }
    *out = (uint16_t)value;
    return 0;
}

int address_parse_host(const char *text, struct address *out) {
    bool bracketed = text[0] == '[';
    const char *host = text + bracketed;
    const char *colon = strrchr(text, ':');
    const char *end = bracketed ? strchr(text, ']') : colon;
    if (colon == NULL || end == NULL || (bracketed && end + 1 != colon) || end == host ||
        (size_t)(end - host) >= ADDRESS_HOST_BYTES) {
        return -EINVAL;
    }
    for (const char *at = host; at < end; at++) {
        if (*at <= ' ' || *at > '~' || *at == '/' || (*at == ':' && !bracketed)) {
            return -EINVAL;
        }
    }
    uint16_t port;
    if (address_port(colon + 1, &port) < 0) {
        return -EINVAL;
    }
    memset(out->host, 0, sizeof out->host);
    memcpy(out->host, host, (size_t)(end - host));
    out->port = port;
    return 0;
}

static int address_parse_path(const char *path, struct address *out, struct error *error) {
    size_t bytes = strlen(path);
    if (bytes == 0) {
        return error_set(error, -EINVAL, "the path of a socket is empty");
    }
    if (bytes >= ADDRESS_HOST_BYTES) {
        return error_set(error, -ENAMETOOLONG, "socket path %.64s... has %zu bytes, at most %u fit",
                         path, bytes, ADDRESS_HOST_BYTES - 1);
    }
    *out = (struct address){.kind = ADDRESS_UNIX};
    memcpy(out->host, path, bytes);
    return 0;
}

int address_parse(const char *text, struct address *out, struct error *error) {
    static const struct {
        const char *scheme;
        enum address_kind kind;
    } schemes[] = {{"tcp:", ADDRESS_TCP}, {"tls:", ADDRESS_TLS}};
    for (size_t i = 0; i < sizeof schemes / sizeof schemes[0]; i++) {
        if (strncmp(text, schemes[i].scheme, 4) == 0) {
            *out = (struct address){.kind = schemes[i].kind};
            return address_parse_host(text + 4, out) == 0
                       ? 0
                       : error_set(error, -EINVAL,
                                   "'%.80s' is no address; write unix:/path, tcp:HOST:PORT or "
                                   "tls:HOST:PORT, with brackets around IPv6",
                                   text);
        }
    }
    return address_parse_path(strncmp(text, "unix:", 5) == 0 ? text + 5 : text, out, error);
}

bool address_is_loopback(const struct address *address) {
    struct in_addr four;
    struct in6_addr six;
    if (inet_pton(AF_INET, address->host, &four) == 1) {
        return ntohl(four.s_addr) >> 24 == IN_LOOPBACKNET;
    }
    return inet_pton(AF_INET6, address->host, &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six);
}
