/* Encodes control messages with a fixed size, little endian and a version. This file checks all received bytes: after
   agree_message_decode every rank, kind and text is valid. */
#include "backend/agree/agree.h"
#include <string.h>

/* `at` is the next byte to write or read. */
struct agree_writer { unsigned char *at; };
struct agree_reader { const unsigned char *at; };
/* Writes the low `bytes` bytes of a number, little endian. */
static void agree_writer_put_int(struct agree_writer *w, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) *w->at++ = (unsigned char)(value >> 8 * i);
}
static uint64_t agree_reader_get_int(struct agree_reader *r, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) value |= (uint64_t)*r->at++ << 8 * i;
    return value;
}
static void agree_writer_put_bytes(struct agree_writer *w, const void *from, size_t bytes)
{
    memcpy(w->at, from, bytes);
    w->at += bytes;
}
static void agree_reader_get_bytes(struct agree_reader *r, void *to, size_t bytes)
{
    memcpy(to, r->at, bytes);
    r->at += bytes;
}
static int32_t agree_reader_get_signed(struct agree_reader *r) { return (int32_t)(uint32_t)agree_reader_get_int(r, 4); }
static void agree_writer_put_call(struct agree_writer *w, const struct agree_call *call)
{
    agree_writer_put_int(w, call->number, 8);
    agree_writer_put_int(w, call->fingerprint, 8);
    agree_writer_put_bytes(w, call->declaration, sizeof call->declaration);
}
static void agree_reader_get_call(struct agree_reader *r, struct agree_call *out)
{
    out->number = agree_reader_get_int(r, 8);
    out->fingerprint = agree_reader_get_int(r, 8);
    agree_reader_get_bytes(r, out->declaration, sizeof out->declaration);
}
/* Writes a cause in the order in which agree_reader_get_cause reads it. */
static void agree_writer_put_cause(struct agree_writer *w, const struct agree_cause *cause)
{
    agree_writer_put_int(w, (uint32_t)cause->kind, 4);
    agree_writer_put_int(w, (uint32_t)cause->status, 4);
    agree_writer_put_int(w, (uint32_t)cause->reporter, 4);
    agree_writer_put_int(w, (uint32_t)cause->other, 4);
    agree_writer_put_int(w, cause->operation, 8);
    agree_writer_put_call(w, &cause->calls[0]);
    agree_writer_put_call(w, &cause->calls[1]);
    agree_writer_put_bytes(w, cause->detail, sizeof cause->detail);
}
static void agree_reader_get_cause(struct agree_reader *r, struct agree_cause *out)
{
    out->kind = agree_reader_get_signed(r);
    out->status = agree_reader_get_signed(r);
    out->reporter = agree_reader_get_signed(r);
    out->other = agree_reader_get_signed(r);
    out->operation = agree_reader_get_int(r, 8);
    agree_reader_get_call(r, &out->calls[0]);
    agree_reader_get_call(r, &out->calls[1]);
    agree_reader_get_bytes(r, out->detail, sizeof out->detail);
}
void agree_message_encode(const struct agree_message *message, unsigned char out[AGREE_WIRE_BYTES])
{
    struct agree_writer w = { out };
    agree_writer_put_int(&w, AGREE_VERSION, 2);
    agree_writer_put_int(&w, message->kind, 2);
    agree_writer_put_int(&w, message->decided, 4);
    memset(w.at, 0, AGREE_WIRE_BYTES - 8);
    if (message->kind == AGREE_FAIL) agree_writer_put_cause(&w, &message->cause);
    for (int i = 0; message->kind != AGREE_FAIL && i < AGREE_HISTORY; i++)
        agree_writer_put_call(&w, &message->calls[i]);
}
/* Returns true if a peer may send this operation number. The engine increments and compares operation numbers, so one
   near the end of the range is invalid. */
static bool operation_number_is_valid(uint64_t number) { return number < (uint64_t)1 << 62; }
/* Returns true if all fields of a received cause are in range, for a communicator of `size` ranks. */
static bool agree_cause_is_valid(const struct agree_cause *c, int size)
{
    bool about_two = c->kind == AGREE_DISAGREEMENT || c->kind == AGREE_LOST || c->kind == AGREE_LEFT_ALONE;
    return c->kind >= 0 && c->kind < AGREE_KINDS && c->status < 0 && c->reporter >= 0 && c->reporter < size
        && c->other >= (about_two ? 0 : -1) && c->other < size && c->operation
        && operation_number_is_valid(c->operation) && operation_number_is_valid(c->calls[0].number)
        && operation_number_is_valid(c->calls[1].number) && memchr(c->detail, 0, sizeof c->detail) != NULL;
}
bool agree_message_decode(const unsigned char *bytes, size_t length, int size, struct agree_message *out)
{
    struct agree_message m;
    struct agree_reader r = { bytes };
    memset(&m, 0, sizeof m);
    if (length != AGREE_WIRE_BYTES || agree_reader_get_int(&r, 2) != AGREE_VERSION) return false;
    m.kind = agree_reader_get_int(&r, 2);
    m.decided = agree_reader_get_int(&r, 4);
    if (m.decided > (m.kind == AGREE_FAIL) || m.kind >= AGREE_MESSAGES) return false;
    if (m.kind == AGREE_FAIL) agree_reader_get_cause(&r, &m.cause);
    for (int i = 0; m.kind != AGREE_FAIL && i < AGREE_HISTORY; i++) agree_reader_get_call(&r, &m.calls[i]);
    if (m.kind == AGREE_FAIL && !agree_cause_is_valid(&m.cause, size)) return false;
    for (int i = 0; i < AGREE_HISTORY; i++)
        if (!operation_number_is_valid(m.calls[i].number)) return false;
    *out = m;
    return true;
}
