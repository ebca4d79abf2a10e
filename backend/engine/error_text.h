/* Formats calls and causes of failure as text in out[bytes]. Every function accepts any declaration, even a corrupt one
   from a peer. */
#pragma once
#include "backend/agree/agree.h"
#include "backend/engine/group.h"
#include "backend/engine/operation.h"

enum { ERROR_TEXT_BYTES = 240 };
/* Describes a call, as in "broadcast(8 x float32, root 0, algorithm chain)". */
void error_text_of_call(const struct declaration *call, char *out, size_t bytes);
/* Describes two ranks whose calls differ: `rank` with `call`, and `other` with `its_call`. */
void error_text_of_disagreement(const struct group *group, int rank, const struct declaration *call, int other,
    const struct declaration *its_call, char *out, size_t bytes);
/* Describes an operation of a window, as in "a put to rank 1". */
void error_text_of_window(const struct operation *op, char *out, size_t bytes);
/* Describes the death of rank `dead`, which rank `seer` has detected. `where` is " in" and the operation of that rank,
   or empty. */
void error_text_of_death(const struct group *group, int dead, int seer, const char *where, char *out, size_t bytes);
/* Describes why the link to a lost rank of another host has ended or could not be opened. Writes an empty text if the
   rank's process has ended, as far as is known. */
void error_text_of_lost_link(const struct group *group, int lost, char *out, size_t bytes);
/* Describes that rank `gone` has destroyed its communicator while rank `waiter` waits for it. `where` is " in" and the
   operation of the waiting rank, or empty. */
void error_text_of_leaving(const struct group *group, int gone, int waiter, const char *where, char *out, size_t bytes);
/* Appends a rank to a list such as "1, 3" of `used` bytes, if there is room. Returns the bytes of the new list. */
size_t error_text_append_rank(char *out, size_t bytes, size_t used, int rank);
/* Describes the cause that the hosts decided on, for the user of this rank. */
void error_text_of_cause(const struct group *group, const struct agree_cause *cause, char *out, size_t bytes);
/* Fails with INVALID_ARGUMENT because rank `peer` has freed its window. `effect` is the consequence for this rank, as
   in "cannot map it". */
tutti_status window_fail_freed(const struct group *group, const struct tutti_window *window, int peer,
    const char *effect);
