/* Formats calls and causes of failure. The text of a call depends only on its declaration, so it is the same on every
   rank. The text of a death also names the rank that saw it. */
#include "backend/engine/error_text.h"
#include "backend/base/dtype.h"
#include "backend/collectives/collectives.h"
#include "backend/engine/launch.h"
#include "backend/links/links.h"
#include <stdio.h>
#include <string.h>

/* The label of an order of dimensions has TUTTI_LABEL_ORDER in its upper 8 bits, and below them up to 14 digits of 4
   bits. */
enum { ORDER_DIMENSIONS = 14 };
#define ORDER_BITS (~UINT64_C(0) >> 8)

/* Returns the name of a row of the table of algorithms, or "?". The row comes from a peer's declaration, so it may be
   out of range. */
static const char *error_text_algorithm_name(uint64_t row)
{
    const struct algorithm *algorithm = collectives_table;
    while (algorithm->name && row > 0) { algorithm++; row--; }
    return algorithm->name ? algorithm->name : "?";
}
void error_text_of_call(const struct declaration *declaration, char *out, size_t bytes)
{
    char root[32] = "", op[128] = "";
    enum collective f = (enum collective)declaration->operation;
    bool reduces = f == ALLREDUCE || f == REDUCE || f == REDUCE_SCATTER;
    if (f >= COLLECTIVE_COUNT) { snprintf(out, bytes, "an unknown operation"); return; }
    if (reduces && declaration->op < TUTTI_OP_COUNT)
        snprintf(op, sizeof op, ", %s", op_name((tutti_op)declaration->op));
    if (reduces && declaration->op == OP_OF_ROWS) {
        strcpy(op, ", sum, ");
        rows_format_bits(declaration->bits, op + strlen(op), sizeof op - strlen(op));
    }
    if (collective_has_root(f)) snprintf(root, sizeof root, ", root %d", declaration->root);
    const char *name = collective_name(f), *dtype = dtype_name((tutti_dtype)declaration->dtype);
    if (f == BARRIER) snprintf(out, bytes, "barrier");
    else if (declaration->count == UNEVEN_COUNT) snprintf(out, bytes, "%s(uneven counts, %s%s)", name, dtype, op);
    else
        snprintf(out, bytes, "%s(%llu x %s%s%s, algorithm %s)", name, (unsigned long long)declaration->count, dtype, op,
            root, error_text_algorithm_name(declaration->algorithm));
}
/* Returns true if the declaration's label has an order of dimensions, as tensors have that are not contiguous. */
static bool declaration_has_order(const struct declaration *declaration)
{
    bool labelled = declaration->op != TUTTI_PREMUL_SUM && declaration->op != OP_OF_ROWS;
    return labelled && (declaration->bits & ~ORDER_BITS) == TUTTI_LABEL_ORDER;
}
/* Writes the label of a call. */
static void error_text_add_label(const struct declaration *declaration, char *out, size_t bytes)
{
    if (!declaration_has_order(declaration)) {
        snprintf(out, bytes, ", label %llu", (unsigned long long)declaration->bits);
        return;
    }
    size_t used = (size_t)snprintf(out, bytes, ", dimensions in the memory order");
    for (int shift = ORDER_DIMENSIONS * 4; shift && used < bytes;) {
        unsigned dimension = (unsigned)(declaration->bits >> (shift -= 4)) & 15;
        if (dimension) used += (size_t)snprintf(out + used, bytes - used, " %u", dimension - 1);
    }
}
/* Appends the properties of a call that must also agree, but seldom differ. */
static void error_text_add_details(const struct declaration *declaration, char *out, size_t bytes)
{
    size_t used = strlen(out);
    double factor;
    memcpy(&factor, &declaration->bits, sizeof factor);
    used += (size_t)snprintf(out + used, bytes - used, " by algorithm %s",
        error_text_algorithm_name(declaration->algorithm));
    if (declaration->op == TUTTI_PREMUL_SUM && used < bytes)
        used += (size_t)snprintf(out + used, bytes - used, ", factor %g", factor);
    else if (declaration->bits && declaration->op != OP_OF_ROWS && used < bytes) {
        error_text_add_label(declaration, out + used, bytes - used);
        used = strlen(out);
    }
    if (declaration->tile_bytes && used < bytes)
        used += (size_t)snprintf(out + used, bytes - used, ", tiles of %llu bytes",
            (unsigned long long)declaration->tile_bytes);
    if (declaration->slots && used < bytes)
        used += (size_t)snprintf(out + used, bytes - used, ", %llu slots", (unsigned long long)declaration->slots);
    if (declaration->counts && used < bytes)
        used += (size_t)snprintf(out + used, bytes - used, ", counts with the digest %08x",
            (unsigned)(declaration->counts >> 32));
    if (declaration->tuner && used < bytes) snprintf(out + used, bytes - used, ", trying another way (TUTTI_TUNER)");
}
void error_text_of_disagreement(const struct group *group, int rank, const struct declaration *call, int other,
    const struct declaration *its_call, char *out, size_t bytes)
{
    char here[ERROR_TEXT_BYTES], there[ERROR_TEXT_BYTES];
    error_text_of_call(call, here, sizeof here);
    error_text_of_call(its_call, there, sizeof there);
    /* If the texts are equal, the ranks differ in something that the text leaves out. */
    if (strcmp(here, there) == 0) {
        error_text_add_details(call, here, sizeof here);
        error_text_add_details(its_call, there, sizeof there);
    }
    snprintf(out, bytes,
        "ranks disagree about operation %llu of %s: rank %d calls %s, but rank %d "
        "calls %s%s; all ranks must make the same calls in the same order%s",
        (unsigned long long)call->sequence, group->name, rank, here, other, there,
        its_call->sequence != call->sequence ? " (and has made a different number of calls)" : "",
        call->bits != its_call->bits && (declaration_has_order(call) || declaration_has_order(its_call))
            ? ", with tensors of the same strides: use tensor.contiguous() on all ranks"
            : "");
}
enum { REMEDY_BYTES = 96 };
/* Writes what a user can do without a rank that is lost. Returns `out`. */
static const char *error_text_of_remedy(const struct group *group, int lost, char out[REMEDY_BYTES])
{
    if (!group->is_reconfigurable) return "destroy this group and make a new one without it";
    snprintf(out, REMEDY_BYTES, "reconfigure this group without rank %d (docs/fault-tolerance.md) or make a new one",
        lost);
    return out;
}
void error_text_of_death(const struct group *group, int dead, int seer, const char *where, char *out, size_t bytes)
{
    const struct member *m = &group->members[dead];
    char remedy[REMEDY_BYTES];
    snprintf(out, bytes, "rank %d of %s (process %llu on %.40s) died, seen by rank %d%s; %s", dead, group->name,
        (unsigned long long)m->identity.pid, m->identity.host, seer, where, error_text_of_remedy(group, dead, remedy));
}
void error_text_of_lost_link(const struct group *group, int lost, char *out, size_t bytes)
{
    const struct member *m = &group->members[lost];
    char remedy[REMEDY_BYTES], why[2 * ERROR_TEXT_BYTES];
    out[0] = 0;
    if (!link_describe_loss(group->peers[lost], why, sizeof why)) return;
    snprintf(out, bytes, "rank %d of %s (process %llu on %.40s) is out of reach of rank %d, %s; %s", lost, group->name,
        (unsigned long long)m->identity.pid, m->identity.host, group->rank, why,
        error_text_of_remedy(group, lost, remedy));
}
void error_text_of_leaving(const struct group *group, int gone, int waiter, const char *where, char *out, size_t bytes)
{
    snprintf(out, bytes,
        "rank %d of %s has ended or destroyed its group, and rank %d waits for it%s; see its output for "
        "an error of its own: all ranks must make the same calls before they end",
        gone, group->name, waiter, where);
}

