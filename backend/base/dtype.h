/* Element types and reduction operations: their sizes and names. */
#pragma once
#include "include/tutti.h"

/* Returns the bytes of an element, or 0 for an unknown type. */
size_t dtype_bytes(tutti_dtype dtype);
/* These return the name for texts, as in "float32" and "sum", or "unknown type" and "unknown operation". */
const char *dtype_name(tutti_dtype dtype);
const char *op_name(tutti_op op);
