/* What every transport must do, whichever it is. */
#pragma once
#include "tests/unit/transports/ranks.h"

void the_contract(struct rank *me);         /* all of it, one body after the other */
void the_last_rank_goes(struct rank *me);   /* for 3 ranks or more: the router is told that it is lost */
unsigned char *buffer(size_t bytes);        /* filled with 0xee, and one more behind */
