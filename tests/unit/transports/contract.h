/* The contract: tests that every transport must pass. Each is a body that runs on every rank. */
#pragma once
#include "tests/unit/transports/ranks.h"

/* Runs all bodies of the contract except the_last_rank_goes, one after the other. */
void the_contract(struct rank *me);
/* Rank 0 loses the last of 3 ranks or more. Its transfers with that rank fail, and others go on. */
void the_last_rank_goes(struct rank *me);
/* Allocates `bytes` bytes and one guard byte behind them, all filled with 0xee. The caller frees them. */
unsigned char *buffer(size_t bytes);
