/* preface: see preface.h. */
#include "proto/preface.h"

#include <assert.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char preface_head[] = "ballast/1 bearer ";
#define PREFACE_HEAD_BYTES (sizeof preface_head - 1)

static_assert(PREFACE_BYTES_MAX == PREFACE_HEAD_BYTES + PREFACE_TOKEN_BYTES_MAX + 1,
              "head, token, end of line");

static size_t preface_token_length(const uint8_t *bytes, size_t count) {
    size_t length = 0;
    while (length < count && bytes[length] > ' ' && bytes[length] <= '~') {
        length++;
    }
    return length;
}

static bool preface_length_legal(size_t bytes) {
    return bytes >= PREFACE_TOKEN_BYTES_MIN && bytes <= PREFACE_TOKEN_BYTES_MAX;
}

size_t preface_write(const char *token, char out[PREFACE_BYTES_MAX]) {
    size_t bytes = strlen(token);
    assert(preface_length_legal(bytes));
    memcpy(out, preface_head, PREFACE_HEAD_BYTES);
    memcpy(out + PREFACE_HEAD_BYTES, token, bytes);
    out[PREFACE_HEAD_BYTES + bytes] = '\n';
    return PREFACE_HEAD_BYTES + bytes + 1;
}

int preface_read(const uint8_t *bytes, size_t count, const uint8_t **token, size_t *token_bytes) {
    size_t head = count < PREFACE_HEAD_BYTES ? count : PREFACE_HEAD_BYTES;
    if (memcmp(bytes, preface_head, head) != 0) {
        return -EPROTO;
    }
    size_t length = preface_token_length(bytes + head, count - head);
    if (length > PREFACE_TOKEN_BYTES_MAX) {
        return -EPROTO;
    }
    if (head + length == count) {
        return 0;
    }
    if (bytes[head + length] != '\n' || !preface_length_legal(length)) {
        return -EPROTO;
    }
    *token = bytes + head;
    *token_bytes = length;
    return (int)(head + length + 1);
}

static int preface_read_file(const char *path, uint8_t *out, size_t capacity, size_t *count,
                             struct error *error) {
    struct stat status;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0 || fstat(fd, &status) < 0) {
        int code = -errno;
        if (fd >= 0) {
            (void)close(fd);
        }
        return error_set(error, code, "token file %s: %s", path, strerror(-code));
    }
    ssize_t got = read(fd, out, capacity);
    int code = got < 0 ? -errno : 0;
    (void)close(fd);
    if (code < 0) {
        return error_set(error, code, "token file %s: %s", path, strerror(-code));
    }
    if ((status.st_mode & (S_IROTH | S_IWOTH)) != 0) {
        return error_set(error, -EACCES,
                         "token file %s: other users may read or write it; chmod o= %s", path,
                         path);
    }
    *count = (size_t)got;
    return 0;
}

int preface_load_token(const char *path, char out[PREFACE_TOKEN_BYTES_MAX + 1],
                       struct error *error) {
    uint8_t bytes[PREFACE_TOKEN_BYTES_MAX + 2];
    size_t count = 0;
    int code = preface_read_file(path, bytes, sizeof bytes, &count, error);
    if (code < 0) {
        return code;
    }
    size_t length = preface_token_length(bytes, count);
    if (!preface_length_legal(length) || (length < count && bytes[length] != '\n')) {
        return error_set(error, -EINVAL,
                         "token file %s: the first line is no token of %u to %u printable "
                         "characters; make one with: openssl rand -hex 32",
                         path, PREFACE_TOKEN_BYTES_MIN, PREFACE_TOKEN_BYTES_MAX);
    }
    memcpy(out, bytes, length);
    out[length] = '\0';
    return 0;
}

bool preface_token_is(const uint8_t *token, size_t token_bytes, const char *expected) {
    size_t bytes = strlen(expected);
    uint8_t difference = bytes == 0 || bytes != token_bytes;
    for (size_t i = 0; i < token_bytes && i < bytes; i++) {
        difference |= (uint8_t)(token[i] ^ (uint8_t)expected[i]);
    }
    return difference == 0;
}
