/* membarrier(2) interrupts every core that runs a registered process. A thread that is not running had its fence when
   the kernel switched it off its core. */
#include "backend/base/fence.h"
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

bool fence_register_process(void)
{
    return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0;
}
bool fence_all_threads(void) { return syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0) == 0; }
