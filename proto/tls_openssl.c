/* tls_openssl: tls.h on OpenSSL 3, with memory BIOs. */
#include "proto/tls.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TLS_ALERT_REASON_MIN 1000 /* reasons from here on are alerts that the peer sent */

struct tls_context {
    SSL_CTX *ssl;
    bool server;
};

struct tls {
    SSL *ssl;
    BIO *in;  /* from the network; the SSL's */
    BIO *out; /* to it; likewise */
    bool server;
    char name[TLS_NAME_BYTES]; /* whom the server must be, of a client */
};

bool tls_available(void) {
    return true;
}

static const char *tls_reason(void) {
    const char *text = ERR_reason_error_string(ERR_peek_last_error());
    return text != NULL ? text : "unknown reason";
}

static int tls_file_failed(const char *what, const char *path, struct error *error) {
    int system = ERR_GET_LIB(ERR_peek_error()) == ERR_LIB_SYS ? ERR_GET_REASON(ERR_peek_error())
                                                              : 0;
    int code = error_set(error, system > 0 ? -system : -EINVAL, "TLS %s %s: %s", what, path,
                         system > 0 ? strerror(system) : tls_reason());
    ERR_clear_error();
    return code;
}

static int tls_load_files(SSL_CTX *ssl, const struct tls_files *files, struct error *error) {
    if (SSL_CTX_load_verify_file(ssl, files->ca) != 1) {
        return tls_file_failed("authority", files->ca, error);
    }
    if (files->certificate == NULL) {
        return 0;
    }
    if (SSL_CTX_use_certificate_chain_file(ssl, files->certificate) != 1) {
        return tls_file_failed("certificate", files->certificate, error);
    }
    if (SSL_CTX_use_PrivateKey_file(ssl, files->key, SSL_FILETYPE_PEM) != 1) {
        return tls_file_failed("key", files->key, error);
    }
    return SSL_CTX_check_private_key(ssl) == 1 ? 0 : tls_file_failed("key", files->key, error);
}

int tls_context_create(const struct tls_files *files, bool server, struct tls_context **out,
                       struct error *error) {
    struct tls_context *context = calloc(1, sizeof *context);
    SSL_CTX *ssl = SSL_CTX_new(server ? TLS_server_method() : TLS_client_method());
    if (context == NULL || ssl == NULL || SSL_CTX_set_min_proto_version(ssl, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_num_tickets(ssl, 0) != 1) {
        SSL_CTX_free(ssl);
        free(context);
        ERR_clear_error();
        return error_set(error, -ENOMEM, "TLS: out of memory");
    }
    SSL_CTX_set_verify(ssl, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    (void)SSL_CTX_set_session_cache_mode(ssl, SSL_SESS_CACHE_OFF);
    int code = tls_load_files(ssl, files, error);
    if (code < 0) {
        SSL_CTX_free(ssl);
        free(context);
        return code;
    }
    *context = (struct tls_context){.ssl = ssl, .server = server};
    *out = context;
    return 0;
}

void tls_context_destroy(struct tls_context *context) {
    if (context != NULL) {
        SSL_CTX_free(context->ssl);
        free(context);
    }
}

/* Whom the certificate must be for; and for a host name, which of a machine's servers is meant. */
static bool tls_expect(SSL *ssl, const char *name) {
    struct in6_addr literal;
    if (inet_pton(AF_INET, name, &literal) == 1 || inet_pton(AF_INET6, name, &literal) == 1) {
        return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), name) == 1;
    }
    return SSL_set1_host(ssl, name) == 1 && SSL_set_tlsext_host_name(ssl, name) == 1;
}

int tls_open(struct tls_context *context, const char *name, struct tls **out, struct error *error) {
    struct tls *tls = calloc(1, sizeof *tls);
    SSL *ssl = SSL_new(context->ssl);
    BIO *in = BIO_new(BIO_s_mem());
    BIO *network = BIO_new(BIO_s_mem());
    if (tls == NULL || ssl == NULL || in == NULL || network == NULL ||
        (name != NULL && !tls_expect(ssl, name))) {
        BIO_free(in);
        BIO_free(network);
        SSL_free(ssl);
        free(tls);
        ERR_clear_error();
        return error_set(error, -ENOMEM, "TLS: out of memory");
    }
    SSL_set_bio(ssl, in, network);
    if (context->server) {
        SSL_set_accept_state(ssl);
    } else {
        SSL_set_connect_state(ssl);
    }
    *tls = (struct tls){.ssl = ssl, .in = in, .out = network, .server = context->server};
    (void)snprintf(tls->name, sizeof tls->name, "%s", name != NULL ? name : "");
    *out = tls;
    return 0;
}

void tls_close(struct tls *tls) {
    if (tls != NULL) {
        SSL_free(tls->ssl);
        free(tls);
    }
}

