/* The kernel counts a change before it begins, and queues an event when the change is made. The thread that made it
   continues when the event has been read. This module reads events only with the lock held. So a thread that has the
   lock and finds no counted change knows every completed change. mappings_watch_start tests that the kernel counts in
   time. A separate thread reads the events, because every other thread may itself be waiting for the allocator. */
#include "backend/transports/verbs/memory/mappings.h"
#include "backend/base/clock.h"
#include "backend/base/descriptor.h"
#include "backend/base/thread.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif
enum { EVENTS_AT_ONCE = 16, PROOF_MS = 2000, SETTLE_NS = 1000000 };
static pthread_once_t once = PTHREAD_ONCE_INIT;
/* `lifetime` is held while listeners are added or removed, and the watching starts or stops; `lock` is the lock of the
   module, which is taken after it. */
static pthread_mutex_t lifetime = PTHREAD_MUTEX_INITIALIZER, lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    /* The userfaultfd, and the eventfd that wakes the thread; -1: not open. */
    int descriptor, waker;
    /* The thread exists and has not been joined. */
    bool is_running;
    pthread_t thread;
    struct mapping_listener *first_listener;
} mappings = { .descriptor = -1, .waker = -1 };

/* ---- events ---- */
/* Reports to all listeners that the pages from `begin` to `end` have changed. Called with the lock. */
static void mappings_report_change(uintptr_t begin, uintptr_t end)
{
    for (struct mapping_listener *l = mappings.first_listener; l; l = l->next) l->on_range_gone(l, begin, end);
}
/* Stops watching the pages from `begin` to `end`. */
static void mappings_unwatch_range(uint64_t begin, uint64_t end)
{
    struct uffdio_range range = { begin, end - begin };
    ioctl(mappings.descriptor, UFFDIO_UNREGISTER, &range);
}
/* Reports the change of an event to the listeners. No registration has the range afterwards, so it is unwatched to make
   its next change cheap. */
static void mappings_handle_event(const struct uffd_msg *event)
{
    if (event->event == UFFD_EVENT_REMAP) {
        mappings_report_change(event->arg.remap.from, event->arg.remap.from + event->arg.remap.len);
        mappings_unwatch_range(event->arg.remap.to, event->arg.remap.to + event->arg.remap.len);
    } else if (event->event == UFFD_EVENT_REMOVE || event->event == UFFD_EVENT_UNMAP) {
        mappings_report_change(event->arg.remove.start, event->arg.remove.end);
        if (event->event == UFFD_EVENT_REMOVE) mappings_unwatch_range(event->arg.remove.start, event->arg.remove.end);
    }
}
/* Ends the watching after another part of the program has closed the descriptor: all watched memory counts as
   changed. */
static void mappings_lose_watch(void)
{
    mappings.descriptor = -1;
    mappings_report_change(0, UINTPTR_MAX);
}
/* Reads and reports all events that have come. Called with the lock. */
static void mappings_read_events(void)
{
    struct uffd_msg messages[EVENTS_AT_ONCE];
    ssize_t bytes;
    while (mappings.descriptor >= 0 && (bytes = read(mappings.descriptor, messages, sizeof messages)) > 0)
        for (size_t i = 0; i < (size_t)bytes / sizeof *messages; i++) mappings_handle_event(&messages[i]);
}
/* Returns EAGAIN while a change of watched memory is under way, otherwise EINVAL; another value means that the
   descriptor is not ours. The empty range is invalid, so the call protects no page, but the kernel checks for changes
   first. */
static int userfaultfd_probe_changes(int descriptor)
{
    struct uffdio_writeprotect nothing = { .range = { 0, 0 } };
    return ioctl(descriptor, UFFDIO_WRITEPROTECT, &nothing) == 0 ? 0 : errno;
}
/* Asks the kernel for changes of watched memory, and gives the watch up if the descriptor is not ours any more. Returns
   true if a change is under way. */
static bool mappings_poll_changes(void)
{
    if (mappings.descriptor < 0) return false;
    int error = userfaultfd_probe_changes(mappings.descriptor);
    if (error != EAGAIN && error != EINVAL) mappings_lose_watch();
    return error == EAGAIN;
}
void mappings_lock(void) { pthread_mutex_lock(&lock); }
void mappings_unlock(void) { pthread_mutex_unlock(&lock); }
bool mappings_lock_and_settle(void)
{
    mappings_lock();
    for (int64_t until_ns = 0; mappings_poll_changes();) {
        mappings_read_events();
        /* The clock is read only now, because most calls find no change. */
        if (!until_ns) until_ns = clock_ns() + SETTLE_NS;
        else if (clock_ns() > until_ns) return false;
        mappings_unlock();
        sched_yield();
        mappings_lock();
    }
    return true;
}

