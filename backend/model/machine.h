/* The parameters of this machine: facts, and the costs of the basic operations between ranks of one host. They are
   measured once per host and distance of the ranks (probe.c) in a few tens of milliseconds, and kept on disk between
   jobs (kept.c). The cost of a schedule (cost.c) and the spin budget follow from them.

   All ranks of a group plan with the same parameters: on one host those of its first rank, on several hosts typical
   ones with the measured costs of the network (comm_set_machine). The spin budget of a rank comes from the parameters
   of its own host's first rank; if the rank is alone on its host, they are typical, too. */
#pragma once
#include "include/tutti.h"

/* Columns: name, unit, typical value (used if it cannot be measured), least and most accepted values, meaning. */
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
    X(sleep, "ns", 8000, 100, 1e8, "wake a thread that sleeps on another core") \
    X(message, "ns", 15000, 100, 1e10, "a message to another host; measured when a group has several hosts") \
    X(announced, "ns", 45000, 100, 1e10, "fixed cost of a message of more than 64 KiB to another host; " \
        "measured likewise") \
    X(wire, "ns/byte", 0.32, 1e-4, 1e6, "a byte of a large message to another host, with both directions busy")

struct machine {
#define X(name, unit, typical, least, most, help) double name;
    MACHINE_PARAMETERS(X)
#undef X
};
/* The columns of a parameter. */
struct machine_row { const char *name, *unit, *help; double typical, least, most; };

/* ---- parameters.c ---- */
/* Sets *out to the rows, in the order of struct machine; returns their number. */
int machine_get_rows(const struct machine_row **out);
/* machine_get_parameter and machine_set_parameter access the parameter of a row. */
double machine_get_parameter(const struct machine *machine, int row);
void machine_set_parameter(struct machine *machine, int row, double value);
/* Returns a machine with the typical value of each parameter. */
struct machine machine_typical(void);
/* Replaces the parameters that a text names, as in "line=300,fetch=0.05", if they are within their bounds; warns about
   anything else in the text. */
void machine_override_parameters(struct machine *machine, const char *parameters);
/* Copies the costs of messages between hosts, which belong to a group; all other parameters belong to a machine. */
void machine_copy_network_costs(struct machine *machine, const struct machine *from);
/* True if every parameter is within its bounds. */
bool machine_is_within_bounds(const struct machine *machine);

/* ---- machine.c: the values of this process; safe for several threads ---- */
/* The distance of two cores: 2 log2 of the ns that a line takes from one to the other, rounded down, at least 1. 0:
   unknown. */
enum { DISTANCES = 36 };
/* Returns the distance for the ns that a line takes from one core to the other; 0 for 0, a negative number or NaN. */
int distance_of_line_time(double line_ns);
/* Finds the parameters of ranks at that distance, from this process or on disk from an earlier job. For an unknown
   distance it finds those used last by this process, or any. False: none are available. */
bool machine_find_parameters(int distance, struct machine *out);
/* Records parameters for a distance, unless this process has some for it. to_disk: also writes the given ones to disk
   for later jobs, unless the distance is unknown. */
void machine_store_parameters(int distance, const struct machine *parameters, bool to_disk);
/* Copies bytes, or works on them in another way. */
typedef void machine_copy(void *to, const void *from, size_t bytes);
/* Returns any parameters, and measures them now if none are available. `stream` copies around the cache, or is NULL. */
struct machine machine_get_or_measure(machine_copy *stream);

/* ---- probe.c ---- */
/* The longest time that a measurement may take; parameters that are not measured by then stay typical. */
enum { PROBE_MS = 60 };
/* Measures this machine on two cores (NULL: the caller's and another), or on one if there is no other. True: all
   parameters are measured. False: some are only typical, because there is one core, or other programs keep the cores
   busy. */
bool machine_probe(machine_copy *stream, const int cores[2], struct machine *out);
/* ---- facts.c ---- */
/* The version of the measurements: must be raised when they change. */
enum { PROBE_NUMBER = 8 };
enum { IDENTITY_BYTES = 512 };
/* Writes one line with version of tutti, processor, number of cores, kernel, and distance. Parameters are valid only
   for their own identity. */
void machine_format_identity(int distance, char out[IDENTITY_BYTES]);
/* Returns the bytes of the first core's cache of a level (2, 3); 0: the system does not report it. */
double cache_level_bytes(int level);
/* True if both are hardware threads of one core. */
bool cores_are_siblings(int a, int b);
/* ---- kept.c ---- */
/* Returns the folder that TUTTI_CACHE names, or the user's cache folder. False: parameters are not kept on disk. */
bool machine_file_folder(char *out, size_t bytes);
/* Reads the parameters for an identity from its file in the folder. False: there is no valid file; *out is
   untouched. */
bool machine_file_read(const char *folder, const char *identity, struct machine *out);
/* Writes the parameters for an identity to its file in the folder, which it replaces as a whole. False: writing failed;
   errors of the system are logged. */
bool machine_file_write(const char *folder, const char *identity, const struct machine *machine);
