/* exact_glpk: the integer program of exact.h for GLPK; no other file includes glpk.h.
 *
 * Columns x[c][w], pieces of class c in window w, longest class first, then z; least z such that
 *     for every class   sum over w of x[c][w] = its pieces
 *     for every window  its tokens <= window_tokens, in windows
 *     for every window  its work <= z, in the mean window's work.
 * Two symmetries are broken: equal pieces are counted, not told apart; and windows can be numbered
 * such that window w has no piece below number w (pieces numbered by descending length), which the
 * upper bounds of x say. Greedy's packing is handed over as the first one found, and bounds z. The
 * first fractional column is branched upon, upwards and depth first: the longest documents are
 * placed first. The relaxation is flat (all windows can be even), so that leaves are what improves
 * the answer; on 128K windows this finds packings where GLPK's own choices find none.
 * An x counts as whole within 1e-8: a window off by one token of a million, among a thousand, would
 * not pass. Doubles stay in this file: outside, work is counted in integers. */
#include "client/ctl/exact.h"

#include "client/ctl/progress.h"

#include <glpk.h>
#include <stdlib.h>

#define TOLERANCE_WHOLE     1e-8
#define TOLERANCE_OBJECTIVE 1e-9
#define BOUND_SLACK         1e-7 /* a bound from floating point is taken this much lower */

struct search {
    struct exact_instance *instance;
    glp_prob *program;
    int *columns; /* [class * windows + window], 0: the class cannot be there */
    int z;
    double scale; /* work of the mean window */
    double bound; /* proven so far, scaled */
    bool greedy_given;
    double *greedy; /* values by column */
};

int exact_check(struct error *error) {
    (void)error;
    return 0;
}

/* Most pieces of a class that a window may hold. */
static uint32_t column_most(const struct exact_instance *instance, uint32_t c, uint32_t w) {
    const struct exact_class *class = &instance->classes[c];
    uint32_t fit = instance->window_tokens / class->length;
    uint32_t most = class->end > w ? class->end - w : 0;
    most = most < class->count ? most : class->count;
    return most < fit ? most : fit;
}

static uint32_t *cell(const struct exact_instance *instance, uint32_t c, uint32_t w) {
    return &instance->held[(size_t)w * instance->class_count + c];
}

static double heaviest(const struct search *search) {
    uint64_t work = 0;
    for (uint32_t w = 0; w < search->instance->windows; w++) {
        uint64_t mine = exact_window_work(search->instance, w);
        work = mine > work ? mine : work;
    }
    return (double)work / search->scale;
}

static void add_rows(struct search *search) {
    const struct exact_instance *instance = search->instance;
    int classes = (int)instance->class_count;
    int windows = (int)instance->windows;
    glp_add_rows(search->program, classes + 2 * windows);
    for (int c = 1; c <= classes; c++) {
        double count = instance->classes[c - 1].count;
        glp_set_row_bnds(search->program, c, GLP_FX, count, count);
    }
    for (int w = 1; w <= windows; w++) {
        glp_set_row_bnds(search->program, classes + w, GLP_UP, 0, 1);
        glp_set_row_bnds(search->program, classes + windows + w, GLP_UP, 0, 0);
    }
}

static void add_column(struct search *search, uint32_t c, uint32_t w) {
    const struct exact_instance *instance = search->instance;
    const struct exact_class *class = &instance->classes[c];
    uint32_t most = column_most(instance, c, w);
    if (most == 0) {
        return;
    }
    int column = glp_add_cols(search->program, 1);
    int tokens_row = (int)(instance->class_count + w + 1);
    int rows[] = {0, (int)c + 1, tokens_row, tokens_row + (int)instance->windows};
    double values[] = {0, 1, (double)class->length / instance->window_tokens,
                       (double)class->work / search->scale};
    glp_set_col_kind(search->program, column, GLP_IV);
    glp_set_col_bnds(search->program, column, GLP_DB, 0, most);
    glp_set_mat_col(search->program, column, 3, rows, values);
    search->columns[(size_t)c * instance->windows + w] = column;
}

static void add_objective(struct search *search, uint64_t bound_work, int *rows, double *values) {
    const struct exact_instance *instance = search->instance;
    int windows = (int)instance->windows;
    double most = heaviest(search) * (1 + TOLERANCE_OBJECTIVE);
    for (int w = 1; w <= windows; w++) {
        rows[w] = (int)instance->class_count + windows + w;
        values[w] = -1;
    }
    search->bound = (double)bound_work / search->scale;
    search->z = glp_add_cols(search->program, 1);
    glp_set_col_bnds(search->program, search->z, GLP_DB, search->bound, most);
    glp_set_mat_col(search->program, search->z, windows, rows, values);
    glp_set_obj_dir(search->program, GLP_MIN);
    glp_set_obj_coef(search->program, search->z, 1);
}

static void greedy_note(struct search *search) {
    const struct exact_instance *instance = search->instance;
    for (uint32_t c = 0; c < instance->class_count; c++) {
        for (uint32_t w = 0; w < instance->windows; w++) {
            search->greedy[search->columns[(size_t)c * instance->windows + w]] = *cell(instance, c,
                                                                                       w);
        }
    }
    search->greedy[search->z] = heaviest(search);
}

