#include "backend/control/snapshot_socket.h"
#include "backend/base/log.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "backend/host/socket.h"
#include "backend/memory/memfd.h"
#include "backend/processes/registry.h"
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The room for the first attempt to write a snapshot, in bytes. */
enum { FIRST_CAPACITY = 16384 };
static int listener = -1;
static _Atomic(snapshot_write *) writer;

void snapshots_set_writer(snapshot_write *write) { atomic_store(&writer, write); }
/* Returns a snapshot in new memory and sets *bytes to its length; returns NULL if memory is short. */
static char *snapshot_create(snapshot_write *write, size_t *bytes)
{
    for (size_t capacity = FIRST_CAPACITY;; capacity = *bytes + FIRST_CAPACITY) {
        char *text = memory_alloc_zeroed(capacity, 1);
        if (text) write(text, capacity, bytes);
        if (!text || *bytes < capacity) return text;
        free(text);
    }
}
/* Sends a snapshot to the caller: a message with its length, and a descriptor of its text. */
static void snapshot_send(int caller, snapshot_write *write)
{
    size_t length = 0;
    int file = -1;
    char *text = snapshot_create(write, &length);
    if (text && memfd_create_constant(text, length, "a snapshot of this process", &file) == TUTTI_OK) {
        uint64_t bytes = length;
        socket_send(caller, &bytes, sizeof bytes, file);
        close(file);
    } else LOG(WARN, "no snapshot of this process: %s", text ? status_detail() : "memory is short");
    free(text);
}

void snapshot_socket_open(void)
{
    listener = socket_listen("snapshot", registry.self.nonce);
    if (listener < 0) LOG(WARN, "tutti status will not show this process: %s", strerror(-listener));
    if (listener < 0 || registry_poll_add(listener) == 0) return;
    close(listener);
    listener = -1;
}
bool snapshot_socket_on_ready(int descriptor)
{
    if (listener < 0 || descriptor != listener) return false;
    snapshot_write *write = atomic_load(&writer);
    int caller = socket_accept(listener);
    if (caller == -EPERM) registry_refuse_connection(-1, "belongs to another user");
    if (caller < 0) {
        registry.out_of_descriptors |= caller != -EAGAIN && caller != -EPERM;
        return true;
    }
    pthread_mutex_unlock(&registry.lock);
    if (write) snapshot_send(caller, write);
    close(caller);
    pthread_mutex_lock(&registry.lock);
    return true;
}
void snapshot_socket_close(void) { registry_close_descriptor(&listener); }
void snapshot_socket_after_fork(void) { descriptor_close(&listener); }
