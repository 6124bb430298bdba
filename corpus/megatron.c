#include "corpus/dataset.h"