static int search_build(struct search *search, uint64_t bound_work) {
    const struct exact_instance *instance = search->instance;
    size_t cells = (size_t)instance->class_count * instance->windows;
    int *rows = calloc(instance->windows + 1, sizeof *rows);
    double *values = calloc(instance->windows + 1, sizeof *values);
    int rc = -ENOMEM;
    search->columns = calloc(cells, sizeof *search->columns);
    search->greedy = calloc(cells + 2, sizeof *search->greedy);
    for (uint32_t w = 0; w < instance->windows; w++) {
        search->scale += (double)exact_window_work(instance, w) / instance->windows;
    }
    if (rows != NULL && values != NULL && search->columns != NULL && search->greedy != NULL) {
        search->program = glp_create_prob();
        add_rows(search);
        for (uint32_t c = 0; c < instance->class_count; c++) {
            for (uint32_t w = 0; w < instance->windows; w++) {
                add_column(search, c, w);
            }
        }
        add_objective(search, bound_work, rows, values);
        greedy_note(search);
        rc = 0;
    }
    free(values);
    free(rows);
    return rc;
}

/* What all open branches have proven. */
static void watch_bound(struct search *search, glp_tree *tree) {
    int best = glp_ios_best_node(tree);
    double bound = best > 0 ? glp_ios_node_bound(tree, best) : 0;
    search->bound = bound > search->bound ? bound : search->bound;
}

/* The solver only asks when a column is fractional. */
static void watch_branch(glp_tree *tree) {
    int column = 1;
    while (!glp_ios_can_branch(tree, column)) {
        column++;
    }
    glp_ios_branch_upon(tree, column, GLP_UP_BRNCH);
}

static void search_watch(glp_tree *tree, void *context) {
    struct search *search = context;
    switch (glp_ios_reason(tree)) {
    case GLP_IHEUR:
        if (!search->greedy_given) {
            search->greedy_given = true;
            (void)glp_ios_heur_sol(tree, search->greedy);
        }
        break;
    case GLP_ISELECT:
        watch_bound(search, tree);
        break;
    case GLP_IBRANCH:
        watch_branch(tree);
        break;
    default:
        break;
    }
}

/* Milliseconds left, at least one. */
static int time_left(uint64_t end_ns) {
    uint64_t now_ns = progress_clock_ns();
    return now_ns + 1000000 < end_ns ? (int)((end_ns - now_ns) / 1000000) : 1;
}

/* Returns whether it went through all there is. */
static bool search_run(struct search *search, uint64_t end_ns) {
    glp_smcp relaxed;
    glp_iocp whole;
    glp_init_smcp(&relaxed);
    relaxed.msg_lev = GLP_MSG_OFF;
    relaxed.tm_lim = time_left(end_ns);
    glp_scale_prob(search->program, GLP_SF_AUTO);
    glp_adv_basis(search->program, 0);
    if (glp_simplex(search->program, &relaxed) != 0 || glp_get_status(search->program) != GLP_OPT) {
        return false;
    }
    double bound = glp_get_obj_val(search->program);
    search->bound = bound > search->bound ? bound : search->bound;
    glp_init_iocp(&whole);
    whole.msg_lev = GLP_MSG_OFF;
    whole.bt_tech = GLP_BT_DFS;
    whole.tol_int = TOLERANCE_WHOLE;
    whole.tol_obj = TOLERANCE_OBJECTIVE;
    whole.tm_lim = time_left(end_ns);
    whole.cb_func = search_watch;
    whole.cb_info = search;
    return glp_intopt(search->program, &whole) == 0 && glp_mip_status(search->program) == GLP_OPT;
}

static void search_read(const struct search *search) {
    const struct exact_instance *instance = search->instance;
    int status = glp_mip_status(search->program);
    if (status != GLP_OPT && status != GLP_FEAS) {
        return;
    }
    for (uint32_t c = 0; c < instance->class_count; c++) {
        for (uint32_t w = 0; w < instance->windows; w++) {
            int column = search->columns[(size_t)c * instance->windows + w];
            double value = column > 0 ? glp_mip_col_val(search->program, column) : 0;
            *cell(instance, c, w) = (uint32_t)(value + 0.5);
        }
    }
}

int exact_search(struct exact_instance *instance, uint32_t limit_ms, uint64_t *bound_work,
                 struct error *error) {
    struct search search = {.instance = instance};
    uint64_t end_ns = progress_clock_ns() + UINT64_C(1000000) * limit_ms;
    bool complete = false;
    glp_term_out(GLP_OFF);
    int rc = search_build(&search, *bound_work);
    if (rc == 0) {
        complete = search_run(&search, end_ns);
        search_read(&search);
        double proven = search.bound * search.scale * (1 - BOUND_SLACK);
        *bound_work = proven > (double)*bound_work ? (uint64_t)proven : *bound_work;
    } else {
        (void)error_set(error, rc, "no memory for the integer program");
    }
    free(search.greedy);
    free(search.columns);
    if (search.program != NULL) {
        glp_delete_prob(search.program);
    }
    (void)glp_free_env();
    return rc < 0 ? rc : complete;
}
