#include "corpus/catalog.h"