/* ---- watching ---- */
/* Watches the pages of this size that contain the range. false: the kernel refuses. */
static bool userfaultfd_watch_range(int descriptor, uintptr_t begin, uintptr_t end, uintptr_t page)
{
    begin &= ~(page - 1);
    end = (end + page - 1) & ~(page - 1);
    struct uffdio_register range = { .range = { begin, end - begin }, .mode = UFFDIO_REGISTER_MODE_WP };
    return ioctl(descriptor, UFFDIO_REGISTER, &range) == 0;
}
/* Memory of hugetlbfs can only be watched in whole huge pages, so the larger sizes are tried when the page size fails.
   They fail as well for all other memory. */
bool mappings_watch_range(uintptr_t begin, uintptr_t end)
{
    const uintptr_t pages[] = { (uintptr_t)sysconf(_SC_PAGESIZE), (uintptr_t)2 << 20, (uintptr_t)1 << 30 };
    for (size_t i = 0; i < sizeof pages / sizeof *pages && mappings.descriptor >= 0; i++)
        if (userfaultfd_watch_range(mappings.descriptor, begin, end, pages[i])) return true;
    return false;
}

/* ---- the thread ---- */
/* The main function of the thread that reads events, so that a thread which changes its memory does not wait for
   long. */
static void *mappings_thread_main(void *unused)
{
    mappings_lock();
    while (mappings.descriptor >= 0) {
        struct pollfd both[] = { { mappings.waker, POLLIN, 0 }, { mappings.descriptor, POLLIN, 0 } };
        mappings_unlock();
        poll(both, 2, -1);
        mappings_lock();
        if (both[1].revents & POLLNVAL && mappings.descriptor >= 0) mappings_lose_watch();
        mappings_read_events();
    }
    mappings_unlock();
    return unused;
}
/* Starts the thread. false: it cannot be created. */
static bool mappings_thread_start(void)
{
    mappings.is_running = thread_start_blocking_signals(&mappings.thread, mappings_thread_main, NULL) == 0;
    if (mappings.is_running) pthread_setname_np(mappings.thread, "tutti-mappings");
    return mappings.is_running;
}

/* ---- testing the kernel ---- */
/* The main function of a thread that unmaps one page. */
static void *kernel_test_unmap_page(void *page)
{
    munmap(page, (size_t)sysconf(_SC_PAGESIZE));
    return NULL;
}
/* Returns whether the kernel counts the change of `page` while the thread that unmaps it waits for its event to be
   read, and whether the event is right. */
static bool kernel_test_sees_change(int descriptor, const void *page)
{
    struct pollfd event = { descriptor, POLLIN, 0 };
    struct uffd_msg message = { 0 };
    bool has_event = poll(&event, 1, PROOF_MS) == 1, is_counted = userfaultfd_probe_changes(descriptor) == EAGAIN;
    bool is_read = read(descriptor, &message, sizeof message) == sizeof message;
    return has_event && is_counted && is_read && message.event == UFFD_EVENT_UNMAP
        && message.arg.remove.start == (uintptr_t)page;
}
/* Returns whether the kernel counts a change before its event is read, and no longer afterwards. If not, the descriptor
   is closed. */
static bool kernel_test_run(int descriptor)
{
    size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
    pthread_t thread;
    bool is_proved = false;
    unsigned char *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    bool is_watched =
        page != MAP_FAILED && userfaultfd_watch_range(descriptor, (uintptr_t)page, (uintptr_t)page + bytes, bytes);
    bool has_thread = is_watched && pthread_create(&thread, NULL, kernel_test_unmap_page, page) == 0;
    if (has_thread) is_proved = kernel_test_sees_change(descriptor, page);
    /* Closing the descriptor releases the thread that waits for its event. */
    if (!is_proved) close(descriptor);
    if (has_thread) pthread_join(thread, NULL);
    else if (page != MAP_FAILED) munmap(page, bytes);
    if (!is_proved || userfaultfd_probe_changes(descriptor) == EINVAL) return is_proved;
    close(descriptor);
    return false;
}
/* Opens a userfaultfd that reports unmapped and moved memory. UNSUPPORTED: this kernel or container does not allow
   it. */
