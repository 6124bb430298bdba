#include "sharding/cost.h"
