#include "corpus/order.h"
