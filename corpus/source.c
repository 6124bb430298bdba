/* source: see source.h. */
#include "corpus/source.h"

#include <assert.h>
#include <inttypes.h>

static uint64_t documents_of(const struct corpus_source *source, uint32_t dataset) {
    return dataset_documents(catalog_dataset(source->catalog, dataset));
}

/* In a blend; 0: it takes no part. */
static uint64_t weight_of(const struct corpus_source *source, uint32_t blend, uint32_t dataset) {
    const uint64_t *weights = source->options.weights;
    return weights != NULL ? weights[(size_t)blend * source->source.dataset_count + dataset]
                           : catalog_weight(source->catalog, dataset);
}

static uint32_t blends_of(const struct corpus_source *source) {
    return source->options.weights != NULL ? source->options.blends : 1;
}

static bool is_finished(const struct corpus_source *source, const struct source_cursor *cursor,
                        uint32_t dataset) {
    uint64_t epochs = source->options.epochs;
    return documents_of(source, dataset) == 0 || weight_of(source, cursor->blend, dataset) == 0 ||
           (epochs > 0 && cursor->datasets[dataset].epoch >= epochs);
}

static __int128 product(uint64_t a, uint64_t b) {
    return (__int128)((unsigned __int128)a * b);
}

/* The dataset that lags most behind its share; false when all are finished. */
static bool choose_dataset(const struct corpus_source *source, const struct source_cursor *cursor,
                           uint32_t *out) {
    uint64_t total = 0;
    uint64_t weights = 0;
    for (uint32_t i = 0; i < cursor->dataset_count; i++) {
        if (!is_finished(source, cursor, i)) {
            total += cursor->datasets[i].stream_tokens;
            weights += weight_of(source, cursor->blend, i);
        }
    }
    __int128 largest = 0;
    bool found = false;
    for (uint32_t i = 0; i < cursor->dataset_count; i++) {
        if (is_finished(source, cursor, i)) {
            continue;
        }
        __int128 deficit = product(weight_of(source, cursor->blend, i), total) -
                           product(cursor->datasets[i].stream_tokens, weights);
        if (!found || deficit > largest) {
            largest = deficit;
            *out = i;
            found = true;
        }
    }
    return found;
}

static void count_dropped(struct dataset_cursor *at, uint32_t length) {
    at->arrived_documents++;
    at->arrived_tokens += length;
    at->dropped_documents++;
    at->dropped_tokens += length;
    at->empty_documents += length == 0;
}

static void count_truncated(struct dataset_cursor *at, uint32_t tokens) {
    at->arrived_tokens += tokens;
    at->dropped_tokens += tokens;
    at->truncated_tokens += tokens;
}

/* Takes the next document of a dataset; leaves it open, or closed when it is dropped. */
static void take_document(const struct corpus_source *source, struct source_cursor *cursor,
                          uint32_t dataset) {
    struct dataset_cursor *at = &cursor->datasets[dataset];
    uint64_t documents = documents_of(source, dataset);
    uint64_t epoch = at->epoch;
    uint64_t document = order_document(&source->options.order, dataset, epoch, documents,
                                       at->position);
    uint32_t length = dataset_length(catalog_dataset(source->catalog, dataset), document);
    uint32_t given = corpus_given_length(&source->options, length);
    at->position++;
    if (at->position == documents) {
        at->position = 0;
        at->epoch++;
    }
    at->overlong_documents += length > source->options.part_limit;
    if (given == 0) {
        count_dropped(at, length);
        return;
    }
    count_truncated(at, length - given);
    at->arrived_documents++;
    cursor->open = true;
    cursor->open_dataset = dataset;
    cursor->open_document = document;
    cursor->open_epoch = epoch;
    cursor->open_offset = 0;
    cursor->open_length = given;
}

static void close_document(struct source_cursor *cursor) {
    cursor->open = false;
    cursor->open_dataset = 0;
    cursor->open_document = 0;
    cursor->open_epoch = 0;
    cursor->open_offset = 0;
    cursor->open_length = 0;
}