int tls_put(struct tls *tls, const uint8_t *bytes, size_t count) {
    size_t written = 0;
    return count == 0 || (BIO_write_ex(tls->in, bytes, count, &written) == 1 && written == count)
               ? 0
               : -ENOMEM;
}

size_t tls_take(struct tls *tls, uint8_t *out, size_t capacity) {
    size_t taken = 0;
    if (BIO_ctrl_pending(tls->out) == 0 || BIO_read_ex(tls->out, out, capacity, &taken) != 1) {
        return 0;
    }
    return taken;
}

/* Our side did not accept the other's certificate. */
static int tls_refused(const struct tls *tls, struct error *error) {
    long verdict = SSL_get_verify_result(tls->ssl);
    const char *whose = tls->server ? "the client's" : "the daemon's";
    if (verdict == X509_V_ERR_HOSTNAME_MISMATCH || verdict == X509_V_ERR_IP_ADDRESS_MISMATCH) {
        return error_set(error, -EACCES,
                         "%s certificate is not for %s; connect by a name that it has, or name "
                         "that one",
                         whose, tls->name);
    }
    return error_set(error, -EACCES,
                     "%s certificate is not accepted: %s; check it, its dates and "
                     "the authority (CA) given here",
                     whose, X509_verify_cert_error_string(verdict));
}

static int tls_failed(const struct tls *tls, struct error *error) {
    unsigned long last = ERR_peek_last_error();
    int reason = ERR_GET_LIB(last) == ERR_LIB_SSL ? ERR_GET_REASON(last) : 0;
    const char *other = tls->server ? "the client" : "the daemon";
    int code;
    switch (reason) {
    case SSL_R_CERTIFICATE_VERIFY_FAILED:
        code = tls_refused(tls, error);
        break;
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
        code = error_set(error, -EACCES, "%s showed no certificate; it needs one", other);
        break;
    case SSL_R_UNSUPPORTED_PROTOCOL:
        code = error_set(error, -EPROTO, "%s does not speak TLS 1.3, which is needed", other);
        break;
    case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
    case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED:
    case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
    case SSL_R_TLSV1_ALERT_ACCESS_DENIED:
        code = error_set(error, -EACCES, "%s did not accept the certificate of this side: %s",
                         other, tls_reason());
        break;
    default:
        code = error_set(error, -EPROTO,
                         reason >= TLS_ALERT_REASON_MIN ? "%s ended TLS: %s"
                                                        : "%s does not follow TLS: %s",
                         other, tls_reason());
        break;
    }
    ERR_clear_error();
    return code;
}

/* What a call of OpenSSL that did not succeed means: 0 to wait for bytes. */
static int tls_verdict(const struct tls *tls, int result, struct error *error) {
    switch (SSL_get_error(tls->ssl, result)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
        return 0;
    case SSL_ERROR_ZERO_RETURN:
        return error_set(error, -EPIPE, "the connection was closed");
    default:
        return tls_failed(tls, error);
    }
}

int tls_handshake(struct tls *tls, struct error *error) {
    ERR_clear_error();
    int result = SSL_do_handshake(tls->ssl);
    return result == 1 ? 1 : tls_verdict(tls, result, error);
}

int64_t tls_read(struct tls *tls, uint8_t *out, size_t capacity, struct error *error) {
    size_t got = 0;
    ERR_clear_error();
    int result = SSL_read_ex(tls->ssl, out, capacity, &got);
    return result == 1 ? (int64_t)got : tls_verdict(tls, result, error);
}

int tls_write(struct tls *tls, const uint8_t *bytes, size_t count, struct error *error) {
    size_t written = 0;
    ERR_clear_error();
    if (count == 0) {
        return 0;
    }
    int result = SSL_write_ex(tls->ssl, bytes, count, &written);
    if (result == 1 && written == count) {
        return 0;
    }
    int code = tls_verdict(tls, result, error);
    return code < 0 ? code : error_set(error, -EPROTO, "TLS: written before its handshake");
}

bool tls_peer_is(const struct tls *tls, const char *name) {
    X509 *certificate = SSL_get0_peer_certificate(tls->ssl);
    return certificate != NULL &&
           X509_check_host(certificate, name, 0, X509_CHECK_FLAG_NO_WILDCARDS, NULL) == 1;
}

void tls_peer_name(const struct tls *tls, char out[TLS_NAME_BYTES]) {
    X509 *certificate = SSL_get0_peer_certificate(tls->ssl);
    out[0] = '\0';
    if (certificate == NULL ||
        X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), NID_commonName, out,
                                  (int)TLS_NAME_BYTES) <= 0) {
        (void)snprintf(out, TLS_NAME_BYTES, "unnamed");
    }
    for (char *at = out; *at != '\0'; at++) {
        *at = '!' <= *at && *at <= '~' ? *at : '?';
    }
}
