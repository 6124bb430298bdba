/* tcp_rules: see tcp_rules.h. */
#include "daemon/tcp_rules.h"

#include <stdio.h>
#include <string.h>

bool tcp_asked(const struct config *config) {
    return config->listen.tcp[0] != '\0';
}

bool tcp_secured(const struct config *config) {
    const struct config_listen *listen = &config->listen;
    return listen->certificate[0] != '\0' || listen->key[0] != '\0' || listen->ca[0] != '\0';
}

static int tcp_refuse(const char *name, const char *text, const char **key,
                      char reason[TCP_REASON_BYTES]) {
    *key = name;
    (void)snprintf(reason, TCP_REASON_BYTES, "%s", text);
    return -EINVAL;
}

static int tcp_check_tls(const struct config_listen *listen, bool tls_available, const char **key,
                         char reason[TCP_REASON_BYTES]) {
    const char *missing = listen->certificate[0] == '\0' ? "certificate"
                          : listen->key[0] == '\0'       ? "key"
                          : listen->ca[0] == '\0'        ? "ca"
                                                         : NULL;
    if (!tls_available) {
        return tcp_refuse("tcp",
                          "this build has no TLS; install one that was built with OpenSSL 3 "
                          "(libssl-dev, -DBALLAST_TLS=ON), or clear listen.certificate, key "
                          "and ca",
                          key, reason);
    }
    if (missing != NULL) {
        return tcp_refuse(missing,
                          "listen.certificate, listen.key and listen.ca belong together; set "
                          "all three or none",
                          key, reason);
    }
    if (listen->serve_names[0] == '\0' && listen->admin_names[0] == '\0') {
        return tcp_refuse("serve_names",
                          "nobody may connect; list the names of certificates here or in "
                          "listen.admin_names",
                          key, reason);
    }
    return 0;
}

int tcp_check(const struct config *config, bool tls_available, const char **key,
              char reason[TCP_REASON_BYTES]) {
    const struct config_listen *listen = &config->listen;
    struct address address = {.kind = ADDRESS_TCP};
    if (!tcp_asked(config)) {
        return 0;
    }
    if (tcp_secured(config)) {
        return tcp_check_tls(listen, tls_available, key, reason);
    }
    (void)address_parse_host(listen->tcp, &address); /* its kind has judged it */
    if (!address_is_loopback(&address)) {
        return tcp_refuse("tcp",
                          "plain text is served on loopback only; set listen.certificate, "
                          "listen.key and listen.ca for TLS, or listen on 127.0.0.1 or [::1]",
                          key, reason);
    }
    if (listen->token_file[0] == '\0' && listen->admin_token_file[0] == '\0') {
        return tcp_refuse("tcp",
                          "every user of the machine reaches the port, so a token is needed: "
                          "set listen.token_file or listen.admin_token_file",
                          key, reason);
    }
    return 0;
}

bool tcp_any_name(const char *names, bool (*is)(const void *context, const char *name),
                  const void *context) {
    char name[CONFIG_NAMES_BYTES];
    while (*names != '\0') {
        size_t bytes = strcspn(names, ",");
        memcpy(name, names, bytes);
        name[bytes] = '\0';
        if (bytes > 0 && is(context, name)) {
            return true;
        }
        names += bytes + (names[bytes] == ',');
    }
    return false;
}
