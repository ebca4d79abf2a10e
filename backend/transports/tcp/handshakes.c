/* How two processes find each other. Either calls the other, whose card it has, and shows that it has it; the other
 * shows the same, and the connection is open. A caller that shows nothing, or what is wrong, is a stranger: it hears no
 * word, and its connection is closed.
 *
 * Where both call at once one of the two connections must go. Who is called while its own call has not got through
 * takes the other's. Where both have, the one of the lesser nonce stays, and the other is kept until that one is
 * answered. Calls are numbered by each process, and both sides say how far they have counted: so a call that was begun
 * before the connection that stands is told from one that is begun since, because the caller knows that it broke. */
#include "backend/base/clock.h"
#include "backend/base/log.h"
#include "backend/transports/tcp/sockets.h"
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const char magic[8] = "tutti t";
enum { DEAF_MS = 100 };
static const char closed[] = "it has closed the connection";

/* It fits: nothing was sent before. */
static bool greet(const struct fabric *fabric, const struct tcp_endpoint *e, int descriptor, const uint8_t key[16])
{
    struct greeting greeting = { .number = sockets_of(fabric)->calls };
    memcpy(greeting.magic, magic, sizeof magic);
    memcpy(greeting.key, key, sizeof greeting.key);
    memcpy(greeting.from, fabric->process, sizeof greeting.from);
    memcpy(greeting.to, e->base.process, sizeof greeting.to);
    return send(descriptor, &greeting, sizeof greeting, MSG_NOSIGNAL) == (ssize_t)sizeof greeting;
}
static bool is_meant(const struct fabric *fabric, const struct greeting *greeting, const uint8_t key[16])
{
    return memcmp(greeting->magic, magic, sizeof magic) == 0 && memcmp(greeting->key, key, 16) == 0
        && memcmp(greeting->to, fabric->process, 16) == 0;
}
/* 1: there is more to come. 0: it is whole. -1: the connection has ended, errno says why (0: the other closed it). */
static int greeting_read(int descriptor, struct greeting *into, size_t *bytes)
{
    ssize_t n = recv(descriptor, (unsigned char *)into + *bytes, sizeof *into - *bytes, 0);
    if (n == 0) errno = 0;
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 1;
    if (n <= 0) return -1;
    *bytes += (size_t)n;
    return *bytes < sizeof *into;
}

/* ---- who is called ---- */
static void take_call(struct fabric *fabric, struct tcp_endpoint *e, int descriptor)
{
    if (e->spare >= 0 && e->spare != descriptor) close(e->spare);
    e->spare = -1;
    handle_close(fabric, &e->handle);
    if (greet(fabric, e, descriptor, sockets_of(fabric)->card.answer)) {
        endpoint_open(fabric, e, descriptor);
        return;
    }
    close(descriptor);
    endpoint_end(fabric, e, closed);
}
static void guest_forget(struct fabric *fabric, struct guest *guest)
{
    handle_close(fabric, &guest->handle);
    sockets_of(fabric)->guest_count--;
}
/* The number of the last call that is known of it. */
static uint64_t last_call_of(const struct fabric *fabric, const unsigned char process[16])
{
    uint64_t last = 0;
    for (struct endpoint *e = fabric->endpoints; e; e = e->next)
        if (memcmp(e->process, process, 16) == 0 && tcp_of(e)->theirs > last) last = tcp_of(e)->theirs;
    return last;
}
static void welcome(struct fabric *fabric, const struct greeting *said, int descriptor)
{
    struct endpoint *found = endpoint_find(fabric, said->from);
    struct tcp_endpoint *e = found ? tcp_of(found) : NULL;
    if (said->number <= last_call_of(fabric, said->from)) {
        close(descriptor); /* of a call that was given up since */
        return;
    }
    if (e && e->base.open) { /* what we knew is no more */
        endpoint_end(fabric, e, strerror(ECONNRESET));
        e = NULL;
    }
    if (!e) e = endpoint_new(fabric, said->from);
    if (!e) {
        close(descriptor);
        return;
    }
    e->theirs = said->number;
    bool mine_stays = e->greeted && memcmp(fabric->process, said->from, 16) < 0;
    if (!mine_stays) {
        take_call(fabric, e, descriptor);
        return;
    }
    if (e->spare >= 0) close(e->spare);
    e->spare = descriptor;
}
void guest_hear(struct fabric *fabric, struct guest *guest)
{
    const struct sockets *s = sockets_of(fabric);
    if (guest->handle.descriptor < 0) return;
    int more = greeting_read(guest->handle.descriptor, &guest->said, &guest->bytes);
    if (more > 0) return;
    bool meant =
        more == 0 && is_meant(fabric, &guest->said, s->card.ask) && memcmp(guest->said.from, fabric->process, 16) != 0;
    if (!meant) {
        LOG(DEBUG, "a stranger has called %s", fabric->operations->name);
        guest_forget(fabric, guest);
        return;
    }
    int descriptor = guest->handle.descriptor;
    handle_watch(fabric, &guest->handle, 0);
    guest->handle.descriptor = -1;
    guest_forget(fabric, guest);
    welcome(fabric, &guest->said, descriptor);
}
/* One that is free, or the oldest. */
static struct guest *guest_seat(struct fabric *fabric)
{
    struct sockets *s = sockets_of(fabric);
    struct guest *oldest = &s->guests[0];
    for (struct guest *g = s->guests; g < s->guests + GUESTS; g++) {
        if (g->handle.descriptor < 0) return g;
        if (g->since_ms < oldest->since_ms) oldest = g;
    }
    guest_forget(fabric, oldest);
    return oldest;
}
static void seat(struct fabric *fabric, int descriptor)
{
    struct guest *guest = guest_seat(fabric);
    *guest = (struct guest){ .handle = { GUEST, descriptor, 0 }, .since_ms = clock_ms() };
    sockets_of(fabric)->guest_count++;
    fabric->restless = true;
    if (handle_watch(fabric, &guest->handle, EPOLLIN) != TUTTI_OK) guest_forget(fabric, guest);
    else guest_hear(fabric, guest);
}
void guests_accept(struct fabric *fabric)
{
    struct sockets *s = sockets_of(fabric);
    for (int n = 0; n < GUESTS; n++) {
        int descriptor = address_accept(s->listener.descriptor);
        if (descriptor == -EAGAIN) return;
        if (descriptor >= 0) {
            seat(fabric, descriptor);
            continue;
        }
        if (!s->deaf_ms) LOG(WARN, "%s cannot take a call: %s", fabric->operations->name, strerror(-descriptor));
        s->deaf_ms = clock_ms();
        handle_watch(fabric, &s->listener, 0);
        fabric->restless = true;
        return;
    }
}
void guests_drop(struct fabric *fabric)
{
    struct sockets *s = sockets_of(fabric);
    for (struct guest *g = s->guests; g < s->guests + GUESTS; g++)
        if (g->handle.descriptor >= 0) guest_forget(fabric, g);
}

