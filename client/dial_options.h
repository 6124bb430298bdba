/* dial_options: the command-line options of ballastctl and ballast-rank for tcp: and tls:
 * addresses.
 */
#ifndef BALLAST_CLIENT_DIAL_OPTIONS_H
#define BALLAST_CLIENT_DIAL_OPTIONS_H

#include <argp.h>

/* As a child; its input is a struct dial_given, which gets what stands on the command line. */
extern const struct argp dial_argp;

#endif
