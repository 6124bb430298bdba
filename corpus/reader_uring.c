#include "corpus/reader.h"
