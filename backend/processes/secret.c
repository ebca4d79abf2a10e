/* Loading has a lock of its own, because it reads a file. A loaded secret does not change until the registry ends. */
#include "backend/processes/secret.h"
#include "backend/base/settings.h"
#include "backend/base/sha256.h"
#include "backend/base/status.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;
static struct {
    bool loaded;
    /* 0 if there is no secret. It is atomic because the watch thread reads it while another thread loads. */
    _Atomic size_t bytes;
    unsigned char key[MOST_SECRET_BYTES];
} secret;

/* Fails because of the file of the secret. `problem` follows its path in the text. */
static tutti_status secret_fail_file(const char *path, const char *problem)
{
    return status_fail(TUTTI_SYSTEM, "the secret file %.200s (TUTTI_SECRET_FILE) %s", path, problem);
}
/* Reads like read(), and repeats a read that a signal interrupted. */
static ssize_t secret_read_some(int file, void *out, size_t bytes)
{
    ssize_t got;
    do got = read(file, out, bytes);
    while (got < 0 && errno == EINTR);
    return got;
}
/* Reads the secret from an open file, after checks of owner, mode and size, and sets *out to its bytes. */
static tutti_status secret_read_key(const char *path, int file, size_t *out)
{
    struct stat about;
    unsigned char beyond;
    size_t bytes = 0;
    if (fstat(file, &about) != 0 || !S_ISREG(about.st_mode)) return secret_fail_file(path, "is not a regular file");
    if (about.st_uid != geteuid()) return secret_fail_file(path, "belongs to another user");
    if ((about.st_mode & 07777) != 0600 && (about.st_mode & 07777) != 0400)
        return secret_fail_file(path, "must have mode 0600 or 0400: chmod 600 it");
    for (ssize_t got = 1; got > 0 && bytes < sizeof secret.key; bytes += (size_t)got)
        if ((got = secret_read_some(file, secret.key + bytes, sizeof secret.key - bytes)) < 0)
            return secret_fail_file(path, strerror(errno));
    if (bytes == 0) return secret_fail_file(path, "is empty");
    if (bytes == sizeof secret.key && secret_read_some(file, &beyond, 1) != 0)
        return secret_fail_file(path, "has more than 4096 bytes");
    *out = bytes;
    return TUTTI_OK;
}
/* Opens the file of TUTTI_SECRET_FILE, reads the secret and sets *out to its bytes. */
static tutti_status secret_read_file(const char *path, size_t *out)
{
    int file;
    do file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    while (file < 0 && errno == EINTR);
    if (file < 0)
        return status_fail(TUTTI_SYSTEM, "cannot open the secret file %.200s (TUTTI_SECRET_FILE): %s", path,
            strerror(errno));
    tutti_status status = secret_read_key(path, file, out);
    close(file);
    return status;
}
tutti_status secret_load(void)
{
    pthread_mutex_lock(&loading);
    size_t bytes = 0;
    const char *path = settings_get()->secret_file;
    tutti_status status = secret.loaded || !*path ? TUTTI_OK : secret_read_file(path, &bytes);
    if (status == TUTTI_OK && !secret.loaded) {
        atomic_store(&secret.bytes, bytes);
        secret.loaded = true;
    }
    pthread_mutex_unlock(&loading);
    return status;
}
void secret_forget(void)
{
    pthread_mutex_lock(&loading);
    explicit_bzero(secret.key, sizeof secret.key);
    atomic_store(&secret.bytes, 0);
    secret.loaded = false;
    pthread_mutex_unlock(&loading);
}
/* Another thread of the parent may have held the lock. */
void secret_after_fork(void)
{
    loading = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    secret_forget();
}
bool secret_is_set(void) { return atomic_load(&secret.bytes) != 0; }
void secret_mix(const unsigned char key[SHA256_BYTES], unsigned char out[SHA256_BYTES])
{
    size_t bytes = atomic_load(&secret.bytes);
    if (bytes) hmac_sha256(secret.key, bytes, key, SHA256_BYTES, out);
    else memcpy(out, key, SHA256_BYTES);
}
