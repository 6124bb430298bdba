#include "daemon/store.h"
