/* Gets random bytes from the operating system. */
#include "backend/base/random.h"
#include "backend/base/status.h"
#include <errno.h>
#include <string.h>
#include <sys/random.h>

tutti_status random_fill(void *out, size_t bytes)
{
    for (size_t filled = 0; filled < bytes;) {
        ssize_t got = getrandom((unsigned char *)out + filled, bytes - filled, 0);
        if (got < 0 && errno != EINTR) return status_fail(TUTTI_SYSTEM, "getrandom: %s", strerror(errno));
        if (got > 0) filled += (size_t)got;
    }
    return TUTTI_OK;
}
