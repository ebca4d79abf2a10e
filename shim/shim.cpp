/* All of the backend as one translation unit: reading torch's headers takes the compiler far longer than compiling
 * what is ours. */
#include "shim/buffers.cpp"
#include "shim/process_group.cpp"
#include "shim/work.cpp"
