#include "backend/control/snapshot_socket.h"
#include "backend/base/clock.h"
#include "backend/base/descriptor.h"
#include "backend/base/log.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "backend/base/text.h"
#include "backend/host/socket.h"
#include "backend/memory/memfd.h"
#include "backend/processes/registry.h"
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* The room for the first attempt to write a snapshot, and for a message of a program, in bytes. */
enum { FIRST_CAPACITY = 16384, MOST_MESSAGE = 65536 };
/* If more callers wait for the program's message, the oldest gets none. An older place of this process is not used. */
enum { MOST_CALLERS = 32, PLACE_LASTS_MS = 1000 };
static int listener = -1;
static _Atomic(snapshot_write *) writer;

/* Callers that wait for the program's message, the oldest first. They are kept once a thread of the program answers. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int callers[MOST_CALLERS], count;
    bool program_answers;
} waiting = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

/* ---- the program's message ---- */
/* Removes the oldest caller and returns it. */
static int callers_take_oldest(void)
{
    int oldest = waiting.callers[0];
    memmove(waiting.callers, waiting.callers + 1, (size_t)--waiting.count * sizeof *waiting.callers);
    return oldest;
}
/* Keeps the caller for a thread of the program, or closes it. */
static void callers_add(int caller)
{
    int dropped = -1;
    pthread_mutex_lock(&waiting.lock);
    if (!waiting.program_answers) dropped = caller;
    else {
        if (waiting.count == MOST_CALLERS) dropped = callers_take_oldest();
        waiting.callers[waiting.count++] = caller;
        pthread_cond_signal(&waiting.changed);
    }
    pthread_mutex_unlock(&waiting.lock);
    descriptor_close(&dropped);
}
int snapshots_await_caller(void)
{
    pthread_mutex_lock(&waiting.lock);
    waiting.program_answers = true;
    while (!waiting.count) pthread_cond_wait(&waiting.changed, &waiting.lock);
    int caller = callers_take_oldest();
    pthread_mutex_unlock(&waiting.lock);
    return caller;
}
static void callers_close_all(void)
{
    while (waiting.count) close(callers_take_oldest());
}
/* Waits for the next message of a connection and returns its length. Returns 0 at its end or after deadline_ms, or
   -errno. */
static int message_await(int connection, int64_t deadline_ms, void *out, size_t bytes)
{
    for (;;) {
        int got = socket_receive(connection, out, bytes, NULL);
        int64_t left_ms = deadline_ms - clock_ms();
        if (got != -EAGAIN) return got;
        if (left_ms <= 0) return 0;
        poll(&(struct pollfd){ .fd = connection, .events = POLLIN }, 1, (int)left_ms);
    }
}
/* Writes the first line of a program's message, or "" if that does not fit: the line's number would be cut. */
static void message_copy_place(char message[MOST_MESSAGE], char out[PLACE_BYTES])
{
    message[strcspn(message, "\n")] = 0;
    text_make_printable(message, MOST_MESSAGE);
    out[0] = 0;
    if (strlen(message) < PLACE_BYTES) strcpy(out, message);
}
int snapshot_ask(const unsigned char nonce[16]) { return socket_connect("snapshot", nonce); }
void snapshot_receive_place(int process, int64_t deadline_ms, char out[PLACE_BYTES])
{
    uint64_t length;
    char *message = memory_alloc_zeroed(MOST_MESSAGE, 1);
    out[0] = 0;
    /* The first message has the snapshot. */
    if (message && process >= 0 && message_await(process, deadline_ms, &length, sizeof length) == sizeof length
        && message_await(process, deadline_ms, message, MOST_MESSAGE - 1) > 0)
        message_copy_place(message, out);
    descriptor_close(&process);
    free(message);
}

/* ---- the place of this process ---- */
/* The open question to the program of this process, or -1, and when it was asked; the last answer, and when it was
   asked for. */
static struct {
    int connection;
    int64_t asked_ms, answer_ms;
    char answer[PLACE_BYTES];
} own_place = { .connection = -1 };
static void own_place_ask(void)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) return;
    own_place.connection = descriptor_move_above_stderr(pair[0]);
    own_place.asked_ms = clock_ms();
    callers_add(descriptor_move_above_stderr(pair[1]));
}
/* Takes the program's answer, if it has come. */
static void own_place_receive(void)
{
    static char message[MOST_MESSAGE];
    int got = socket_receive(own_place.connection, message, sizeof message - 1, NULL);
    if (got == -EAGAIN) return;
    message[got > 0 ? got : 0] = 0;
    message_copy_place(message, own_place.answer);
    own_place.answer_ms = own_place.asked_ms;
    descriptor_close(&own_place.connection);
}
static bool program_answers(void)
{
    pthread_mutex_lock(&waiting.lock);
    bool answers = waiting.program_answers;
    pthread_mutex_unlock(&waiting.lock);
    return answers;
}
bool snapshot_get_place(char out[PLACE_BYTES])
{
    out[0] = 0;
    if (!program_answers()) return true;
    if (own_place.connection >= 0) own_place_receive();
    if (own_place.connection < 0) own_place_ask();
    bool is_recent = own_place.answer_ms && clock_ms() - own_place.answer_ms < PLACE_LASTS_MS;
    if (is_recent) memcpy(out, own_place.answer, PLACE_BYTES);
    return is_recent;
}

/* ---- snapshots ---- */
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
    callers_add(caller);
    pthread_mutex_lock(&registry.lock);
    return true;
}
void snapshot_socket_close(void)
{
    registry_close_descriptor(&listener);
    descriptor_close(&own_place.connection);
    pthread_mutex_lock(&waiting.lock);
    callers_close_all();
    pthread_mutex_unlock(&waiting.lock);
}
void snapshot_socket_after_fork(void)
{
    descriptor_close(&listener);
    descriptor_close(&own_place.connection);
    own_place.answer_ms = 0;
    callers_close_all();
    pthread_mutex_init(&waiting.lock, NULL);
    pthread_cond_init(&waiting.changed, NULL);
    waiting.program_answers = false;
}