static void give_part(struct source_cursor *cursor, uint32_t limit, struct document *out) {
    struct dataset_cursor *at = &cursor->datasets[cursor->open_dataset];
    uint32_t left = cursor->open_length - cursor->open_offset;
    uint32_t length = left < limit ? left : limit;
    *out = (struct document){.document = cursor->open_document,
                             .epoch = cursor->open_epoch,
                             .dataset = cursor->open_dataset,
                             .offset = cursor->open_offset,
                             .length = length,
                             .document_length = cursor->open_length};
    at->stream_tokens += length;
    at->arrived_tokens += length;
    cursor->open_offset += length;
    if (cursor->open_offset == cursor->open_length) {
        close_document(cursor);
    }
}

static int source_next(const void *context, struct source_cursor *cursor, uint32_t limit,
                       struct document *out) {
    const struct corpus_source *source = context;
    uint32_t part_limit = source->options.part_limit;
    assert(limit > 0 && cursor->dataset_count == source->source.dataset_count);
    while (!cursor->open) {
        uint32_t dataset = 0;
        if (!choose_dataset(source, cursor, &dataset)) {
            return 0;
        }
        take_document(source, cursor, dataset);
        if (!cursor->open && dataset_failed(catalog_dataset(source->catalog, dataset), NULL) < 0) {
            return 0;
        }
    }
    give_part(cursor, limit < part_limit ? limit : part_limit, out);
    return 1;
}

int corpus_source_failed(const struct corpus_source *source, struct error *error) {
    int code = 0;
    for (uint32_t i = 0; code == 0 && i < source->source.dataset_count; i++) {
        code = dataset_failed(catalog_dataset(source->catalog, i), error);
    }
    return code;
}

static uint32_t source_length(const void *context, uint32_t dataset, uint64_t document) {
    const struct corpus_source *source = context;
    if (dataset >= source->source.dataset_count || document >= documents_of(source, dataset)) {
        return 0;
    }
    return corpus_given_length(&source->options,
                               dataset_length(catalog_dataset(source->catalog, dataset), document));
}

static int refuse_overlong(const struct dataset *dataset, uint64_t document, uint32_t limit,
                           struct error *error) {
    return error_set(
        error, -EINVAL,
        "corpus '%s': %s: document %" PRIu64 ", at offset %" PRIu64 ", has %" PRIu32
        " tokens, over the limit of %" PRIu32
        "; set overlong to split, truncate or drop, or raise plan.window or plan.tokens_max",
        dataset_name(dataset), dataset_bin_path(dataset), document,
        dataset_offset(dataset, document), dataset_length(dataset, document), limit);
}

static int check_dataset(const struct corpus_source *source, const struct dataset *dataset,
                         struct error *error) {
    uint64_t documents = dataset_documents(dataset);
    uint32_t limit = source->options.part_limit;
    bool refuse = source->options.overlong == OVERLONG_REFUSE;
    bool given = documents == 0;
    refuse = refuse && dataset_longest(dataset) > limit;
    for (uint64_t i = 0; i < documents && (refuse || !given); i++) {
        uint32_t length = dataset_length(dataset, i);
        if (refuse && length > limit) {
            return refuse_overlong(dataset, i, limit, error);
        }
        given = given || corpus_given_length(&source->options, length) > 0;
    }
    if (!given) {
        return error_set(error, -EINVAL,
                         "corpus '%s': all %" PRIu64 " documents are empty or over the limit of "
                         "%" PRIu32 " tokens and dropped; remove it, or set overlong to split",
                         dataset_name(dataset), documents, limit);
    }
    return 0;
}

