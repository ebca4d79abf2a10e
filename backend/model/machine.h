/* What is known of this machine: facts, and what the operations cost of which collectives between ranks of one host are
   made. Measured once per host and distance of the ranks (probe.c) in a few tens of milliseconds, kept on disk between
   jobs (kept.c), and from then on only read: by the price of a schedule (price.c), and by how long it is worth while to
   wait awake.

   A group decides by the parameters of one of its ranks, so all its ranks decide alike. */
#pragma once
#include "include/tutti.h"

/* name, unit, typical (where it cannot be measured), least and most that are believed, what it is */
#define MACHINE_PARAMETERS(X) \
    X(l2, "bytes", 1 << 20, 32 << 10, 1 << 30, "second-level cache of a core") \
    X(last, "bytes", 32 << 20, 256 << 10, 1e11, "last-level cache") \
    X(line, "ns", 100, 1, 1e5, "fetch a cache line that another core has written") \
    X(near, "ns/byte", 0.035, 1e-4, 100, "copy within the second-level cache") \
    X(far, "ns/byte", 0.08, 1e-4, 100, "copy of more than the second-level cache holds") \
    X(add, "ns/byte", 0.015, 1e-5, 100, "add, on top of moving the bytes") \
    X(slot_write, "ns/byte", 0.06, 1e-4, 100, "write lines that another core has read") \
    X(slot_read, "ns/byte", 0.06, 1e-4, 100, "read lines that another core has written") \
    X(lost_write, "ns/byte", 0.04, 1e-4, 100, "write lines that another core has read and no second-level " \
        "cache holds any more") \
    X(lost_read, "ns/byte", 0.04, 1e-4, 100, "read lines that another core has written and no second-level " \
        "cache holds any more") \
    X(fetch, "ns/byte", 0.2, 1e-4, 100, "read through the kernel what another core has just written") \
    X(lost_fetch, "ns/byte", 0.3, 1e-4, 100, "read through the kernel what another core has written and no " \
        "second-level cache holds any more") \
    X(reading, "ns", 2000, 10, 1e7, "fixed cost of one read through the kernel") \
    X(one_copy, "ratio", 1.5, 0.01, 100, "exchange of 128 KiB read through the kernel, relative to the same " \
        "through slots") \
    X(lost_one_copy, "ratio", 1.5, 0.01, 100, "the same for messages that no second-level cache holds") \
    X(tile, "ns", 500, 1, 1e6, "step from tile to tile of a message larger than the cache") \
    X(pause, "ns", 40, 0.1, 1e4, "one pause while polling") \
    X(yield, "ns", 300, 10, 1e6, "a yield with no other thread to run") \
    X(hand_over, "ns", 1000, 10, 1e7, "a yield to another rank on the same core") \
    X(sleep, "ns", 8000, 100, 1e8, "fall asleep and be woken by another core") \
    X(message, "ns", 15000, 100, 1e10, "a message to another host; measured when a group has several") \
    X(announced, "ns", 45000, 100, 1e10, "fixed cost of one of more than 64 KiB; measured likewise") \
    X(wire, "ns/byte", 0.32, 1e-4, 1e6, "a byte of a large one, with both directions busy")

struct machine {
#define X(name, unit, typical, least, most, help) double name;
    MACHINE_PARAMETERS(X)
#undef X
};
struct machine_row { const char *name, *unit, *help; double typical, least, most; };
int machine_table(const struct machine_row **out);      /* in the order of struct machine; returns the number */
double machine_figure(const struct machine *machine, int row);
void machine_set(struct machine *machine, int row, double figure);
struct machine machine_typical(void);
/* Replaces the parameters that a text names, as in "line=300,fetch=0.05", if they are within their bounds; warns about
   anything else in the text. */
void machine_override(struct machine *machine, const char *parameters);
/* What messages between hosts cost, as `from` has it: it belongs to a group, all else to a machine. */
void machine_take_network(struct machine *machine, const struct machine *from);
bool machine_is_sane(const struct machine *machine);    /* every figure is within its bounds */

/* How far apart cores are: half octaves of the time that a line takes from one to the other, from 1; 0: not known. */
enum { DISTANCES = 36 };
int machine_distance(double line_ns);

/* ---- what this process knows; any thread ---- */
/* The parameters of ranks at that distance: learnt before, or kept by an earlier job; at an unknown distance the latest
   of this process, or any. False: there are none. */
bool machine_recall(int distance, struct machine *out);
/* The first for a distance stay. keep: for later jobs, too; those of an unknown distance are never. */
void machine_learn(int distance, const struct machine *parameters, bool keep);
/* Those of an unknown distance; if there are none, measured now. `stream`: copies around the cache, or NULL. */
typedef void machine_copy(void *to, const void *from, size_t bytes);
struct machine machine_get(machine_copy *stream);

/* ---- probe.c ---- */
enum { PROBE_MS = 60 };                                 /* the longest it may take; then the rest stays typical */
/* Measures, on these two cores (NULL: the caller's and another), or on two threads of one where there is no other.
   True: all of it; false: some parameters are only typical, because there is one core only, or others keep the cores
   busy. */
bool machine_probe(machine_copy *stream, const int cores[2], struct machine *out);
/* ---- facts.c ---- */
enum { PROBE_NUMBER = 8 };                              /* to be raised when what is measured changes */
enum { IDENTITY_BYTES = 512 };
/* Version of tutti, processor, number of cores, kernel, distance, in one line: parameters of one identity do not count
   for another. */
void machine_identity(int distance, char out[IDENTITY_BYTES]);
double cache_bytes(int level);                          /* of the first core; 0: the system does not say */
bool cores_are_siblings(int a, int b);                  /* two threads of one core */
/* ---- kept.c ---- */
/* The folder: what TUTTI_CACHE says, or that of the user; false: nothing is kept. */
bool kept_folder(char *out, size_t bytes);
/* False: nothing is kept there for this machine, or it makes no sense. */
bool kept_read(const char *folder, const char *identity, struct machine *out);
/* Replaces it as a whole. False: could not, and has said so. */
bool kept_write(const char *folder, const char *identity, const struct machine *machine);
