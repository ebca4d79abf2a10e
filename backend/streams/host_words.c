/* A list has the words that are registered now, each with the number of its users. */
#include "backend/streams/host_words.h"
#include "backend/base/memory.h"
#include "backend/streams/words.h"
#include <pthread.h>
#include <stdlib.h>

struct registered_words {
    void *words;
    int users;
    struct registered_words *next;
};
static struct registered_words *registered;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Returns the pointer to the entry of these words, or to the end of the list. The caller holds the lock. */
static struct registered_words **registered_find(const void *words)
{
    struct registered_words **at = &registered;
    while (*at && (*at)->words != words) at = &(*at)->next;
    return at;
}
/* Registers words, and adds their entry at the end of the list. */
static tutti_status registered_add(struct registered_words **at, void *words, int ranks)
{
    unsigned flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
    struct registered_words *entry = memory_alloc_zeroed(1, sizeof *entry);
    if (!entry) return status_fail(TUTTI_NO_MEMORY, "no memory to register the words of %d ranks", ranks);
    tutti_status status = cuda_check(cuda.cuMemHostRegister_v2(words, stream_words_count_bytes(ranks), flags),
        "cuMemHostRegister of the ranks' words");
    if (status) {
        free(entry);
        return status;
    }
    *entry = (struct registered_words){ words, 0, NULL };
    *at = entry;
    return TUTTI_OK;
}
tutti_status host_words_register(void *words, int ranks, CUdeviceptr *out)
{
    pthread_mutex_lock(&lock);
    struct registered_words **at = registered_find(words);
    tutti_status status = *at ? TUTTI_OK : registered_add(at, words, ranks);
    if (!status) (*at)->users++;
    pthread_mutex_unlock(&lock);
    TRY(status);
    status = cuda_check(cuda.cuMemHostGetDevicePointer_v2(out, words, 0), "cuMemHostGetDevicePointer");
    if (status) host_words_unregister(words);
    return status;
}
void host_words_unregister(void *words)
{
    pthread_mutex_lock(&lock);
    struct registered_words **at = registered_find(words), *entry = *at;
    if (entry && --entry->users == 0) {
        cuda.cuMemHostUnregister(words);
        *at = entry->next;
        free(entry);
    }
    pthread_mutex_unlock(&lock);
}