int corpus_source_init(struct corpus_source *source, const struct catalog *catalog,
                       const struct corpus_source_options *options, struct error *error) {
    assert(options->part_limit > 0);
    uint32_t count = catalog_count(catalog);
    uint64_t documents = 0;
    source->options = *options;
    source->catalog = catalog;
    source->source = (struct document_source){
        .next = source_next, .length = source_length, .context = source, .dataset_count = count};
    for (uint32_t i = 0; i < count; i++) {
        const struct dataset *dataset = catalog_dataset(catalog, i);
        int rc = check_dataset(source, dataset, error);
        if (rc < 0) {
            return rc;
        }
        documents += weight_of(source, 0, i) > 0 ? dataset_documents(dataset) : 0;
    }
    if (documents == 0) {
        return error_set(error, -EINVAL,
                         "corpus '%s': no documents, nor in any other dataset; give a corpus that "
                         "has some",
                         dataset_name(catalog_dataset(catalog, 0)));
    }
    return 0;
}

static int check_position(const struct corpus_source *source, uint32_t dataset,
                          const struct dataset_cursor *at, struct error *error) {
    uint64_t documents = documents_of(source, dataset);
    uint64_t epochs = source->options.epochs;
    bool past_the_end = epochs > 0 && (at->epoch > epochs || (at->epoch == epochs && at->position));
    if (past_the_end || at->position > documents || (at->position == documents && documents > 0)) {
        return error_set(error, -EBADMSG,
                         "corpus '%s': restored position %" PRIu64 " in pass %" PRIu64
                         " of a dataset with %" PRIu64 " documents; restore with the corpus that "
                         "the state was saved with",
                         dataset_name(catalog_dataset(source->catalog, dataset)), at->position,
                         at->epoch, documents);
    }
    return 0;
}

/* The open document is the last that its dataset gave. */
static bool open_fits(const struct corpus_source *source, const struct source_cursor *cursor) {
    if (!cursor->open) {
        return cursor->open_dataset == 0 && cursor->open_document == 0 && cursor->open_epoch == 0 &&
               cursor->open_offset == 0 && cursor->open_length == 0;
    }
    if (cursor->open_dataset >= cursor->dataset_count) {
        return false;
    }
    uint32_t dataset = cursor->open_dataset;
    const struct dataset_cursor *at = &cursor->datasets[dataset];
    uint64_t documents = documents_of(source, dataset);
    bool pass_ended = at->position == 0;
    if (documents == 0 || (pass_ended && at->epoch == 0)) {
        return false;
    }
    uint64_t epoch = pass_ended ? at->epoch - 1 : at->epoch;
    uint64_t position = (pass_ended ? documents : at->position) - 1;
    uint64_t document = order_document(&source->options.order, dataset, epoch, documents, position);
    return cursor->open_epoch == epoch && cursor->open_document == document &&
           cursor->open_length == source_length(source, dataset, document) &&
           cursor->open_offset > 0 && cursor->open_offset < cursor->open_length;
}

int corpus_source_check(const struct corpus_source *source, const struct source_cursor *cursor,
                        struct error *error) {
    if (cursor->dataset_count != source->source.dataset_count) {
        return error_set(error, -EBADMSG,
                         "restored state of %" PRIu32 " datasets, the config has %" PRIu32
                         "; restore with the datasets that the state was saved with",
                         cursor->dataset_count, source->source.dataset_count);
    }
    if (cursor->blend >= blends_of(source)) {
        return error_set(error, -EBADMSG,
                         "restored state goes by weights number %" PRIu32
                         ", the config has %" PRIu32
                         "; restore with the sections that the state was saved with",
                         cursor->blend, blends_of(source));
    }
    for (uint32_t i = 0; i < cursor->dataset_count; i++) {
        int rc = check_position(source, i, &cursor->datasets[i], error);
        if (rc < 0) {
            return rc;
        }
    }
    if (!open_fits(source, cursor)) {
        return error_set(error, -EBADMSG,
                         "restored state goes on at token %" PRIu32 " of document %" PRIu64
                         " of dataset %" PRIu32 ", which is not the one taken last; restore with "
                         "the corpus, seed and shuffle that the state was saved with",
                         cursor->open_offset, cursor->open_document, cursor->open_dataset);
    }
    return 0;
}
