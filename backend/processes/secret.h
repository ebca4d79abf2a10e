/* The secret that an administrator gives to a job in addition to its key (TUTTI_SECRET_FILE). */
#pragma once
#include "include/tutti.h"

enum { MOST_SECRET_BYTES = 4096 };
/* Reads the file that the settings name, unless it has been read. May wait for the file. SYSTEM: the text describes the
   problem. */
tutti_status secret_load(void);
/* Erases the secret, so that a later secret_load reads the file again. */
void secret_forget(void);
/* Forgets the secret in the child. */
void secret_after_fork(void);
/* Returns true if a secret is loaded. */
bool secret_is_set(void);
/* Derives the key in use from the store's key and the secret: the HMAC of the key with the secret. Without a secret it
   copies the key. Call it after secret_load. */
void secret_mix(const unsigned char key[32], unsigned char out[32]);
