/* config_value: the kinds of values, text to field and back. Integers throughout: a decimal is a
 * count of its last digit's unit. Every print gives the shortest text that parses to the same
 * field. */
#include "daemon/config_keys.h"

#include "daemon/metrics_address.h"
#include "proto/address.h"

#include <arpa/inet.h>
#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *field_of(const struct config_key *key, struct config *config) {
    return (char *)config + key->offset;
}

static const void *field_of_const(const struct config_key *key, const struct config *config) {
    return (const char *)config + key->offset;
}

static void field_store(const struct config_key *key, struct config *config, uint64_t value) {
    if (key->bytes == sizeof(uint64_t)) {
        memcpy(field_of(key, config), &value, sizeof value);
    } else if (key->bytes == sizeof(uint32_t)) {
        uint32_t narrow = (uint32_t)value;
        memcpy(field_of(key, config), &narrow, sizeof narrow);
    } else {
        bool flag = value != 0;
        assert(key->bytes == sizeof flag);
        memcpy(field_of(key, config), &flag, sizeof flag);
    }
}

static uint64_t field_load(const struct config_key *key, const struct config *config) {
    const void *field = field_of_const(key, config);
    if (key->bytes == sizeof(uint64_t)) {
        uint64_t value;
        memcpy(&value, field, sizeof value);
        return value;
    }
    if (key->bytes == sizeof(uint32_t)) {
        uint32_t value;
        memcpy(&value, field, sizeof value);
        return value;
    }
    bool flag;
    assert(key->bytes == sizeof flag);
    memcpy(&flag, field, sizeof flag);
    return flag;
}

/* Decimal digits at *text, moving it behind them. */
static int digits_parse(const char **text, uint64_t *out) {
    uint64_t value = 0;
    const char *p = *text;
    if (!isdigit((unsigned char)*p)) {
        return -EINVAL;
    }
    for (; isdigit((unsigned char)*p); p++) {
        if (__builtin_mul_overflow(value, 10u, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*p - '0'), &value)) {
            return -EINVAL;
        }
    }
    *text = p;
    *out = value;
    return 0;
}

static int in_range(const struct config_key *key, uint64_t value) {
    return value >= key->min && value <= key->max ? 0 : -EINVAL;
}

/* A number of the key's unit, in range; tokens may have the suffix k or m. */
static int count_parse_at(const struct config_key *key, const char **text, uint64_t *out) {
    uint64_t value;
    int code = digits_parse(text, &value);
    if (code < 0) {
        return code;
    }
    if (strcmp(key->unit, "tokens") == 0 && **text != '\0' && strchr("kKmM", **text) != NULL) {
        uint64_t unit = tolower((unsigned char)**text) == 'k' ? 1u << 10 : 1u << 20;
        if (__builtin_mul_overflow(value, unit, &value)) {
            return -EINVAL;
        }
        ++*text;
    }
    *out = value;
    return in_range(key, value);
}

static int count_parse(const struct config_key *key, const char *text, struct config *config) {
    uint64_t value = 0;
    if (key->words == NULL || strcmp(text, key->words) != 0) {
        int code = count_parse_at(key, &text, &value);
        if (code < 0 || *text != '\0') {
            return -EINVAL;
        }
    }
    field_store(key, config, value);
    return 0;
}

static void count_print(const struct config_key *key, const struct config *config, char *out) {
    uint64_t value = field_load(key, config);
    if (value == 0 && key->words != NULL) {
        (void)snprintf(out, CONFIG_VALUE_BYTES, "%s", key->words);
    } else {
        (void)snprintf(out, CONFIG_VALUE_BYTES, "%llu", (unsigned long long)value);
    }
}

static void count_allowed(const struct config_key *key, char *out, size_t bytes) {
    (void)snprintf(out, bytes, "%s%s%llu to %llu%s%s", key->words == NULL ? "" : key->words,
                   key->words == NULL ? "" : ", or ", (unsigned long long)key->min,
                   (unsigned long long)key->max, key->unit[0] == '\0' ? "" : " ", key->unit);
}

