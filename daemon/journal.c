/* journal: see journal.h. */
#include "daemon/journal.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <xxhash.h>

struct entry {
    char *out;
    size_t used, bytes;
};

static void entry_add(struct entry *entry, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* All of the field, or nothing. */
static void entry_add(struct entry *entry, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int count = vsnprintf(entry->out + entry->used, entry->bytes - entry->used, format, arguments);
    va_end(arguments);
    if (count > 0 && (size_t)count < entry->bytes - entry->used) {
        entry->used += (size_t)count;
    }
}

/* Characters of a key at the start of the word, 0 if it is no key=value. */
static size_t key_chars(const char *word) {
    size_t chars = strspn(word, "abcdefghijklmnopqrstuvwxyz0123456789_");
    return word[chars] == '=' && isalpha((unsigned char)word[0]) ? chars : 0;
}

/* Of the value behind `key` and '=', in quotes where it has blanks. */
static size_t value_chars(const char *value) {
    const char *quote = value[0] == '"' ? strchr(value + 1, '"') : NULL;
    return quote != NULL ? (size_t)(quote + 1 - value) : strcspn(value, " ");
}

static void entry_add_pair(struct entry *entry, const char *word, size_t key) {
    char name[32];
    if (key >= sizeof name) {
        return;
    }
    for (size_t i = 0; i < key; i++) {
        name[i] = (char)toupper((unsigned char)word[i]);
    }
    name[key] = '\0';
    const char *value = word + key + 1;
    size_t chars = value_chars(value);
    size_t quote = value[0] == '"' && value[chars - 1] == '"' && chars > 1 ? 1 : 0;
    entry_add(entry, "%s=%.*s\n", name, (int)(chars - 2 * quote), value + quote);
}

size_t journal_entry(int level, const char *component, const char *text, char *out, size_t bytes) {
    struct entry entry = {.out = out, .bytes = bytes};
    entry_add(&entry, "MESSAGE=%s\n", text);
    entry_add(&entry, "PRIORITY=%d\nSYSLOG_IDENTIFIER=ballastd\nCOMPONENT=%s\n", level, component);
    for (const char *word = text; *word != '\0'; word += strspn(word, " ")) {
        size_t key = key_chars(word);
        if (key > 0) {
            entry_add_pair(&entry, word, key);
            word += key + 1 + value_chars(word + key + 1);
        }
        word += strcspn(word, " ");
    }
    return entry.used;
}

/* Without its pairs, and without the blank before them. */
static size_t sentence_chars(const char *sentence) {
    size_t chars = 0;
    for (const char *word = sentence; *word != '\0' && key_chars(word) == 0;) {
        const char *end = word + strcspn(word, " ");
        chars = (size_t)(end - sentence);
        word = end + strspn(end, " ");
    }
    return chars;
}

void journal_message_id(const char *component, const char *sentence, char out[33]) {
    char text[256];
    XXH128_canonical_t canonical;
    int bytes = snprintf(text, sizeof text, "ballastd %s %.*s", component,
                         (int)sentence_chars(sentence), sentence);
    size_t count = bytes < (int)sizeof text ? (size_t)bytes : sizeof text - 1;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(text, count));
    for (size_t i = 0; i < sizeof canonical.digest; i++) {
        (void)snprintf(out + 2 * i, 3, "%02x", canonical.digest[i]);
    }
}

size_t journal_add_id(const char *component, const char *sentence, char *out, size_t used,
                      size_t bytes) {
    struct entry entry = {.out = out, .used = used, .bytes = bytes};
    char id[33];
    journal_message_id(component, sentence, id);
    entry_add(&entry, "MESSAGE_ID=%s\n", id);
    return entry.used;
}

int journal_send(const char *path, const char *entry, size_t bytes) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) {
        return -ENAMETOOLONG;
    }
    memcpy(address.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return -errno;
    }
    ssize_t sent = sendto(fd, entry, bytes, MSG_NOSIGNAL | MSG_DONTWAIT,
                          (const struct sockaddr *)&address, sizeof address);
    int code = sent < 0 ? -errno : 0;
    (void)close(fd);
    return code;
}
