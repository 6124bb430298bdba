#include "corpus/tokens.h"