const struct config_kind kind_count = {count_parse, count_print, count_allowed, NULL};

static uint64_t power_of_ten(unsigned exponent) {
    uint64_t power = 1;
    while (exponent-- > 0) {
        power *= 10;
    }
    return power;
}

int config_decimal_parse(const char *text, unsigned digits, uint64_t *out) {
    uint64_t whole;
    uint64_t fraction = 0;
    int code = digits_parse(&text, &whole);
    if (code == 0 && *text == '.') {
        const char *begin = ++text;
        code = digits_parse(&text, &fraction);
        if (code == 0 && (size_t)(text - begin) > digits) {
            code = -EINVAL;
        }
        if (code == 0) {
            fraction *= power_of_ten(digits - (unsigned)(text - begin));
        }
    }
    if (code < 0 || *text != '\0' || __builtin_mul_overflow(whole, power_of_ten(digits), &whole) ||
        __builtin_add_overflow(whole, fraction, &whole)) {
        return -EINVAL;
    }
    *out = whole;
    return 0;
}

void config_decimal_print(uint64_t value, unsigned digits, char *out, size_t bytes) {
    uint64_t fraction = value % power_of_ten(digits);
    uint64_t whole = value / power_of_ten(digits);
    while (digits > 0 && fraction % 10 == 0) {
        fraction /= 10;
        digits--;
    }
    if (digits == 0) {
        (void)snprintf(out, bytes, "%llu", (unsigned long long)whole);
    } else {
        (void)snprintf(out, bytes, "%llu.%0*llu", (unsigned long long)whole, (int)digits,
                       (unsigned long long)fraction);
    }
}

static int decimal_parse(const struct config_key *key, const char *text, struct config *config) {
    uint64_t value;
    if (config_decimal_parse(text, 3, &value) < 0 || in_range(key, value) < 0) {
        return -EINVAL;
    }
    field_store(key, config, value);
    return 0;
}

static void decimal_print(const struct config_key *key, const struct config *config, char *out) {
    config_decimal_print(field_load(key, config), 3, out, CONFIG_VALUE_BYTES);
}

static void decimal_allowed(const struct config_key *key, char *out, size_t bytes) {
    char low[32];
    char high[32];
    config_decimal_print(key->min, 3, low, sizeof low);
    config_decimal_print(key->max, 3, high, sizeof high);
    (void)snprintf(out, bytes, "%s to %s %s", low, high, key->unit);
}

const struct config_kind kind_decimal = {decimal_parse, decimal_print, decimal_allowed, NULL};

static bool is_auto(const struct config_key *key, const char *text) {
    return strcmp(text, key->words) == 0;
}

static bool prints_auto(const struct config_key *key, const struct config *config, char *out) {
    bool holds = field_load(key, config) == LEVEL_AUTO;
    if (holds) {
        (void)snprintf(out, CONFIG_VALUE_BYTES, "%s", key->words);
    }
    return holds;
}

static int parameter_parse(const struct config_key *key, const char *text, struct config *config) {
    if (is_auto(key, text)) {
        field_store(key, config, LEVEL_AUTO);
        return 0;
    }
    uint64_t value;
    int code = count_parse_at(key, &text, &value);
    if (code < 0 || *text != '\0') {
        return -EINVAL;
    }
    field_store(key, config, value);
    return 0;
}

static void parameter_print(const struct config_key *key, const struct config *config, char *out) {
    if (!prints_auto(key, config, out)) {
        (void)snprintf(out, CONFIG_VALUE_BYTES, "%llu",
                       (unsigned long long)field_load(key, config));
    }
}

const struct config_kind kind_parameter = {parameter_parse, parameter_print, count_allowed, NULL};

