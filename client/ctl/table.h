/* table: columns for people, at most 80 wide where they read them.
 *
 * Cells are put row by row; printing measures and aligns. Text columns are left-aligned, numbers
 * right-aligned; an empty cell prints as "-". When a table on a terminal is wider than
 * TABLE_COLUMNS its widest text column gives way and ends in "..."; off a terminal nothing is cut,
 * for what reads a pipe needs all of it. Without colour, on and off a terminal. */
#ifndef BALLAST_CTL_TABLE_H
#define BALLAST_CTL_TABLE_H

#include <stddef.h>
#include <stdio.h>

#define TABLE_COLUMNS    80u
#define TABLE_FIELDS_MAX 16u

enum table_align { TABLE_LEFT, TABLE_RIGHT };

struct table_column {
    const char *title;
    enum table_align align;
    size_t width; /* at least this wide: for tables printed row by row */
};

struct table {
    const struct table_column *columns; /* borrowed */
    size_t count;
    FILE *cells; /* NUL-terminated cells in row order */
    char *memory;
    size_t bytes;
    size_t filled;      /* cells put since the last print */
    size_t printed;     /* times printed: the titles come only once */
    size_t columns_max; /* TABLE_COLUMNS where stdout is a terminal, else SIZE_MAX */
};

/* Aborts when out of memory, as do the others: a table is small. */
void table_init(struct table *table, const struct table_column *columns, size_t count);
void table_deinit(struct table *table);

void table_cell(struct table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Prints the rows put so far and forgets them; titles stand above the first print only, so a long
 * table can be printed as it comes. The number of cells is a multiple of the columns. */
void table_print(struct table *table, FILE *out);

#endif
