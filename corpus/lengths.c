/* lengths: see lengths.h. */
#include "corpus/lengths.h"

#include <assert.h>
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct lengths_list {
    uint32_t *items;
    uint64_t count;
    uint64_t capacity;
};

static int lengths_append(struct lengths_list *list, uint32_t length) {
    if (list->count == list->capacity) {
        uint64_t capacity = list->capacity > 0 ? 2 * list->capacity : 4096;
        uint32_t *grown = reallocarray(list->items, capacity, sizeof *grown);
        if (grown == NULL) {
            return -ENOMEM;
        }
        list->items = grown;
        list->capacity = capacity;
    }
    list->items[list->count++] = length;
    return 0;
}

/* 1 with a length, 0 for an empty line, -EINVAL. */
static int lengths_parse(const char *line, uint32_t *out) {
    char *end;
    line += strspn(line, " \t");
    if (line[strspn(line, "\r\n")] == '\0') {
        return 0;
    }
    if (!isdigit((unsigned char)line[0])) {
        return -EINVAL;
    }
    errno = 0;
    unsigned long value = strtoul(line, &end, 10);
    if (errno != 0 || value > INT32_MAX || end[strspn(end, " \t\r\n")] != '\0') {
        return -EINVAL;
    }
    *out = (uint32_t)value;
    return 1;
}

static int lengths_read_lines(FILE *file, const char *path, struct lengths_list *list,
                              struct error *error) {
    char line[128];
    uint64_t number = 0;
    uint64_t tokens = 0;
    while (fgets(line, sizeof line, file) != NULL) {
        uint32_t length = 0;
        number++;
        int rc = lengths_parse(line, &length);
        if (rc < 0) {
            return error_set(error, rc,
                             "%s:%" PRIu64 ": '%.32s' is not a length; write one whole number of "
                             "tokens below 2147483648 a line",
                             path, number, strtok(line, "\r\n"));
        }
        if (rc == 1 && list->count == LENGTHS_MAX) {
            return error_set(error, -ENOBUFS, "%s: more than %u lengths; take a sample", path,
                             LENGTHS_MAX);
        }
        if (rc == 1 && lengths_append(list, length) < 0) {
            return error_set(error, -ENOMEM, "%s: no memory for %" PRIu64 " lengths", path,
                             list->count);
        }
        tokens += length;
    }
    if (ferror(file) != 0) {
        return error_set(error, -EIO, "%s: cannot be read at line %" PRIu64, path, number + 1);
    }
    if (tokens == 0) {
        return error_set(error, -EINVAL, "%s: no document longer than 0; give one length a line",
                         path);
    }
    return 0;
}

int lengths_read(const char *path, uint32_t **out, uint64_t *count, struct error *error) {
    struct lengths_list list = {0};
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        int code = -errno;
        return error_set(error, code, "%s: cannot be opened: %s", path, strerror(-code));
    }
    int rc = lengths_read_lines(file, path, &list, error);
    (void)fclose(file);
    if (rc < 0) {
        free(list.items);
        return rc;
    }
    *out = list.items;
    *count = list.count;
    return 0;
}

/* Takes the next document: opens it, or counts it as dropped. */
static void lengths_take(const struct lengths_source *source, struct source_cursor *cursor) {
    struct dataset_cursor *at = &cursor->datasets[0];
    uint64_t document = at->position;
    uint64_t epoch = at->epoch;
    uint32_t length;
    at->position++;
    if (source->distribution != NULL) {
        length = distribution_length(source->distribution, source->options.order.seed, document);
    } else {
        document = order_document(&source->options.order, 0, epoch, source->count, document);
        length = source->lengths[document];
        if (at->position == source->count) {
            at->position = 0;
            at->epoch++;
        }
    }
    uint32_t given = corpus_given_length(&source->options, length);
    uint32_t lost = length - given;
    at->arrived_documents++;
    at->arrived_tokens += lost;
    at->dropped_tokens += lost;
    at->dropped_documents += given == 0;
    at->truncated_tokens += given > 0 ? lost : 0;
    at->empty_documents += length == 0;
    at->overlong_documents += length > source->options.part_limit;
    if (given > 0) {
        cursor->open = true;
        cursor->open_document = document;
        cursor->open_epoch = epoch;
        cursor->open_length = given;
    }
}

static void lengths_close(struct source_cursor *cursor) {
    cursor->open = false;
    cursor->open_document = 0;
    cursor->open_epoch = 0;
    cursor->open_offset = 0;
    cursor->open_length = 0;
}