/* Millionths, written with `digits` digits after the point and `suffix` behind them. */
static int fraction_parse(const struct config_key *key, const char *text, unsigned digits,
                          const char *suffix, struct config *config) {
    char number[32];
    size_t length = strlen(text);
    size_t suffix_length = strlen(suffix);
    uint64_t value = LEVEL_AUTO;
    if (!is_auto(key, text)) {
        if (length < suffix_length || length - suffix_length >= sizeof number ||
            strcmp(text + length - suffix_length, suffix) != 0) {
            return -EINVAL;
        }
        memcpy(number, text, length - suffix_length);
        number[length - suffix_length] = '\0';
        if (config_decimal_parse(number, digits, &value) < 0 || in_range(key, value) < 0) {
            return -EINVAL;
        }
    }
    field_store(key, config, value);
    return 0;
}

static void fraction_allowed(const struct config_key *key, unsigned digits, const char *suffix,
                             char *out, size_t bytes) {
    char low[32];
    char high[32];
    config_decimal_print(key->min, digits, low, sizeof low);
    config_decimal_print(key->max, digits, high, sizeof high);
    (void)snprintf(out, bytes, "%s, or %s%s to %s%s", key->words, low, suffix, high, suffix);
}

static int percent_parse(const struct config_key *key, const char *text, struct config *config) {
    return fraction_parse(key, text, 4, "%", config);
}

static void percent_print(const struct config_key *key, const struct config *config, char *out) {
    if (!prints_auto(key, config, out)) {
        config_decimal_print(field_load(key, config), 4, out, CONFIG_VALUE_BYTES - 1);
        strcat(out, "%");
    }
}

static void percent_allowed(const struct config_key *key, char *out, size_t bytes) {
    fraction_allowed(key, 4, "%", out, bytes);
}

const struct config_kind kind_percent = {percent_parse, percent_print, percent_allowed, NULL};

static int steps_parse(const struct config_key *key, const char *text, struct config *config) {
    return fraction_parse(key, text, 6, "", config);
}

static void steps_print(const struct config_key *key, const struct config *config, char *out) {
    if (!prints_auto(key, config, out)) {
        config_decimal_print(field_load(key, config), 6, out, CONFIG_VALUE_BYTES);
    }
}

static void steps_allowed(const struct config_key *key, char *out, size_t bytes) {
    fraction_allowed(key, 6, "", out, bytes);
}

const struct config_kind kind_steps = {steps_parse, steps_print, steps_allowed, NULL};

/* Number of `text` in the list "a|b|c", -1 if it is not there. */
static int word_index(const char *words, const char *text) {
    size_t length = strlen(text);
    for (int i = 0;; i++) {
        size_t word = strcspn(words, "|");
        if (word == length && memcmp(words, text, length) == 0) {
            return i;
        }
        if (words[word] == '\0') {
            return -1;
        }
        words += word + 1;
    }
}

/* Word number `index` of the list, which has that many. */
static void word_print(const char *words, uint64_t index, char *out, size_t bytes) {
    while (index-- > 0) {
        words = strchr(words, '|');
        assert(words != NULL);
        words++;
    }
    (void)snprintf(out, bytes, "%.*s", (int)strcspn(words, "|"), words);
}

static void words_print(const char *before, const char *words, char *out, size_t bytes) {
    size_t used = (size_t)snprintf(out, bytes, "%s", before);
    for (const char *p = words; *p != '\0' && used + 3 < bytes; p++) {
        if (*p == '|') {
            out[used++] = ',';
            out[used++] = ' ';
        } else {
            out[used++] = *p;
        }
    }
    out[used] = '\0';
}

static int choice_parse(const struct config_key *key, const char *text, struct config *config) {
    int index = word_index(key->words, text);
    if (index < 0) {
        return -EINVAL;
    }
    field_store(key, config, key->min + (uint64_t)index);
    return 0;
}

static void choice_print(const struct config_key *key, const struct config *config, char *out) {
    word_print(key->words, field_load(key, config) - key->min, out, CONFIG_VALUE_BYTES);
}

