/* faulty_machine: what its files share; see faulty_machine.c. */
#ifndef BALLAST_TESTS_FAULTY_MACHINE_H
#define BALLAST_TESTS_FAULTY_MACHINE_H

#include <sys/types.h>

/* The errno that a read of tokens is to fail with, 0 to let it through; waits while it is to hang.
 */
int machine_read_fault(int fd, off_t offset);

#endif
