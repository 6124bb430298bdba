/* page: see page.h. */
#include "client/ctl/page.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

static const char head[] =
    "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'>"
    "<meta name='viewport' content='width=device-width'><title>%s</title>\n<style>"
    "body{font:15px sans-serif;max-width:900px;margin:2em auto;padding:0 1em;color:#222}"
    "svg{width:100%%;font-size:11px;display:block}.grid{stroke:#ddd}"
    "table{border-collapse:collapse;width:100%%;font-variant-numeric:tabular-nums}"
    "td,th{text-align:right;padding:.15em .5em;border-bottom:1px solid #ddd}"
    "td:first-child,th:first-child{text-align:left}.legend span{margin-right:1em}"
    ".legend i{display:inline-block;width:.8em;height:.8em;margin-right:.3em}"
    ".f{fill:#0072b2}.b{fill:#56b4e9}.f,.b{stroke:#fff;stroke-width:.4}</style></head><body>\n"
    "<h1>%s</h1>\n";

static FILE *page_file(const char *path, const char *mode, struct error *error) {
    FILE *page = fopen(path, mode);
    if (page == NULL) {
        int code = -errno;
        (void)error_set(error, code, "%s: cannot be written: %s", path, strerror(-code));
    }
    return page;
}

int page_check(const char *path, struct error *error) {
    FILE *page = path != NULL ? page_file(path, "ae", error) : NULL;
    if (page != NULL) {
        (void)fclose(page);
    }
    return path != NULL && page == NULL ? error->code : 0;
}

FILE *page_open(const char *path, const char *title, struct error *error) {
    FILE *page = page_file(path, "we", error);
    if (page != NULL) {
        (void)fprintf(page, head, title, title);
    }
    return page;
}

int page_close(FILE *page, const char *path, struct error *error) {
    (void)fputs("</body></html>\n", page);
    bool whole = ferror(page) == 0;
    int code = fclose(page) == 0 ? 0 : -errno;
    if (whole && code == 0) {
        return 0;
    }
    return error_set(error, code < 0 ? code : -EIO, "%s: was not written whole; is the disk full?",
                     path);
}