static void choice_allowed(const struct config_key *key, char *out, size_t bytes) {
    words_print("one of ", key->words, out, bytes);
}

const struct config_kind kind_choice = {choice_parse, choice_print, choice_allowed, NULL};

static int policy_key_parse(const struct config_key *key, const char *text, struct config *config) {
    enum policy policy = POLICY_PLAIN;
    uint32_t pool_size = 0;
    int code = policy_pool_parse(text, &policy, &pool_size);
    if (code == 0) {
        field_store(key, config, policy);
        config->plan.pools.size = pool_size;
    }
    return code;
}

static void policy_key_print(const struct config_key *key, const struct config *config, char *out) {
    char name[POLICY_NAME_BYTES];
    policy_pool_name((enum policy)field_load(key, config), config->plan.pools.size, name);
    (void)snprintf(out, CONFIG_VALUE_BYTES, "%s", name);
}

const struct config_kind kind_policy = {policy_key_parse, policy_key_print, choice_allowed, NULL};

static const struct duration_unit {
    const char *name;
    uint64_t ms;
} duration_units[] = {{"h", 3600000}, {"m", 60000}, {"s", 1000}, {"ms", 1}};

static int duration_parse(const struct config_key *key, const char *text, struct config *config) {
    uint64_t value;
    if (digits_parse(&text, &value) < 0) {
        return -EINVAL;
    }
    for (size_t i = 0; i < sizeof duration_units / sizeof duration_units[0]; i++) {
        if (strcmp(text, duration_units[i].name) == 0) {
            if (__builtin_mul_overflow(value, duration_units[i].ms, &value) ||
                in_range(key, value) < 0) {
                return -EINVAL;
            }
            field_store(key, config, value);
            return 0;
        }
    }
    return -EINVAL;
}

static void duration_text(uint64_t ms, char *out, size_t bytes) {
    const struct duration_unit *unit = duration_units;
    while (ms % unit->ms != 0) {
        unit++;
    }
    (void)snprintf(out, bytes, "%llu%s", (unsigned long long)(ms / unit->ms), unit->name);
}

static void duration_print(const struct config_key *key, const struct config *config, char *out) {
    duration_text(field_load(key, config), out, CONFIG_VALUE_BYTES);
}

static void duration_allowed(const struct config_key *key, char *out, size_t bytes) {
    char low[32];
    char high[32];
    duration_text(key->min, low, sizeof low);
    duration_text(key->max, high, sizeof high);
    (void)snprintf(out, bytes, "%s to %s, with ms, s, m or h", low, high);
}

const struct config_kind kind_duration = {duration_parse, duration_print, duration_allowed, NULL};

static int path_parse(const struct config_key *key, const char *text, struct config *config) {
    size_t length = strlen(text);
    if (in_range(key, length) < 0) {
        return -EINVAL;
    }
    assert(length < key->bytes);
    memcpy(field_of(key, config), text, length + 1);
    return 0;
}

static void path_print(const struct config_key *key, const struct config *config, char *out) {
    (void)snprintf(out, CONFIG_VALUE_BYTES, "%s", (const char *)field_of_const(key, config));
}

static void path_allowed(const struct config_key *key, char *out, size_t bytes) {
    (void)snprintf(out, bytes, "a path of %llu to %llu characters", (unsigned long long)key->min,
                   (unsigned long long)key->max);
}

const struct config_kind kind_path = {path_parse, path_print, path_allowed, NULL};

static void text_allowed(const struct config_key *key, char *out, size_t bytes) {
    (void)snprintf(out, bytes, "up to %llu characters, or nothing", (unsigned long long)key->max);
}

const struct config_kind kind_text = {path_parse, path_print, text_allowed, NULL};

static int token_type_parse(const struct config_key *key, const char *text, struct config *config) {
    uint8_t dtype = 0;
    if (strcmp(text, key->words) != 0 && format_dtype_parse(text, &dtype) < 0) {
        return -EINVAL;
    }
    field_store(key, config, dtype);
    return 0;
}

