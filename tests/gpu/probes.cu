#include "tests/gpu/probes.h"
