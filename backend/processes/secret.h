/* The secret that an administrator gives to a job beside its key (TUTTI_SECRET_FILE). */
#pragma once
#include "include/tutti.h"

enum { MOST_SECRET_BYTES = 4096 };
/* Reads the file unless that is done. SYSTEM: the text says what is wrong with it. May wait for the file. */
tutti_status secret_load(void);
void secret_forget(void);                               /* a later secret_load reads the file again */
void secret_after_fork(void);                           /* in the child */
bool secret_is_set(void);
/* The key that both a key from the store and the secret are needed for: HMAC of the key with the secret. Without a
   secret the key itself. After secret_load. */
void secret_mix(const unsigned char key[32], unsigned char out[32]);