static void token_type_print(const struct config_key *key, const struct config *config, char *out) {
    (void)snprintf(out, CONFIG_VALUE_BYTES, "%s",
                   format_dtype_name((uint8_t)field_load(key, config)));
}

static void token_type_allowed(const struct config_key *key, char *out, size_t bytes) {
    (void)key;
    (void)snprintf(out, bytes, "auto, u8, u16, u32, u64, i16, i32 or i64");
}

const struct config_kind kind_token_type = {token_type_parse, token_type_print, token_type_allowed,
                                            NULL};

static int eod_parse(const struct config_key *key, const char *text, struct config *config) {
    uint64_t value = strcmp(text, "none") == 0 ? FORMAT_EOD_NONE : FORMAT_EOD_AUTO;
    if (value == FORMAT_EOD_AUTO && strcmp(text, key->words) != 0 &&
        (config_decimal_parse(text, 0, &value) < 0 || in_range(key, value) < 0)) {
        return -EINVAL;
    }
    field_store(key, config, value);
    return 0;
}

static void eod_print(const struct config_key *key, const struct config *config, char *out) {
    uint64_t value = field_load(key, config);
    if (value >= FORMAT_EOD_NONE) {
        (void)snprintf(out, CONFIG_VALUE_BYTES, "%s", value == FORMAT_EOD_NONE ? "none" : "auto");
    } else {
        (void)snprintf(out, CONFIG_VALUE_BYTES, "%llu", (unsigned long long)value);
    }
}

static void eod_allowed(const struct config_key *key, char *out, size_t bytes) {
    (void)snprintf(out, bytes, "auto, none, or 0 to %llu", (unsigned long long)key->max);
}

const struct config_kind kind_eod = {eod_parse, eod_print, eod_allowed, NULL};

static void profile_allowed(const struct config_key *key, char *out, size_t bytes) {
    (void)snprintf(out, bytes, "the path of a profile, up to %llu characters, or nothing",
                   (unsigned long long)key->max);
}

static void profile_identity(const struct config_key *key, const struct config *config, char *out) {
    (void)key;
    config_profile_print(&config->plan.model.profile, out);
}

const struct config_kind kind_profile = {path_parse, path_print, profile_allowed, profile_identity};

static int listen_parse(const struct config_key *key, const char *text, struct config *config) {
    struct metrics_address address;
    size_t length = strlen(text);
    if (length >= key->bytes ||
        (strcmp(text, key->words) != 0 && metrics_address_parse(text, &address) < 0)) {
        return -EINVAL;
    }
    memcpy(field_of(key, config), text, length + 1);
    return 0;
}

static void listen_allowed(const struct config_key *key, char *out, size_t bytes) {
    (void)snprintf(out, bytes, "%s, unix:/PATH, 127.0.0.1:PORT or [::1]:PORT", key->words);
}

const struct config_kind kind_listen = {listen_parse, path_print, listen_allowed, NULL};

static int windows_parse(const struct config_key *key, const char *text, struct config *config) {
    size_t length = strlen(text);
    char number[32];
    uint64_t millionths;
    if (length == 0 || text[length - 1] != 'w') {
        return count_parse(key, text, config);
    }
    if (length > sizeof number) {
        return -EINVAL;
    }
    memcpy(number, text, length - 1);
    number[length - 1] = '\0';
    if (config_decimal_parse(number, 6, &millionths) < 0 ||
        millionths > (uint64_t)TOKENS_MAX_LIMIT * 1000000) {
        return -EINVAL;
    }
    unsigned __int128 product = (unsigned __int128)millionths * config->plan.window / 1000000;
    if (product < key->min || product > key->max) {
        return -EINVAL;
    }
    field_store(key, config, (uint64_t)product);
    return 0;
}

