#include "proto/message.h"
