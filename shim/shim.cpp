/* All of the backend as one translation unit: reading torch's headers takes the compiler far longer than compiling
 * what is ours. */
#include "shim/collectives.cpp"
#include "shim/communicator.cpp"
#include "shim/devices.cpp"
#include "shim/footprint.cpp"
#include "shim/launch.cpp"
#include "shim/lists.cpp"
#include "shim/memory.cpp"
#include "shim/messages.cpp"
#include "shim/process_group.cpp"
#include "shim/recorder.cpp"
#include "shim/sparse.cpp"
#include "shim/work.cpp"
