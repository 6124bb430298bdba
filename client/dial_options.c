/* dial_options: see dial_options.h. */
#include "client/dial_options.h"

#include "client/dial.h"

enum {
    DIAL_KEY_TOKEN_FILE = 2000,
    DIAL_KEY_CERTIFICATE,
    DIAL_KEY_KEY,
    DIAL_KEY_CA,
    DIAL_KEY_NAME,
};

static const struct argp_option dial_options[] = {
    {"token-file", DIAL_KEY_TOKEN_FILE, "FILE", 0,
     "tcp: the daemon's token is its first line (BALLAST_TOKEN_FILE)", 0},
    {"tls-certificate", DIAL_KEY_CERTIFICATE, "FILE", 0,
     "tls: PEM of this side (BALLAST_TLS_CERTIFICATE)", 0},
    {"tls-key", DIAL_KEY_KEY, "FILE", 0, "tls: PEM of its key (BALLAST_TLS_KEY)", 0},
    {"tls-ca", DIAL_KEY_CA, "FILE", 0,
     "tls: PEM of who signs the daemon's certificate (BALLAST_TLS_CA)", 0},
    {"tls-name", DIAL_KEY_NAME, "NAME", 0,
     "tls: whom that must be for, if not the host of the address (BALLAST_TLS_NAME)", 0},
    {0},
};

static error_t dial_parse(int key, char *text, struct argp_state *state) {
    struct dial_given *given = state->input;
    switch (key) {
    case DIAL_KEY_TOKEN_FILE:
        given->token_file = text;
        return 0;
    case DIAL_KEY_CERTIFICATE:
        given->certificate = text;
        return 0;
    case DIAL_KEY_KEY:
        given->key = text;
        return 0;
    case DIAL_KEY_CA:
        given->ca = text;
        return 0;
    case DIAL_KEY_NAME:
        given->name = text;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

const struct argp dial_argp = {.options = dial_options, .parser = dial_parse};