/* ---- causes from backend/agree ---- */
/* Returns the declaration in a call of backend/agree. */
static struct declaration agree_call_to_declaration(const struct agree_call *call)
{
    struct declaration declaration = { 0 };
    memcpy(&declaration, call->declaration, offsetof(struct declaration, tensor));
    declaration.sequence = call->number;
    return declaration;
}
/* Writes " in CALL, operation N of GROUP", or an empty text if the call is unknown. */
static void error_text_format_where(const struct group *group, const struct agree_call *call, char *out, size_t bytes)
{
    struct declaration declaration = agree_call_to_declaration(call);
    char what[ERROR_TEXT_BYTES];
    out[0] = 0;
    if (!call->number) return;
    error_text_of_call(&declaration, what, sizeof what);
    snprintf(out, bytes, " in %s, operation %llu of %s", what, (unsigned long long)call->number, group->name);
}
/* Writes the error of two ranks that make different calls. */
static void error_text_format_disagreement(const struct group *group, const struct agree_cause *c, char *out,
    size_t bytes)
{
    struct declaration mine = agree_call_to_declaration(&c->calls[0]), theirs = agree_call_to_declaration(&c->calls[1]);
    char here[ERROR_TEXT_BYTES];
    if (c->calls[1].number) {
        error_text_of_disagreement(group, c->reporter, &mine, c->other, &theirs, out, bytes);
        return;
    }
    /* The other rank has not reported its call. */
    error_text_of_call(&mine, here, sizeof here);
    snprintf(out, bytes,
        "ranks disagree about operation %llu of %s: rank %d calls %s, but rank %d makes another call, or made one "
        "before; all ranks must make the same calls in the same order",
        (unsigned long long)c->operation, group->name, c->reporter, here, c->other);
}
/* Writes the error that all ranks report for an agreed cause. */
static void error_text_format_cause(const struct group *group, const struct agree_cause *c, char *out, size_t bytes)
{
    char where[ERROR_TEXT_BYTES + 64];
    error_text_format_where(group, &c->calls[0], where, sizeof where);
    if (c->detail[0]) snprintf(out, bytes, "%.*s", AGREE_DETAIL_BYTES - 1, c->detail);
    else if (c->kind == AGREE_DISAGREEMENT) error_text_format_disagreement(group, c, out, bytes);
    else if (c->kind == AGREE_LEFT_ALONE) error_text_of_leaving(group, c->other, c->reporter, where, out, bytes);
    else error_text_of_death(group, c->other >= 0 ? c->other : c->reporter, c->reporter, where, out, bytes);
}
size_t error_text_append_rank(char *out, size_t bytes, size_t used, int rank)
{
    if (used + 16 >= bytes) return used;
    return used + (size_t)snprintf(out + used, bytes - used, "%s%d", used ? ", " : "", rank);
}
void error_text_of_cause(const struct group *group, const struct agree_cause *c, char *out, size_t bytes)
{
    size_t used = 0;
    /* The text of a disagreement names both ranks, so the reporter needs no prefix. */
    bool names_both = c->kind == AGREE_DISAGREEMENT && !c->detail[0];
    if (c->reporter != group->rank && !names_both)
        used = (size_t)snprintf(out, bytes, "rank %d failed the group: ", c->reporter);
    error_text_format_cause(group, c, out + used, bytes - used);
}
void error_text_of_window(const struct operation *op, char *out, size_t bytes)
{
    static const char *const names[] = { [WINDOW_PUT] = "a put to",
        [WINDOW_SIGNAL] = "a signal to",
        [WINDOW_AWAIT] = "a wait for a signal of",
        [WINDOW_FLUSH] = "the end of this rank's puts and signals",
        [WINDOW_DRAIN] = "the end of the other ranks' puts and signals",
        [WINDOW_ATTACH] = "the registration of a window",
        [WINDOW_DETACH] = "the end of a window",
        [WINDOW_FREE] = "the end of a window" };
    const char *name = names[op->message.window.kind];
    if (op->message.window.kind <= WINDOW_AWAIT) snprintf(out, bytes, "%s rank %d", name, op->message.window.peer);
    else snprintf(out, bytes, "%s", name);
}
tutti_status window_fail_freed(const struct group *group, const struct tutti_window *w, int peer, const char *effect)
{
    return status_fail(TUTTI_INVALID_ARGUMENT,
        "rank %d of %s has freed its window (number %u), so rank %d %s; all ranks must deregister a window together",
        peer, group->name, w->number, w->rank, effect);
}
