/* Forks of the process. A child has no threads but the one that forked, and must not use what its parent made. */
#pragma once

/* Returns a number that changes in the child of a fork. */
unsigned process_generation(void);
/* Makes process_generation follow forks from now on. It is called before an object stores its generation. */
void process_watch_forks(void);
