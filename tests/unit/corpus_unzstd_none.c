/* A build without libzstd: a compressed chunk is refused with the program that decompresses it.
 * This program has unzstd_none.c in front of the library's unzstd.c. */
#include "tests/unit/corpus_files.h"
#include "corpus/dataset.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

static void a_compressed_chunk_is_refused_with_what_to_run(void **state) {
    static const char index[] =
        "{\"chunks\": [{\"filename\": \"chunk-0-0.zstd.bin\", \"chunk_bytes\": 20, \"chunk_size\": "
        "1,"
        " \"dim\": 4}], \"config\": {\"compression\": \"zstd\", \"chunk_size\": null,"
        " \"chunk_bytes\": 64, \"data_format\": [\"no_header_numpy:5\"], \"data_spec\": \"x\","
        " \"encryption\": null, \"item_loader\": \"TokensLoader\"}}";
    char folder[64], path[128];
    struct dataset *dataset = NULL;
    struct error error = {0};
    (void)state;
    test_folder_make(folder);
    (void)snprintf(path, sizeof path, "%s/index.json", folder);
    file_write(path, index, sizeof index - 1);
    (void)snprintf(path, sizeof path, "%s/chunk-0-0.zstd.bin", folder);
    file_write(path, "\x28\xb5\x2f\xfd", 4);
    assert_int_equal(dataset_open("books", folder, &dataset, &error), -ENOSYS);
    assert_non_null(strstr(error.text, "chunk-0-0.zstd.bin: compressed with zstd"));
    assert_non_null(strstr(error.text, "`zstd -d FILE -o NAME`"));
    assert_non_null(strstr(error.text, "libzstd-dev"));
    test_folder_remove(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_compressed_chunk_is_refused_with_what_to_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
