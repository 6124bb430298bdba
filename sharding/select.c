#include "sharding/select.h"
