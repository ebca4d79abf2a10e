/* Encodes control messages with a fixed size, little endian and a version. This file checks all received bytes: after
   agree_decode every rank, kind and text is valid. */
#include "backend/agree/agree.h"
#include <string.h>

struct agree_writer { unsigned char *at; };
struct agree_reader { const unsigned char *at; };
static void writer_put(struct agree_writer *w, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) *w->at++ = (unsigned char)(value >> 8 * i);
}
static uint64_t reader_get(struct agree_reader *r, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) value |= (uint64_t)*r->at++ << 8 * i;
    return value;
}
static void put_bytes(struct agree_writer *w, const void *from, size_t bytes)
{
    memcpy(w->at, from, bytes);
    w->at += bytes;
}
static void get_bytes(struct agree_reader *r, void *to, size_t bytes)
{
    memcpy(to, r->at, bytes);
    r->at += bytes;
}
static int32_t get_signed(struct agree_reader *r) { return (int32_t)(uint32_t)reader_get(r, 4); }
static void put_call(struct agree_writer *w, const struct agree_call *call)
{
    writer_put(w, call->number, 8);
    writer_put(w, call->fingerprint, 8);
    put_bytes(w, call->declaration, sizeof call->declaration);
}
static void get_call(struct agree_reader *r, struct agree_call *out)
{
    out->number = reader_get(r, 8);
    out->fingerprint = reader_get(r, 8);
    get_bytes(r, out->declaration, sizeof out->declaration);
}
static void put_cause(struct agree_writer *w, const struct agree_cause *cause)
{
    writer_put(w, (uint32_t)cause->kind, 4);
    writer_put(w, (uint32_t)cause->status, 4);
    writer_put(w, (uint32_t)cause->reporter, 4);
    writer_put(w, (uint32_t)cause->other, 4);
    writer_put(w, cause->operation, 8);
    put_call(w, &cause->calls[0]);
    put_call(w, &cause->calls[1]);
    put_bytes(w, cause->detail, sizeof cause->detail);
}
static void get_cause(struct agree_reader *r, struct agree_cause *out)
{
    out->kind = get_signed(r);
    out->status = get_signed(r);
    out->reporter = get_signed(r);
    out->other = get_signed(r);
    out->operation = reader_get(r, 8);
    get_call(r, &out->calls[0]);
    get_call(r, &out->calls[1]);
    get_bytes(r, out->detail, sizeof out->detail);
}
void agree_encode(const struct agree_message *message, unsigned char out[AGREE_WIRE_BYTES])
{
    struct agree_writer w = { out };
    writer_put(&w, AGREE_VERSION, 2);
    writer_put(&w, message->kind, 2);
    writer_put(&w, message->decided, 4);
    memset(w.at, 0, AGREE_WIRE_BYTES - 8);
    if (message->kind == AGREE_FAIL) put_cause(&w, &message->cause);
    for (int i = 0; message->kind != AGREE_FAIL && i < AGREE_HISTORY; i++) put_call(&w, &message->calls[i]);
}
/* The engine increments and compares operation numbers, so one near the end of the range is invalid. */
static bool is_number(uint64_t number) { return number < (uint64_t)1 << 62; }
static bool is_cause(const struct agree_cause *c, int size)
{
    bool about_two = c->kind == AGREE_DISAGREEMENT || c->kind == AGREE_LOST || c->kind == AGREE_LEFT_ALONE;
    return c->kind >= 0 && c->kind < AGREE_KINDS && c->status < 0 && c->reporter >= 0 && c->reporter < size
        && c->other >= (about_two ? 0 : -1) && c->other < size && c->operation && is_number(c->operation)
        && is_number(c->calls[0].number) && is_number(c->calls[1].number)
        && memchr(c->detail, 0, sizeof c->detail) != NULL;
}
bool agree_decode(const unsigned char *bytes, size_t length, int size, struct agree_message *out)
{
    struct agree_message m;
    struct agree_reader r = { bytes };
    memset(&m, 0, sizeof m);
    if (length != AGREE_WIRE_BYTES || reader_get(&r, 2) != AGREE_VERSION) return false;
    m.kind = reader_get(&r, 2);
    m.decided = reader_get(&r, 4);
    if (m.decided > (m.kind == AGREE_FAIL) || m.kind >= AGREE_MESSAGES) return false;
    if (m.kind == AGREE_FAIL) get_cause(&r, &m.cause);
    for (int i = 0; m.kind != AGREE_FAIL && i < AGREE_HISTORY; i++) get_call(&r, &m.calls[i]);
    if (m.kind == AGREE_FAIL && !is_cause(&m.cause, size)) return false;
    for (int i = 0; i < AGREE_HISTORY; i++)
        if (!is_number(m.calls[i].number)) return false;
    *out = m;
    return true;
}
