/* The main function of the programs that try all orders of events, or all states (exploration.h). */
#include "tests/support/exploration.h"
#include <string.h>

int main(int count, char **words)
{
    const char *how = count > 1 ? words[1] : "";
    if (strcmp(how, "--deep") == 0) return !exploration_holds(DEEP);
    if (strcmp(how, "--must-fail") == 0) return exploration_holds(QUICK) && exploration_holds(USUAL);
    return !exploration_holds(USUAL);
}