static void windows_allowed(const struct config_key *key, char *out, size_t bytes) {
    (void)snprintf(out, bytes, "%llu to %llu tokens, also in windows, such as 1.25w",
                   (unsigned long long)key->min, (unsigned long long)key->max);
}

const struct config_kind kind_windows = {windows_parse, count_print, windows_allowed, NULL};

/* The next item of a list "a, b,c", moving the cursor behind it; 1, 0 at the end, -EINVAL for an
 * empty or overlong item. */
static int list_next(const char **cursor, char *item, size_t bytes) {
    const char *p = *cursor;
    if (*p == '\0') {
        return 0;
    }
    p += strspn(p, " \t");
    size_t length = strcspn(p, ",");
    const char *next = p + length;
    while (length > 0 && isspace((unsigned char)p[length - 1])) {
        length--;
    }
    if (length == 0 || length >= bytes || (*next == ',' && next[1] == '\0')) {
        return -EINVAL;
    }
    memcpy(item, p, length);
    item[length] = '\0';
    *cursor = *next == ',' ? next + 1 : next;
    return 1;
}

static int thresholds_parse(const struct config_key *key, const char *text, struct config *config) {
    struct bands_options *bands = &config->plan.bands;
    char item[32];
    int more;
    if (strcmp(text, "auto") == 0) {
        bands->bands = BANDS_AUTO;
        return 0;
    }
    bands->bands = 0;
    if (strcmp(text, "none") == 0) {
        return 0;
    }
    while ((more = list_next(&text, item, sizeof item)) > 0) {
        const char *number = item;
        uint64_t length;
        if (bands->bands == BANDS_MAX || count_parse_at(key, &number, &length) < 0 ||
            *number != '\0' ||
            (bands->bands > 0 && length <= bands->length_min[bands->bands - 1])) {
            return -EINVAL;
        }
        bands->length_min[bands->bands++] = (uint32_t)length;
    }
    return more == 0 && bands->bands > 0 ? 0 : -EINVAL;
}

static void thresholds_print(const struct config_key *key, const struct config *config, char *out) {
    const struct bands_options *bands = &config->plan.bands;
    size_t used = 0;
    (void)key;
    (void)snprintf(out, CONFIG_VALUE_BYTES, "none");
    for (uint32_t i = 0; i < bands->bands; i++) {
        used += (size_t)snprintf(out + used, CONFIG_VALUE_BYTES - used, "%s%u", i > 0 ? "," : "",
                                 bands->length_min[i]);
    }
}

static void thresholds_allowed(const struct config_key *key, char *out, size_t bytes) {
    (void)snprintf(out, bytes,
                   "auto, none, or a list of 1 to %u ascending lengths, %llu to %llu tokens",
                   BANDS_MAX, (unsigned long long)key->min, (unsigned long long)key->max);
}

const struct config_kind kind_thresholds = {thresholds_parse, thresholds_print, thresholds_allowed,
                                            NULL};

static int layouts_parse(const struct config_key *key, const char *text, struct config *config) {
    char item[32];
    uint64_t bits = 0;
    int more;
    while ((more = list_next(&text, item, sizeof item)) > 0) {
        int index = word_index(key->words, item);
        if (index < 0) {
            return -EINVAL;
        }
        bits |= 1ull << (key->min + (uint64_t)index);
    }
    if (more < 0 || bits == 0) {
        return -EINVAL;
    }
    field_store(key, config, bits);
    return 0;
}

static void layouts_print(const struct config_key *key, const struct config *config, char *out) {
    uint64_t bits = field_load(key, config) >> key->min;
    size_t used = 0;
    for (uint64_t i = 0; bits >> i != 0; i++) {
        if ((bits >> i & 1) != 0) {
            if (used > 0) {
                out[used++] = ',';
            }
            word_print(key->words, i, out + used, CONFIG_VALUE_BYTES - used);
            used += strlen(out + used);
        }
    }
}

static void layouts_allowed(const struct config_key *key, char *out, size_t bytes) {
    words_print("a list of ", key->words, out, bytes);
}

