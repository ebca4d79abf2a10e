/* The socket on which this process gives snapshots of itself to other processes of the same user: JSON text in a memfd
 * whose bytes no process can change. The watch thread writes them, so it does that while the ranks of the process wait,
 * or hold the interpreter's lock. A connection is the request. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The room for the place of a program, which is a line of it. */
enum { PLACE_BYTES = 128 };
/* Writes at most `capacity` bytes of a snapshot, always terminated, and sets *bytes to the whole length. */
typedef void snapshot_write(char *buffer, size_t capacity, size_t *bytes);
/* Sets the function that writes. The watch thread calls it without registry.lock. Any thread. */
void snapshots_set_writer(snapshot_write *write);

/* Waits for the next caller that has got a snapshot, and returns its connection, which takes one more message: the
   place of this process's program, in one line, and further lines with more. The caller of this function closes it. */
int snapshots_await_caller(void);
/* Asks the process with that nonce, on this host, for its place, the first line above. Returns the connection, or
   -errno. */
int snapshot_ask(const unsigned char nonce[16]);
/* Asks this process's program for its place. Writes the answer to the last question, "" if no program answers. Returns
   false if the program has not answered for a moment, but will: ask again after some milliseconds. Only the watch
   thread calls this. */
bool snapshot_get_place(char out[PLACE_BYTES]);
/* Receives the answer until deadline_ms at the latest, and closes the connection. Writes "" if the process does not
   answer, does not tell, or the place does not fit. */
void snapshot_receive_place(int process, int64_t deadline_ms, char out[PLACE_BYTES]);

/* ---- for the watch thread and lifetime.c, with registry.lock held ---- */
/* Opens the socket, and makes the watch thread poll it. A process that cannot open it gives no snapshots. */
void snapshot_socket_open(void);
/* Answers a caller, if that is the descriptor of the socket. Releases the lock meanwhile. Returns false if it is
   not. */
bool snapshot_socket_on_ready(int descriptor);
void snapshot_socket_close(void);
/* Closes the parent's socket in the child of a fork. */
void snapshot_socket_after_fork(void);
