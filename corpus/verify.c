#include "corpus/verify.h"
