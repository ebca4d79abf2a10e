/* The functions of libcrypto are declared here by hand, so its headers are not needed; both have been the same since
 * OpenSSL 1.0. Loading has a lock of its own, as it reads a file. What is loaded is only read while there are links. */
#include "backend/processes/secret.h"
#include "backend/base/settings.h"
#include "backend/base/status.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef const void *(*sha256_function)(void);
typedef unsigned char *(*hmac_function)(const void *digest, const void *key, int key_bytes, const unsigned char *text,
    size_t bytes, unsigned char *out, unsigned *out_bytes);
static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;
static struct {
    bool loaded;
    size_t bytes;                                       /* 0: none */
    unsigned char key[MOST_SECRET_BYTES];
    hmac_function hmac;
    const void *sha256;
} secret;

static tutti_status wrong(const char *path, const char *what)
{
    return status_fail(TUTTI_SYSTEM, "the secret file %.200s (TUTTI_SECRET_FILE) %s", path, what);
}
static tutti_status read_key(const char *path, int file, size_t *out)
{
    struct stat about;
    unsigned char beyond;
    size_t bytes = 0;
    if (fstat(file, &about) != 0 || !S_ISREG(about.st_mode)) return wrong(path, "is not a regular file");
    if (about.st_uid != geteuid()) return wrong(path, "belongs to another user");
    if ((about.st_mode & 07777) != 0600 && (about.st_mode & 07777) != 0400)
        return wrong(path, "must have mode 0600 or 0400: chmod 600 it");
    for (ssize_t got = 1; got > 0 && bytes < sizeof secret.key; bytes += (size_t)got)
        if ((got = read(file, secret.key + bytes, sizeof secret.key - bytes)) < 0) return wrong(path, strerror(errno));
    if (bytes == 0) return wrong(path, "is empty");
    if (bytes == sizeof secret.key && read(file, &beyond, 1) != 0) return wrong(path, "has more than 4096 bytes");
    *out = bytes;
    return TUTTI_OK;
}
static tutti_status read_file(const char *path, size_t *out)
{
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (file < 0)
        return status_fail(TUTTI_SYSTEM, "cannot open the secret file %.200s (TUTTI_SECRET_FILE): %s", path,
            strerror(errno));
    tutti_status status = read_key(path, file, out);
    close(file);
    return status;
}
static tutti_status open_library(void)
{
    if (secret.hmac) return TUTTI_OK;
    void *library = dlopen("libcrypto.so.3", RTLD_NOW | RTLD_LOCAL);
    if (!library) library = dlopen("libcrypto.so.1.1", RTLD_NOW | RTLD_LOCAL);
    sha256_function sha256 = library ? (sha256_function)dlsym(library, "EVP_sha256") : NULL;
    hmac_function hmac = library ? (hmac_function)dlsym(library, "HMAC") : NULL;
    if (!sha256 || !hmac)
        return status_fail(TUTTI_SYSTEM,
            "a secret (TUTTI_SECRET_FILE) needs libcrypto of OpenSSL 3 or 1.1, which cannot be opened: %.300s",
            library ? "it has no HMAC" : dlerror());
    secret.sha256 = sha256();
    secret.hmac = hmac;
    return TUTTI_OK;
}
static tutti_status load(const char *path, size_t *out)
{
    unsigned char proof[PROOF_BYTES];
    if (!*path) return TUTTI_OK;
    TRY(read_file(path, out));
    TRY(open_library());
    if (!secret.hmac(secret.sha256, secret.key, (int)*out, proof, 0, proof, NULL))
        return wrong(path, "is not taken by libcrypto: is it too short?");
    return TUTTI_OK;
}
tutti_status secret_load(void)
{
    pthread_mutex_lock(&loading);
    size_t bytes = 0;
    tutti_status status = secret.loaded ? TUTTI_OK : load(settings_get()->secret_file, &bytes);
    if (status == TUTTI_OK && !secret.loaded) {
        secret.bytes = bytes;
        secret.loaded = true;
    }
    pthread_mutex_unlock(&loading);
    return status;
}
void secret_forget(void)
{
    pthread_mutex_lock(&loading);
    explicit_bzero(secret.key, sizeof secret.key);
    secret.bytes = 0;
    secret.loaded = false;
    pthread_mutex_unlock(&loading);
}
void secret_after_fork(void)                            /* another thread of the parent may have been loading */
{
    loading = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    secret_forget();
}
bool secret_is_set(void) { return secret.bytes; }
bool secret_sign(const void *text, size_t bytes, unsigned char out[PROOF_BYTES])
{
    memset(out, 0, PROOF_BYTES);
    return !secret.bytes || secret.hmac(secret.sha256, secret.key, (int)secret.bytes, text, bytes, out, NULL);
}
/* In a time that does not depend on where they differ. */
bool secret_proves(const void *text, size_t bytes, const unsigned char proof[PROOF_BYTES])
{
    unsigned char right[PROOF_BYTES], differs = 0;
    if (!secret_sign(text, bytes, right)) return false;
    for (int i = 0; i < PROOF_BYTES; i++) differs |= (unsigned char)(right[i] ^ proof[i]);
    return !differs;
}
