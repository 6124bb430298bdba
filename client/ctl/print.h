/* print: pieces of output that several commands share. */
#ifndef BALLAST_CTL_PRINT_H
#define BALLAST_CTL_PRINT_H

#include "ballast.pb-c.h"
#include "client/ctl/json.h"
#include "client/ctl/summary.h"

#include <stddef.h>
#include <stdio.h>

/* One message as one line of JSON on stdout. */
void print_message(const ProtobufCMessage *message);

/* A summary as a JSON object: its fields, keys sorted. */
void print_summary_json(struct json *json, const struct summary *summary);

/* Two lines: how even the work is, and what it could be and would have been. */
void print_balance(const Ballast__V1__Balance *balance);

/* Three lines: what was let go, and why; what waits. */
void print_release(const Ballast__V1__Release *release);

/* One line, and another of experts when they were reported. */
void print_measured(const Ballast__V1__MeasuredStep *measured);

/* A line for each rank that has waited for another one, or for its own commit. */
void print_waits(FILE *out, const Ballast__V1__StatusResponse *status);

/* The datasets' counters as a table on stdout. */
void print_datasets(Ballast__V1__DatasetStatus *const *datasets, size_t count);

#endif
