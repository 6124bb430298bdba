#include "corpus/source.h"
