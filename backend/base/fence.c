/* membarrier(2): an interrupt on every core that runs a process which has been registered. Whoever does not run has had
   its fence when it was taken off its core. */
#include "backend/base/fence.h"
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

bool fence_admit(void) { return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0; }
bool fence_everywhere(void) { return syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0) == 0; }