static tutti_status userfaultfd_open(int *out)
{
    struct uffdio_api api = { .api = UFFD_API,
        .features = UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMAP
            | UFFD_FEATURE_EVENT_REMOVE };
    int descriptor =
        descriptor_move_above_stderr((int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY));
    if (descriptor < 0)
        return status_fail(TUTTI_UNSUPPORTED,
            "memory cannot be watched: userfaultfd: %s (a container's seccomp profile may forbid it)", strerror(errno));
    if (ioctl(descriptor, UFFDIO_API, &api) != 0) {
        close(descriptor);
        return status_fail(TUTTI_UNSUPPORTED,
            "memory cannot be watched: userfaultfd of this kernel has no such events");
    }
    if (!kernel_test_run(descriptor))
        return status_fail(TUTTI_UNSUPPORTED, "memory cannot be watched: this kernel reports changes too late");
    *out = descriptor;
    return TUTTI_OK;
}

/* ---- starting, stopping and listeners ---- */
static void descriptor_close_if_open(int descriptor)
{
    if (descriptor >= 0) close(descriptor);
}
/* Stops watching, and ends the thread if it runs. */
static void mappings_watch_stop(void)
{
    uint64_t one = 1;
    mappings_lock();
    int descriptor = mappings.descriptor;
    mappings.descriptor = -1;
    mappings_unlock();
    ssize_t ignored = write(mappings.waker, &one, sizeof one);
    (void)ignored;
    /* Closing the descriptor releases all threads that wait for an event to be read. It comes before pthread_join,
       which puts the thread's stack into a cache and may unmap an older stack that is watched: pthread_join would wait
       for this event to be read. */
    descriptor_close_if_open(descriptor);
    if (mappings.is_running) pthread_join(mappings.thread, NULL);
    descriptor_close_if_open(mappings.waker);
    mappings.waker = -1;
    mappings.is_running = false;
}
/* Opens the userfaultfd and starts the thread. */
static tutti_status mappings_watch_start(void)
{
    int descriptor = -1;
    TRY(userfaultfd_open(&descriptor));
    mappings.waker = descriptor_move_above_stderr(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    mappings.descriptor = descriptor;
    if (mappings.waker >= 0 && mappings_thread_start()) return TUTTI_OK;
    mappings_watch_stop();
    return status_fail(TUTTI_UNSUPPORTED,
        "memory cannot be watched: no thread can be started for it, or no descriptor "
        "opened (see ulimit -u and ulimit -n)");
}
/* Resets the module in a forked child, which has no listeners and watches no memory, because the registrations belong
   to its parent. The fork handlers take no lock in the parent: fork holds the allocator's locks, which threads that
   wait for this module may need. */
static void mappings_reset_in_child(void)
{
    pthread_mutex_init(&lifetime, NULL);
    pthread_mutex_init(&lock, NULL);
    descriptor_close_if_open(mappings.descriptor);
    descriptor_close_if_open(mappings.waker);
    memset(&mappings, 0, sizeof mappings);
    mappings.descriptor = mappings.waker = -1;
}
static void mappings_register_fork(void) { pthread_atfork(NULL, NULL, mappings_reset_in_child); }
/* Returns whether memory is watched. */
static bool mappings_watch_is_on(void)
{
    mappings_lock();
    bool is_on = mappings.descriptor >= 0;
    mappings_unlock();
    return is_on;
}
tutti_status mappings_add_listener(struct mapping_listener *listener)
{
    tutti_status status = TUTTI_OK;
    pthread_once(&once, mappings_register_fork);
    pthread_mutex_lock(&lifetime);
    if (!mappings_watch_is_on()) {
        /* The descriptor was lost while the thread ran. */
        if (mappings.is_running) mappings_watch_stop();
        status = mappings_watch_start();
    }
    mappings_lock();
    listener->next = mappings.first_listener;
    mappings.first_listener = listener;
    mappings_unlock();
    pthread_mutex_unlock(&lifetime);
    return status;
}
void mappings_remove_listener(struct mapping_listener *listener)
{
    pthread_mutex_lock(&lifetime);
    mappings_lock();
    struct mapping_listener **at = &mappings.first_listener;
    while (*at && *at != listener) at = &(*at)->next;
    if (*at) *at = listener->next;
    bool last = !mappings.first_listener;
    mappings_unlock();
    if (last && mappings.is_running) mappings_watch_stop();
    pthread_mutex_unlock(&lifetime);
}
