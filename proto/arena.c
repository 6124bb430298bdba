#include "proto/arena.h"
