/* What the compiler made of the kernels, counted in the machine code: every wgmma that the source
 * issues and no other, bulk additions where dQ is summed, no traffic with local memory.
 *
 * A fat binary is searched for its ELF image; each kernel is a section .text.NAME of 128-bit
 * instructions, whose low 12 bits are the opcode (found by compiling the same small kernel with
 * different counts of one instruction). Without nvcc there is nothing to count: exit 77. */
#include <elf.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    OPCODES = 4096,
    OPCODE_WGMMA_SHARED = 0x9f0,    /* A in shared memory */
    OPCODE_WGMMA_REGISTERS = 0xdf0, /* A in registers */
    OPCODE_TMA_LOAD = 0x5b4,
    OPCODE_TMA_REDUCE = 0x3b6,
    OPCODE_LOCAL_LOAD = 0x983,
    OPCODE_LOCAL_STORE = 0x387,
    OPCODE_LOCAL_STORE_WIDE = 0x987,
};

#ifdef ATTN_FATBIN_64

struct image {
    unsigned char *bytes;
    size_t size;
    const unsigned char *elf;
};

static void image_open(struct image *image, const char *path) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    image->size = (size_t)ftell(file);
    rewind(file);
    image->bytes = malloc(image->size);
    assert_int_equal(fread(image->bytes, 1, image->size, file), image->size);
    fclose(file);
    image->elf = memmem(image->bytes, image->size, ELFMAG, SELFMAG);
    assert_non_null(image->elf);
}

/* Copies what may lie misaligned; fails outside the image. */
static void image_read(const struct image *image, uint64_t offset, void *to, size_t size) {
    size_t start = (size_t)(image->elf - image->bytes);
    assert_true(offset <= image->size - start && size <= image->size - start - offset);
    memcpy(to, image->elf + offset, size);
}

static Elf64_Shdr section_read(const struct image *image, const Elf64_Ehdr *header,
                               uint32_t index) {
    Elf64_Shdr section;
    image_read(image, header->e_shoff + (uint64_t)index * header->e_shentsize, &section,
               sizeof section);
    return section;
}

static void count_opcodes(const struct image *image, const char *kernel, uint32_t *counts) {
    Elf64_Ehdr header;
    char wanted[80];
    memset(counts, 0, OPCODES * sizeof *counts);
    (void)snprintf(wanted, sizeof wanted, ".text.%s", kernel);
    image_read(image, 0, &header, sizeof header);
    Elf64_Shdr names = section_read(image, &header, header.e_shstrndx);
    for (uint32_t i = 0; i < header.e_shnum; i++) {
        char name[80] = "";
        Elf64_Shdr section = section_read(image, &header, i);
        uint64_t left = names.sh_size - section.sh_name;
        image_read(image, names.sh_offset + section.sh_name, name,
                   left < sizeof name ? left : sizeof name - 1);
        for (uint64_t at = 0; strcmp(name, wanted) == 0 && at < section.sh_size; at += 16) {
            uint64_t instruction;
            image_read(image, section.sh_offset + at, &instruction, sizeof instruction);
            counts[instruction % OPCODES]++;
        }
    }
}

/* Products that the source issues, by kernel and head dimension. */
static const struct expected {
    const char *kernel;
    uint32_t shared[2]; /* d64, d128 */
    uint32_t registers[2];
    uint32_t reduces;
    int loads;
} expectations[] = {
    {"forward", {2 * 4, 2 * 8}, {2 * 8, 2 * 8}, 0, 1},          /* Q K^T, P V: first and others */
    {"backward", {2 * 4 + 4, 2 * 8 + 8}, {2 * 4, 2 * 4}, 2, 1}, /* S, dP, dQ; dV, dK */
    {"backward_keys", {2 * 4, 2 * 8}, {2 * 4, 2 * 4}, 0, 1},
    {"backward_queries", {2 * 4, 2 * 8}, {4, 4}, 0, 1}, /* S, dP; dQ */
    {"rows", {0, 0}, {0, 0}, 0, 0},
    {"finish", {0, 0}, {0, 0}, 0, 0},
};

static void check_kernel(const struct image *image, const struct expected *expected, int d) {
    static uint32_t counts[OPCODES];
    char name[64];
    uint32_t all = 0;
    (void)snprintf(name, sizeof name, "attn_%s_d%d", expected->kernel, 64 << d);
    count_opcodes(image, name, counts);
    for (uint32_t i = 0; i < OPCODES; i++) {
        all += counts[i];
    }
    printf("%-26s %5u instructions, wgmma %u + %u, loads %u, additions %u\n", name, all,
           counts[OPCODE_WGMMA_SHARED], counts[OPCODE_WGMMA_REGISTERS], counts[OPCODE_TMA_LOAD],
           counts[OPCODE_TMA_REDUCE]);
    assert_true(all > 50);
    assert_int_equal(counts[OPCODE_WGMMA_SHARED], expected->shared[d]);
    assert_int_equal(counts[OPCODE_WGMMA_REGISTERS], expected->registers[d]);
    assert_int_equal(counts[OPCODE_TMA_REDUCE], expected->reduces);
    assert_int_equal(counts[OPCODE_TMA_LOAD] > 0, expected->loads);
    assert_int_equal(counts[OPCODE_LOCAL_LOAD] + counts[OPCODE_LOCAL_STORE] +
                         counts[OPCODE_LOCAL_STORE_WIDE],
                     0);
}

static void attn_machine_code_has_the_products_of_the_source(void **state) {
    (void)state;
    const char *const paths[2] = {ATTN_FATBIN_64, ATTN_FATBIN_128};
    for (int d = 0; d < 2; d++) {
        struct image image;
        image_open(&image, paths[d]);
        for (size_t i = 0; i < sizeof expectations / sizeof *expectations; i++) {
            check_kernel(&image, &expectations[i], d);
        }
        free(image.bytes);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attn_machine_code_has_the_products_of_the_source),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void) {
    printf("skipped: no nvcc 12 or newer, so there is no machine code to count\n");
    return 77;
}

#endif