const struct config_kind kind_layouts = {layouts_parse, layouts_print, layouts_allowed, NULL};

static int cost_parse(const struct config_key *key, const char *text, struct config *config) {
    uint64_t linear = 0;
    if (strcmp(text, "analytic") != 0) {
        if (strncmp(text, "L2/", 3) != 0) {
            return -EINVAL;
        }
        text += 3;
        if (digits_parse(&text, &linear) < 0 || *text != '\0' || in_range(key, linear) < 0) {
            return -EINVAL;
        }
    }
    field_store(key, config, linear);
    return 0;
}

static void cost_print(const struct config_key *key, const struct config *config, char *out) {
    uint64_t linear = field_load(key, config);
    if (linear == 0) {
        (void)snprintf(out, CONFIG_VALUE_BYTES, "analytic");
    } else {
        (void)snprintf(out, CONFIG_VALUE_BYTES, "L2/%llu", (unsigned long long)linear);
    }
}

static void cost_allowed(const struct config_key *key, char *out, size_t bytes) {
    (void)snprintf(out, bytes, "analytic, or L2/C with C from %llu to %llu",
                   (unsigned long long)key->min, (unsigned long long)key->max);
}

const struct config_kind kind_cost = {cost_parse, cost_print, cost_allowed, NULL};

/* "3" or "4-7", below `limit`. */
static int span_parse(const char *text, uint64_t limit, uint64_t *first, uint64_t *last) {
    if (digits_parse(&text, first) < 0) {
        return -EINVAL;
    }
    *last = *first;
    if (*text == '-') {
        text++;
        if (digits_parse(&text, last) < 0) {
            return -EINVAL;
        }
    }
    return *text == '\0' && *first <= *last && *last < limit ? 0 : -EINVAL;
}

static int replicas_parse(const struct config_key *key, const char *text, struct config *config) {
    uint32_t dp = config->plan.dp;
    char item[32];
    int more;
    (void)key;
    free(config->replicas_local);
    config->replicas_local = calloc(dp, 1);
    if (config->replicas_local == NULL) {
        return -ENOMEM;
    }
    if (strcmp(text, "all") == 0) {
        memset(config->replicas_local, 1, dp);
        config->replicas_local_count = dp;
        return 0;
    }
    config->replicas_local_count = 0;
    while ((more = list_next(&text, item, sizeof item)) > 0) {
        uint64_t first;
        uint64_t last;
        if (span_parse(item, dp, &first, &last) < 0) {
            return -EINVAL;
        }
        for (uint64_t i = first; i <= last; i++) {
            config->replicas_local_count += config->replicas_local[i] == 0;
            config->replicas_local[i] = 1;
        }
    }
    return more == 0 && config->replicas_local_count > 0 ? 0 : -EINVAL;
}

static void replicas_print(const struct config_key *key, const struct config *config, char *out) {
    uint32_t dp = config->plan.dp;
    size_t used = 0;
    (void)key;
    if (config->replicas_local_count == dp) {
        (void)snprintf(out, CONFIG_VALUE_BYTES, "all");
        return;
    }
    for (uint32_t first = 0; first < dp; first++) {
        if (config->replicas_local[first] == 0) {
            continue;
        }
        uint32_t last = first;
        while (last + 1 < dp && config->replicas_local[last + 1] != 0) {
            last++;
        }
        used += (size_t)snprintf(out + used, CONFIG_VALUE_BYTES - used,
                                 last > first ? "%s%u-%u" : "%s%u", used > 0 ? "," : "", first,
                                 last);
        first = last;
    }
}

static void replicas_allowed(const struct config_key *key, char *out, size_t bytes) {
    (void)key;
    (void)snprintf(out, bytes, "all, or a list such as 0,1,4-7 of numbers below parallel.dp");
}

const struct config_kind kind_replicas = {replicas_parse, replicas_print, replicas_allowed, NULL};

