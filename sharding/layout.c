#include "sharding/layout.h"
