/* Forks of the process. A child has no threads but the one that forked, and must not use what its parent made. */
#pragma once

/* Returns a number of this process, which is one higher in the child of a fork. */
unsigned process_generation(void);
/* Makes process_generation count forks from now on. The caller calls it before an object stores its generation. */
void process_watch_forks(void);
