/* The probes, for the fake driver. */
#include "tests/gpu/probes.h"
