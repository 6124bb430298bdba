/* pools_options: the part of `ballastctl simulate`'s command line that is about pools. */
#include "client/ctl/pools.h"

#include "client/ctl/ctl.h"

#include <string.h>

#define NUMBER_MAX (1u << 26)

static uint32_t number_parse(const char *text, const char *what, struct argp_state *state) {
    uint64_t value = ctl_number(state, text, NUMBER_MAX, what);
    if (value == 0) {
        argp_error(state, "%s takes numbers above 0", what);
    }
    return (uint32_t)value;
}

static void list_parse(struct pools_list *list, char *text, const char *what,
                       struct argp_state *state) {
    char *rest = NULL;
    list->count = 0;
    for (char *item = strtok_r(text, ",", &rest); item != NULL; item = strtok_r(NULL, ",", &rest)) {
        if (list->count == POOLS_LIST_MAX) {
            argp_error(state, "%s: more than %u of them", what, POOLS_LIST_MAX);
        }
        list->values[list->count++] = number_parse(item, what, state);
    }
    if (list->count == 0) {
        argp_error(state, "%s names none", what);
    }
}

static void heads_parse(struct pools_request *options, char *text, struct argp_state *state) {
    struct pools_list heads = {.count = 0};
    list_parse(&heads, text, "--heads", state);
    if (heads.count != 3 || heads.values[0] % heads.values[1] != 0) {
        argp_error(state, "--heads takes three numbers, Q,KV,DIM, Q a multiple of KV");
    }
    options->q_heads = heads.values[0];
    options->kv_heads = heads.values[1];
    options->head_dim = heads.values[2];
}

/* The place of a word in a list. */
static uint32_t word_parse(const char *text, const char *const *words, uint32_t count,
                           const char *what, struct argp_state *state) {
    for (uint32_t i = 0; i < count; i++) {
        if (strcmp(text, words[i]) == 0) {
            return i;
        }
    }
    argp_error(state, "%s '%s' is not one that --help lists", what, text);
    return 0;
}

bool pools_option_parse(struct pools_request *options, int key, char *arg,
                        struct argp_state *state) {
    static const char *const placements[] = {"vrsp-swap", "vrsp", "zigzag-swap", "zigzag"};
    static const char *const tiles[] = {"best", "home-first", "coarse-first", "algorithm-2"};
    switch (key) {
    case OPTION_POOL:
        list_parse(&options->sizes, arg, "--pool", state);
        options->wanted = true;
        return true;
    case OPTION_HEAD_SHARDS:
        list_parse(&options->head_shards, arg, "--head-shards", state);
        break;
    case OPTION_BLOCK:
        list_parse(&options->blocks, arg, "--block", state);
        break;
    case OPTION_HEADS:
        heads_parse(options, arg, state);
        break;
    case OPTION_SEARCH:
        options->search = true;
        options->wanted = true;
        return true;
    case OPTION_SNAKE:
        options->snake = true;
        break;
    case OPTION_CHAIN:
        options->chain = true;
        break;
    case OPTION_PLACEMENT:
        options->placement = (enum pools_placement)word_parse(arg, placements, 4, "--placement",
                                                              state);
        break;
    case OPTION_TILES:
        options->tiles = (enum pools_tiles)word_parse(arg, tiles, 4, "--tiles", state);
        break;
    case OPTION_EXCHANGE_CHUNKS:
        options->chunks = number_parse(arg, "--exchange-chunks", state);
        break;
    case OPTION_LINK:
        options->link_mbps = number_parse(arg, "--link", state);
        break;
    default:
        return false;
    }
    options->described = true;
    return true;
}

void pools_options_check(const struct pools_request *options, struct argp_state *state) {
    if (options->described && !options->wanted) {
        argp_error(
            state,
            "--head-shards, --block, --heads, --placement, --tiles, --snake, --chain, "
            "--exchange-chunks, --link say how pools are tried: give --pool or --search too");
    }
}
