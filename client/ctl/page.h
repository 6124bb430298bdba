/* page: a file of HTML that needs nothing else: no script, nothing fetched. What stands on it is
 * its writer's (simulate_html.c, tune_html.c), figures are plot.h's. */
#ifndef BALLAST_CTL_PAGE_H
#define BALLAST_CTL_PAGE_H

#include "planner/error.h"

#include <stdio.h>

/* Whether a page can be written there, before long work is done for it; an empty file is left. NULL
 * is no page. */
int page_check(const char *path, struct error *error);

/* Opens it and writes its head. NULL, with the reason. */
FILE *page_open(const char *path, const char *title, struct error *error);

/* Ends and closes it; says whether all of it was written. */
int page_close(FILE *page, const char *path, struct error *error);

#endif
