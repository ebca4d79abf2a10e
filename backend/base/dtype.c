/* Element types and reduction operations, from the tables of the public header. */
#include "backend/base/dtype.h"

size_t dtype_bytes(tutti_dtype dtype)
{
    switch (dtype) {
#define X(name, bytes, printed) case TUTTI_##name: return bytes;
        TUTTI_DTYPE_MAP(X)
#undef X
    case TUTTI_DTYPE_COUNT: break;
    }
    return 0;
}
const char *dtype_name(tutti_dtype dtype)
{
    switch (dtype) {
#define X(name, bytes, printed) case TUTTI_##name: return printed;
        TUTTI_DTYPE_MAP(X)
#undef X
    case TUTTI_DTYPE_COUNT: break;
    }
    return "unknown type";
}
const char *op_name(tutti_op op)
{
    switch (op) {
#define X(name, printed) case TUTTI_##name: return printed;
        TUTTI_OP_MAP(X)
#undef X
    case TUTTI_OP_COUNT: break;
    }
    return "unknown operation";
}
