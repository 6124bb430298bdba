#include "packer/greedy.h"
