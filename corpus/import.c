#include "corpus/import.h"
