/* Feeds the parser of links with streams of frames that have mistakes, in pieces of any size. No byte outside a buffer
   is read or written (the sanitizers check this), each message is complete and within its bounds, and a stream without
   mistakes gives all its frames. Usage: fuzz_links --executions N --seed S */
#include "backend/links/frame.h"
#include "backend/processes/registry.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_FRAMES = 12, STREAM_BYTES = MOST_FRAMES * (int)(sizeof(struct frame) + sizeof(union link_message)) };
static uint64_t state;
/* Returns a random number below `below` (xorshift64*). */
static unsigned random_below(unsigned below)
{
    state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
    return (unsigned)((state * 2685821657736338717u) >> 33) % below;
}
#define REQUIRE(condition) do { if (!(condition)) fuzz_fail(#condition, __LINE__); } while (0)
static uint64_t execution, seed;
static void fuzz_fail(const char *text, int line)
{
    fprintf(stderr, "line %d: %s; execution %llu of --seed %llu\n", line, text, (unsigned long long)execution,
        (unsigned long long)seed);
    exit(1);
}

/* ---- a stream ---- */
static size_t add_frame(unsigned char *stream)
{
    static const enum packet_kind kinds[] = { CTRL_MSG, CTRL_MSG, HEARTBEAT, ADDRESS, ADDRESS_REQUEST, JOIN_ABORTED,
        GOODBYE };
    union link_message m;
    memset(&m, (int)random_below(256), sizeof m);
    m.packet = packet_make_from_us(registry.self.nonce, kinds[random_below(7)]);
    size_t bytes = sizeof m.packet;
    if (m.packet.kind == ADDRESS) bytes += random_below(PROCESS_ADDRESS_BYTES + 1);
    if (m.packet.kind == CTRL_MSG) {
        m.entry.msg.type = (uint16_t)random_below(CHANNEL_TYPES);
        m.entry.msg.hops = (uint8_t)random_below(256);
        m.entry.msg.flags = (uint8_t)random_below(CTRL_MSG_FLAGS + 1);
        m.entry.msg.length = random_below(CHANNEL_BYTES + 1);
        bytes += offsetof(struct ctrl_msg, bytes) + m.entry.msg.length;
    }
    struct frame frame = { (uint32_t)bytes, 0 };
    memcpy(stream, &frame, sizeof frame);
    memcpy(stream + sizeof frame, &m, bytes);
    return sizeof frame + bytes;
}
/* Makes one mistake in the stream. */
static void stream_damage(unsigned char *stream, size_t *bytes)
{
    static const uint32_t numbers[] = { 0, 1, 111, 112, 113, 2160, 2161, 65535, 1u << 31, UINT32_MAX };
    size_t at = random_below((unsigned)*bytes), count = random_below(64) + 1;
    switch (random_below(5)) {
    case 0: stream[at] ^= (unsigned char)(1u << random_below(8)); break;
    case 1: *bytes = at; break;
    case 2:
        if (at + 4 <= *bytes) memcpy(stream + at, &numbers[random_below(10)], 4);
        break;
    case 3:
        /* The first 24 bytes are the header of a frame, and the magic, version and kind of its packet. */
        if (*bytes >= 24) memcpy(stream + 4 * random_below(6), &numbers[random_below(10)], 4);
        break;
    default:
        if (at + count > *bytes) count = *bytes - at;
        memmove(stream + at, stream + at + count, *bytes - at - count);
        *bytes -= count;
    }
}

/* ---- parsed messages ---- */
/* Returns the number of frames, or -EPROTO. */
static int frames_count(struct frame_stream *w)
{
    /* It has exactly this size, so the sanitizer finds a byte that is written behind it. */
    union link_message *m = malloc(sizeof *m);
    int count = 0, bytes;
    while ((bytes = frame_stream_next_message(w, m)) > 0) {
        REQUIRE(bytes >= (int)sizeof m->packet && bytes <= (int)sizeof *m);
        REQUIRE(m->packet.kind != ADDRESS || bytes - (int)sizeof m->packet <= PROCESS_ADDRESS_BYTES);
        if (m->packet.kind == CTRL_MSG)
            REQUIRE(m->entry.msg.length <= CHANNEL_BYTES && m->entry.msg.type < CHANNEL_TYPES
                && m->entry.msg.flags <= CTRL_MSG_FLAGS);
        count++;
    }
    /* Without an error the buffer has room for more bytes. */
    REQUIRE(bytes < 0 || w->in_bytes < sizeof w->in);
    REQUIRE(w->put - w->taken <= STREAM_WINDOW);
    free(m);
    return bytes < 0 ? bytes : count;
}
static void execute(unsigned char *stream)
{
    struct frame_stream *w = calloc(1, sizeof *w);
    int frames = (int)random_below(MOST_FRAMES) + 1, received = 0;
    size_t bytes = 0, whole = random_below(8) == 0 ? sizeof w->in : random_below(200) + 1;
    for (int i = 0; i < frames; i++) bytes += add_frame(stream + bytes);
    int mistakes = (int)random_below(4);
    for (int i = 0; i < mistakes && bytes; i++) stream_damage(stream, &bytes);
    for (size_t at = 0; at < bytes && received >= 0;) {
        size_t room = sizeof w->in - w->in_bytes, piece = random_below((unsigned)whole) + 1;
        if (piece > room) piece = room;
        if (piece > bytes - at) piece = bytes - at;
        memcpy(w->in + w->in_bytes, stream + at, piece);
        w->in_bytes += piece;
        at += piece;
        int count = frames_count(w);
        received = count < 0 ? count : received + count;
    }
    if (!mistakes) REQUIRE(received == frames && w->got == (uint32_t)bytes && !w->in_bytes);
    /* The output buffer is bounded, however many messages are put into it. */
    if (random_below(4) == 0)
        for (int i = 0; i < 100; i++) {
            struct packet packet = packet_make_from_us(registry.self.nonce, HEARTBEAT);
            frame_stream_put(w, &packet, sizeof packet, STREAM_WINDOW);
            REQUIRE(w->out_bytes <= sizeof w->out && w->put - w->taken <= STREAM_WINDOW);
        }
    free(w);
}
int main(int count, char **arguments)
{
    static unsigned char stream[STREAM_BYTES];
    uint64_t executions = 20000;
    seed = 1;
    for (int i = 1; i + 1 < count; i += 2) {
        if (!strcmp(arguments[i], "--executions")) executions = strtoull(arguments[i + 1], NULL, 10);
        if (!strcmp(arguments[i], "--seed")) seed = strtoull(arguments[i + 1], NULL, 10);
    }
    memcpy(registry.self.nonce, "this very process", 16);
    for (execution = 0; execution < executions; execution++) {
        state = (seed * 0x9e3779b97f4a7c15u) ^ ((execution + 1) * 0xbf58476d1ce4e5b9u);
        if (!state) state = 1;
        execute(stream);
    }
    printf("%llu executions, seed %llu\n", (unsigned long long)executions, (unsigned long long)seed);
    return 0;
}
