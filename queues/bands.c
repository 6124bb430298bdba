#include "queues/bands.h"
