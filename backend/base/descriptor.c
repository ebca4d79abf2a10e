/* A descriptor is moved by a copy and a close, before the rest of the program knows its old number. */
#include "backend/base/descriptor.h"
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

int descriptor_move_above_stderr(int descriptor)
{
    if (descriptor < 0 || descriptor > STDERR_FILENO) return descriptor;
    int raised = fcntl(descriptor, F_DUPFD_CLOEXEC, STDERR_FILENO + 1), error = errno;
    close(descriptor);
    errno = error;
    return raised;
}
