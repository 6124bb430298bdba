/* table: see table.h. */
#include "client/ctl/table.h"

#include <assert.h>
#include <stdbool.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TABLE_GAP      2u
#define TABLE_TEXT_MIN 8u

static void table_open(struct table *table) {
    table->cells = open_memstream(&table->memory, &table->bytes);
    if (table->cells == NULL) {
        abort();
    }
    table->filled = 0;
}

static void table_close(struct table *table) {
    if (table->cells != NULL) {
        (void)fclose(table->cells);
    }
    free(table->memory);
    table->cells = NULL;
    table->memory = NULL;
}

void table_init(struct table *table, const struct table_column *columns, size_t count) {
    assert(count > 0 && count <= TABLE_FIELDS_MAX);
    memset(table, 0, sizeof *table);
    table->columns = columns;
    table->count = count;
    table->columns_max = isatty(STDOUT_FILENO) == 1 ? TABLE_COLUMNS : SIZE_MAX;
    table_open(table);
}

void table_deinit(struct table *table) {
    table_close(table);
}

void table_cell(struct table *table, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int bytes = vfprintf(table->cells, format, arguments);
    va_end(arguments);
    if (bytes == 0) {
        fputc('-', table->cells);
    }
    if (bytes < 0 || fputc('\0', table->cells) == EOF) {
        abort();
    }
    table->filled++;
}

/* Characters, not bytes: UTF-8 continuation bytes take no room. */
static size_t cell_width(const char *text) {
    size_t width = 0;
    for (; *text != '\0'; text++) {
        width += ((unsigned char)*text & 0xc0) != 0x80;
    }
    return width;
}

/* Bytes of the first `width` characters. */
static int cell_bytes(const char *text, size_t width) {
    const char *at = text;
    while (*at != '\0' && (width > 0 || ((unsigned char)*at & 0xc0) == 0x80)) {
        width -= ((unsigned char)*at & 0xc0) != 0x80;
        at++;
    }
    return (int)(at - text);
}

/* Takes what is too much from the widest text column. */
static void table_fit(const struct table *table, size_t *widths, size_t over) {
    size_t widest = 0;
    for (size_t i = 1; i < table->count; i++) {
        bool text = table->columns[i].align == TABLE_LEFT;
        widest = text && widths[i] > widths[widest] ? i : widest;
    }
    size_t *width = &widths[widest];
    *width = *width > over + TABLE_TEXT_MIN ? *width - over : TABLE_TEXT_MIN;
}

static void table_measure(const struct table *table, size_t *widths) {
    const char *cell = table->memory;
    size_t total = TABLE_GAP * (table->count - 1);
    for (size_t i = 0; i < table->count; i++) {
        size_t title = cell_width(table->columns[i].title);
        widths[i] = title > table->columns[i].width ? title : table->columns[i].width;
    }
    for (size_t i = 0; i < table->filled; i++, cell += strlen(cell) + 1) {
        size_t width = cell_width(cell);
        size_t *column = &widths[i % table->count];
        *column = width > *column ? width : *column;
    }
    for (size_t i = 0; i < table->count; i++) {
        total += widths[i];
    }
    if (total > table->columns_max) {
        table_fit(table, widths, total - table->columns_max);
    }
}

static void field_print(const struct table *table, size_t column, size_t width, const char *text,
                        FILE *out) {
    size_t used = cell_width(text);
    int pad = used < width ? (int)(width - used) : 0;
    bool last = column + 1 == table->count;
    if (column > 0) {
        fprintf(out, "%*s", (int)TABLE_GAP, "");
    }
    if (used > width) {
        fprintf(out, "%.*s...", cell_bytes(text, width - 3), text);
    } else if (table->columns[column].align == TABLE_RIGHT) {
        fprintf(out, "%*s%s", pad, "", text);
    } else {
        fprintf(out, "%s%*s", text, last ? 0 : pad, "");
    }
    if (last) {
        fputc('\n', out);
    }
}

void table_print(struct table *table, FILE *out) {
    size_t widths[TABLE_FIELDS_MAX] = {0};
    assert(table->filled % table->count == 0);
    if (fflush(table->cells) != 0) {
        abort();
    }
    table_measure(table, widths);
    for (size_t i = 0; table->printed == 0 && i < table->count; i++) {
        field_print(table, i, widths[i], table->columns[i].title, out);
    }
    const char *cell = table->memory;
    for (size_t i = 0; i < table->filled; i++, cell += strlen(cell) + 1) {
        field_print(table, i % table->count, widths[i % table->count], cell, out);
    }
    table->printed++;
    table_close(table);
    table_open(table);
}
