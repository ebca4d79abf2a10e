/* What a plain TCP socket between two hosts can do: the measure for everything above it. Both ends spin, as a program
 * that waits for nothing else may.
 *
 *   sockets serve PORT                 waits for a process that asks, and serves it until it hangs up
 *   sockets ask ADDRESS PORT ROUNDS    prints: latency NS (half a round trip), swap NS (both send, then both receive:
 *                                      what an all-reduce is), one_way BYTES_PER_S, both_ways BYTES_PER_S (each way) */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { SMALL = 8, WARM = 200, PINGS = 2000 };
#define LARGE ((size_t)64 << 20)
enum command { PING = 1, SWAP, TAKE, BOTH };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
static int failed(const char *what)
{
    fprintf(stderr, "sockets: %s: %s\n", what, strerror(errno));
    return 0;
}
/* Sends and receives these bytes at the same time, without sleeping. Returns 0 if the connection has failed or
   ended. */
static int exchange(int s, const char *out, size_t send_bytes, char *in, size_t recv_bytes)
{
    size_t sent = 0, received = 0;
    while (sent < send_bytes || received < recv_bytes) {
        ssize_t n = sent < send_bytes ? send(s, out + sent, send_bytes - sent, MSG_DONTWAIT | MSG_NOSIGNAL) : 0;
        if (n > 0) sent += (size_t)n;
        else if (n < 0 && errno != EAGAIN && errno != EINTR) return failed("send");
        n = received < recv_bytes ? recv(s, in + received, recv_bytes - received, MSG_DONTWAIT) : -1;
        if (n > 0) received += (size_t)n;
        else if (n == 0) return 0;
        else if (received < recv_bytes && errno != EAGAIN && errno != EINTR) return failed("recv");
    }
    return 1;
}
static int one_ping(int s, char *buffer, int first)
{
    if (first) return exchange(s, buffer, SMALL, NULL, 0) && exchange(s, NULL, 0, buffer, SMALL);
    return exchange(s, NULL, 0, buffer, SMALL) && exchange(s, buffer, SMALL, NULL, 0);
}
static int small(int s, char command, char *buffer, int first)
{
    return command == PING ? one_ping(s, buffer, first) : exchange(s, buffer, SMALL, buffer + SMALL, SMALL);
}
/* Runs one side of one measurement. Returns the seconds of one message or transfer, or 0 after a failure. */
static double measure(int s, char command, char *out, char *in, int asks)
{
    if (command == PING || command == SWAP) {
        for (int i = 0; i < WARM; i++)
            if (!small(s, command, in, asks)) return 0;
        double begin = now();
        for (int i = 0; i < PINGS; i++)
            if (!small(s, command, in, asks)) return 0;
        return (now() - begin) / PINGS / (command == PING ? 2 : 1);
    }
    double begin = now();
    int well = command == BOTH ? exchange(s, out, LARGE, in, LARGE) && one_ping(s, in, asks)
        : asks                 ? exchange(s, out, LARGE, NULL, 0) && one_ping(s, in, 1)
                               : exchange(s, NULL, 0, in, LARGE) && one_ping(s, in, 0);
    return well ? now() - begin : 0;
}
static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double median(int s, enum command command, int rounds, char *out, char *in)
{
    double times[64];
    for (int i = 0; i < rounds; i++) {
        char word = (char)command;
        if (!exchange(s, &word, 1, NULL, 0)) return 0;
        times[i] = measure(s, word, out, in, 1);
        if (times[i] <= 0) return 0;
    }
    qsort(times, (size_t)rounds, sizeof *times, compare);
    return times[rounds / 2];
}
static int ask(int s, int rounds, char *out, char *in)
{
    double latency = median(s, PING, rounds, out, in), swap = median(s, SWAP, rounds, out, in);
    double one = median(s, TAKE, rounds, out, in), both = median(s, BOTH, rounds, out, in);
    if (latency <= 0 || swap <= 0 || one <= 0 || both <= 0) return 1;
    printf("latency %.1f\nswap %.1f\n", latency * 1e9, swap * 1e9);
    printf("one_way %.0f\nboth_ways %.0f\n", (double)LARGE / one, (double)LARGE / both);
    return 0;
}
static int serve(int s, char *out, char *in)
{
    char command;
    while (exchange(s, NULL, 0, &command, 1))
        if (measure(s, command, out, in, 0) <= 0) return 1;
    return 0;
}
static int opened(const char *address, const char *port)
{
    struct addrinfo want = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE, .ai_family = address ? 0 : AF_INET6 };
    struct addrinfo *found;
    int one = 1, s = -1;
    if (getaddrinfo(address, port, &want, &found)) return -1;
    s = socket(found->ai_family, SOCK_STREAM, 0);
    if (address) {
        if (connect(s, found->ai_addr, found->ai_addrlen)) s = -1;
    } else {
        setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(s, found->ai_addr, found->ai_addrlen) || listen(s, 1)) s = -1;
        puts("ready");
        fflush(stdout);
        if (s >= 0) s = accept(s, NULL, NULL);
    }
    freeaddrinfo(found);
    if (s >= 0) setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return s;
}
int main(int count, char **words)
{
    int asks = count == 5 && strcmp(words[1], "ask") == 0;
    if (!asks && !(count == 3 && strcmp(words[1], "serve") == 0)) {
        fprintf(stderr, "usage: sockets serve PORT | ask ADDRESS PORT ROUNDS\n");
        return 2;
    }
    char *out = malloc(LARGE), *in = malloc(LARGE);
    int s = asks ? opened(words[2], words[3]) : opened(NULL, words[2]);
    if (!out || !in || s < 0) return failed("no connection") + 1;
    memset(out, 1, LARGE);
    memset(in, 2, LARGE);
    int rounds = asks ? atoi(words[4]) : 0, status;
    status = asks ? ask(s, rounds < 1 ? 1 : rounds > 64 ? 64 : rounds, out, in) : serve(s, out, in);
    close(s);
    free(out);
    free(in);
    return status;
}
