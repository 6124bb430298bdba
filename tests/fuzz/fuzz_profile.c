/* A latency profile of arbitrary bytes is refused with a reason, or what was read is written, read
 * and written as itself, has a name and a hash, and prices tiles by curves that never fall. */
#include "profile/profile.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char *write(const struct profile *profile, size_t *bytes) {
    char *text = NULL;
    FILE *out = open_memstream(&text, bytes);
    assert(out != NULL);
    profile_write(profile, out);
    assert(fclose(out) == 0);
    return text;
}

static void price(const struct tile_direction *curve) {
    unsigned __int128 before_ps = 0;
    assert(curve->bend_count <= TILE_BENDS_MAX);
    for (uint64_t blocks = 1; blocks <= 1u << 20; blocks += 1 + blocks / 7) {
        unsigned __int128 ps = tile_time_ps(curve, blocks);
        assert(ps >= before_ps);
        before_ps = ps;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct error error = {0};
    struct profile *profile = NULL, *again = NULL;
    struct model_profile model;
    struct profile_fit fit;
    struct profile_causal causal;
    size_t bytes, again_bytes;
    if (profile_parse("fuzzed", (const char *)data, size, &profile, &error) < 0) {
        assert(error.code < 0 && error.text[0] != '\0' && profile == NULL);
        return 0;
    }
    char *text = write(profile, &bytes);
    assert(profile_parse("written", text, bytes, &again, &error) == 0);
    char *again_text = write(again, &again_bytes);
    assert(bytes == again_bytes && memcmp(text, again_text, bytes) == 0);
    assert(profile_model(profile, &model) == 0 && strlen(model.name) == 16);
    price(&model.forward);
    price(&model.backward);
    profile_fit(profile, false, &fit);
    profile_fit(profile, true, &fit);
    profile_causal(profile, false, &causal);
    profile_causal(profile, true, &causal);
    (void)profile_spread_ppm(profile, false);
    (void)profile_spread_ppm(profile, true);
    assert(profile_keys_compare(&profile->key, &again->key, NULL, NULL) == 0);
    free(again_text);
    free(text);
    free(again);
    free(profile);
    return 0;
}
