/* The secret that processes on different hosts prove to each other to know (TUTTI_SECRET_FILE), and HMAC-SHA256 with
 * it, which is libcrypto's, opened only where there is a secret. */
#pragma once
#include "c_api/tutti.h"

enum { PROOF_BYTES = 32, MOST_SECRET_BYTES = 4096 };
/* Reads the file and opens the library unless that is done. SYSTEM: the text says what is wrong with either. May wait
   for the file. */
tutti_status secret_load(void);
void secret_forget(void);                               /* a later secret_load reads the file again */
void secret_after_fork(void);                           /* in the child */
bool secret_is_set(void);
/* false: the library refuses. Without a secret all zeros. */
bool secret_sign(const void *text, size_t bytes, unsigned char out[PROOF_BYTES]);
bool secret_proves(const void *text, size_t bytes, const unsigned char proof[PROOF_BYTES]);