/* The two lists of users are laid out alike: the ids, then their count. */
struct uid_list {
    uint32_t ids[CONFIG_UIDS_MAX];
    uint32_t count;
};
_Static_assert(offsetof(struct config, uids_serve_count) - offsetof(struct config, uids_serve) ==
                       offsetof(struct uid_list, count) &&
                   offsetof(struct config, uids_admin_count) -
                           offsetof(struct config, uids_admin) ==
                       offsetof(struct uid_list, count),
               "kind_uids expects the count behind the ids");

static int uids_parse(const struct config_key *key, const char *text, struct config *config) {
    struct uid_list *list = field_of(key, config);
    char item[32];
    int more;
    list->count = 0;
    while ((more = list_next(&text, item, sizeof item)) > 0) {
        const char *number = item;
        uint64_t uid;
        if (list->count == CONFIG_UIDS_MAX || digits_parse(&number, &uid) < 0 || *number != '\0' ||
            uid >= UINT32_MAX) {
            return -EINVAL;
        }
        list->ids[list->count++] = (uint32_t)uid;
    }
    return more;
}

static void uids_print(const struct config_key *key, const struct config *config, char *out) {
    const struct uid_list *list = field_of_const(key, config);
    size_t used = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < list->count; i++) {
        used += (size_t)snprintf(out + used, CONFIG_VALUE_BYTES - used, "%s%u", i > 0 ? "," : "",
                                 list->ids[i]);
    }
}

static void uids_allowed(const struct config_key *key, char *out, size_t bytes) {
    (void)key;
    (void)snprintf(out, bytes, "up to %u user ids, such as 1000,1001", CONFIG_UIDS_MAX);
}

const struct config_kind kind_uids = {uids_parse, uids_print, uids_allowed, NULL};

/* What it may be together with the other keys, listen_check says. */
static int endpoint_parse(const struct config_key *key, const char *text, struct config *config) {
    if (strcmp(text, "off") == 0) {
        return path_parse(key, "", config);
    }
    struct address address;
    struct in6_addr literal;
    if (address_parse_host(text, &address) < 0 ||
        (inet_pton(AF_INET, address.host, &literal) != 1 &&
         inet_pton(AF_INET6, address.host, &literal) != 1)) {
        return -EINVAL;
    }
    return path_parse(key, text, config);
}

static void endpoint_print(const struct config_key *key, const struct config *config, char *out) {
    const char *text = field_of_const(key, config);
    (void)snprintf(out, CONFIG_VALUE_BYTES, "%s", text[0] == '\0' ? "off" : text);
}

static void endpoint_allowed(const struct config_key *key, char *out, size_t bytes) {
    (void)key;
    (void)snprintf(out, bytes, "off, or ADDRESS:PORT such as 127.0.0.1:7411 or [::1]:7411");
}

const struct config_kind kind_endpoint = {endpoint_parse, endpoint_print, endpoint_allowed, NULL};

static int file_parse(const struct config_key *key, const char *text, struct config *config) {
    size_t length = strlen(text);
    return length > 0 && text[length - 1] == '/' ? -EINVAL : path_parse(key, text, config);
}

static void file_allowed(const struct config_key *key, char *out, size_t bytes) {
    (void)snprintf(out, bytes, "a file, of at most %llu characters, or nothing",
                   (unsigned long long)key->max);
}

const struct config_kind kind_file = {file_parse, path_print, file_allowed, NULL};

static int names_parse(const struct config_key *key, const char *text, struct config *config) {
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_,";
    return text[strspn(text, letters)] != '\0' ? -EINVAL : path_parse(key, text, config);
}

static void names_allowed(const struct config_key *key, char *out, size_t bytes) {
    (void)snprintf(out, bytes, "host names with commas, no blanks, at most %llu characters",
                   (unsigned long long)key->max);
}

const struct config_kind kind_names = {names_parse, path_print, names_allowed, NULL};