static bool lengths_ended(const struct lengths_source *source, const struct source_cursor *cursor) {
    uint64_t epochs = source->options.epochs;
    return source->distribution == NULL && epochs > 0 && cursor->datasets[0].epoch >= epochs;
}

static int lengths_next(const void *context, struct source_cursor *cursor, uint32_t limit,
                        struct document *out) {
    const struct lengths_source *source = context;
    uint32_t part = limit < source->options.part_limit ? limit : source->options.part_limit;
    assert(limit > 0 && cursor->dataset_count == 1);
    while (!cursor->open) {
        if (lengths_ended(source, cursor)) {
            return 0;
        }
        lengths_take(source, cursor);
    }
    uint32_t left = cursor->open_length - cursor->open_offset;
    *out = (struct document){.document = cursor->open_document,
                             .epoch = cursor->open_epoch,
                             .offset = cursor->open_offset,
                             .length = left < part ? left : part,
                             .document_length = cursor->open_length};
    cursor->datasets[0].stream_tokens += out->length;
    cursor->datasets[0].arrived_tokens += out->length;
    cursor->open_offset += out->length;
    if (cursor->open_offset == cursor->open_length) {
        lengths_close(cursor);
    }
    return 1;
}

static uint32_t lengths_length(const void *context, uint32_t dataset, uint64_t document) {
    const struct lengths_source *source = context;
    if (dataset != 0 || (source->distribution == NULL && document >= source->count)) {
        return 0;
    }
    uint32_t length = source->distribution != NULL
                          ? distribution_length(source->distribution, source->options.order.seed,
                                                document)
                          : source->lengths[document];
    return corpus_given_length(&source->options, length);
}

static void lengths_set_up(struct lengths_source *source,
                           const struct corpus_source_options *options) {
    assert(options->part_limit > 0);
    *source = (struct lengths_source){
        .source = {.next = lengths_next,
                   .length = lengths_length,
                   .context = source,
                   .dataset_count = 1},
        .options = *options,
    };
}

int lengths_source_init(struct lengths_source *source, const uint32_t *lengths, uint64_t count,
                        const struct corpus_source_options *options, struct error *error) {
    lengths_set_up(source, options);
    source->lengths = lengths;
    source->count = count;
    bool given = false;
    for (uint64_t i = 0; i < count; i++) {
        if (options->overlong == OVERLONG_REFUSE && lengths[i] > options->part_limit) {
            return error_set(error, -EINVAL,
                             "length %" PRIu64 " of the list is %" PRIu32
                             " tokens, over the limit of %" PRIu32
                             "; set overlong to split, truncate or drop, or raise plan.window or "
                             "plan.tokens_max",
                             i + 1, lengths[i], options->part_limit);
        }
        given = given || corpus_given_length(options, lengths[i]) > 0;
    }
    if (!given) {
        return error_set(error, -EINVAL,
                         "all %" PRIu64 " documents of the list are empty or over the limit of "
                         "%" PRIu32 " tokens and dropped; set overlong to split",
                         count, options->part_limit);
    }
    return 0;
}

int lengths_source_init_drawn(struct lengths_source *source,
                              const struct distribution *distribution,
                              const struct corpus_source_options *options, struct error *error) {
    uint32_t longest = distribution_length_max(distribution);
    if (options->overlong == OVERLONG_REFUSE && longest > options->part_limit) {
        return error_set(error, -EINVAL,
                         "documents of %s have up to %" PRIu32 " tokens, over the limit of %" PRIu32
                         "; set overlong to split, truncate or drop, or raise plan.window or "
                         "plan.tokens_max",
                         distribution_name(distribution), longest, options->part_limit);
    }
    lengths_set_up(source, options);
    source->distribution = distribution;
    return 0;
}

static int cut_next(const void *context, struct source_cursor *cursor, uint32_t limit,
                    struct document *out) {
    const struct cut_source *source = context;
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < cursor->dataset_count; i++) {
        tokens += cursor->datasets[i].stream_tokens;
    }
    uint32_t room = source->window - (uint32_t)(tokens % source->window);
    return source->inner->next(source->inner->context, cursor, limit < room ? limit : room, out);
}

static uint32_t cut_length(const void *context, uint32_t dataset, uint64_t document) {
    const struct cut_source *source = context;
    return source->inner->length(source->inner->context, dataset, document);
}

void cut_source_init(struct cut_source *source, const struct document_source *inner,
                     uint32_t window) {
    assert(window > 0);
    *source = (struct cut_source){
        .source = {.next = cut_next,
                   .length = cut_length,
                   .context = source,
                   .dataset_count = inner->dataset_count},
        .inner = inner,
        .window = window,
    };
}