/* ---- who calls ---- */
static tutti_status call(struct fabric *fabric, struct tcp_endpoint *e)
{
    struct sockets *s = sockets_of(fabric);
    int descriptor = address_call(s, &e->card);
    s->calls++;
    e->since_ms = clock_ms();
    fabric->restless = true;
    if (descriptor == -ECONNREFUSED || descriptor == -ECONNRESET) { /* who told it tells why */
        endpoint_end(fabric, e, strerror(-descriptor));
        return TUTTI_OK;
    }
    if (descriptor < 0)
        return status_fail(TUTTI_SYSTEM,
            "TCP cannot connect: %s (both hosts need a network interface in common; see TUTTI_SOCKET_IFNAME)",
            strerror(-descriptor));
    e->handle.descriptor = descriptor;
    return handle_watch(fabric, &e->handle, EPOLLOUT);
}
tutti_status tcp_connect(struct fabric *fabric, const unsigned char process[16], const unsigned char *card,
    size_t bytes, struct endpoint **out)
{
    struct card theirs;
    if (bytes != sizeof theirs)
        return status_fail(TUTTI_SYSTEM,
            "its process has given no address for TCP (TUTTI_TRANSPORT must say tcp on all hosts)");
    memcpy(&theirs, card, sizeof theirs);
    struct tcp_endpoint *e = endpoint_new(fabric, process);
    if (!e) return status_fail(TUTTI_NO_MEMORY, "no memory for a connection");
    e->card = theirs;
    bool oneself = memcmp(fabric->process, process, 16) == 0;
    tutti_status status = oneself ? endpoint_open_pair(fabric, e) : call(fabric, e);
    if (status != TUTTI_OK) endpoint_end(fabric, e, "no connection can be had");
    else *out = &e->base;
    return status;
}
static void call_failed(struct fabric *fabric, struct tcp_endpoint *e, const char *why)
{
    if (e->spare >= 0) take_call(fabric, e, e->spare);
    else endpoint_end(fabric, e, why);
}
static void call_hear(struct fabric *fabric, struct tcp_endpoint *e)
{
    const struct greeting *said = &e->answer;
    int descriptor = e->handle.descriptor, more = greeting_read(descriptor, &e->answer, &e->answered);
    if (more > 0) return;
    bool meant = more == 0 && is_meant(fabric, said, e->card.answer) && memcmp(said->from, e->base.process, 16) == 0;
    if (!meant) {
        call_failed(fabric, e, more == 0 ? "another process answers" : errno ? strerror(errno) : closed);
        return;
    }
    if (said->number > e->theirs) e->theirs = said->number;
    if (e->spare >= 0) close(e->spare);
    e->spare = -1;
    endpoint_open(fabric, e, descriptor);
}
void call_go_on(struct fabric *fabric, struct tcp_endpoint *e)
{
    if (e->greeted) {
        call_hear(fabric, e);
        return;
    }
    int error = address_error(e->handle.descriptor);
    e->greeted = !error && greet(fabric, e, e->handle.descriptor, e->card.ask);
    if (!e->greeted) call_failed(fabric, e, error ? strerror(error) : closed);
    else if (handle_watch(fabric, &e->handle, EPOLLIN) != TUTTI_OK) call_failed(fabric, e, "it cannot be watched");
}

/* ---- what takes too long ---- */
void greetings_expire(struct fabric *fabric)
{
    struct sockets *s = sockets_of(fabric);
    int64_t now_ms = clock_ms();
    if (s->deaf_ms && now_ms - s->deaf_ms >= DEAF_MS) {
        s->deaf_ms = 0;
        handle_watch(fabric, &s->listener, EPOLLIN);
    }
    for (struct guest *g = s->guests; s->guest_count && g < s->guests + GUESTS; g++)
        if (g->handle.descriptor >= 0 && now_ms - g->since_ms >= GUEST_MS) guest_forget(fabric, g);
    fabric->restless = s->guest_count || s->deaf_ms;
    for (struct endpoint *e = fabric->endpoints; e; e = e->next) {
        if (e->open || endpoint_is_broken(e)) continue;
        if (now_ms - tcp_of(e)->since_ms >= CALL_MS) call_failed(fabric, tcp_of(e), strerror(ETIMEDOUT));
        fabric->restless |= !e->open && !endpoint_is_broken(e);
    }
}
