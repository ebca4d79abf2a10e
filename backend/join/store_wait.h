/* How a rank waits while it joins through a store: for keys, and for the election of its host. */
#pragma once
#include "backend/join/terms.h"

/* Pauses between two reads of a key, for an eighth of the wait so far. So a rank that comes soon is seen soon, and the
   store does not get busy. */
void store_poll_pause(int64_t began_ns, int64_t deadline_ms);
/* Returns true if a rank has waited so long that it also reads "r0" again. */
bool store_wait_is_late(int64_t began_ns);
/* Fails with ABORTED if the caller of this rank, `mine`, has cancelled its join. */
tutti_status store_check_cancelled(const tutti_config *config, const struct member *mine);

/* Sets the token of this rank's host: by a host election if this rank offers a contact. Otherwise it is the group's
   token, as if all ranks were on one host. `first` is the record of rank 0. */
tutti_status member_set_host_token(const tutti_config *config, const struct member *first, const struct key_id *key,
    int64_t deadline_ms, struct member *out);
/* Leaves the election that member_set_host_token joined. */
void member_release_host_token(const struct member *first, const struct member *mine);
