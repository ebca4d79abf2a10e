/* A program that tries all orders of events, or all states, of code of the library, and reports the mistakes it finds.
   Mutants of that code (tutti_mutant in tests/CMakeLists.txt) prove that it finds mistakes.
     PROGRAM               what the test runs: some seconds
     PROGRAM --deep        larger bounds: minutes, some GiB
     PROGRAM --must-fail   succeeds when a mistake is found: for mutants */
#pragma once
#include <stdbool.h>

/* QUICK is tried first in a mutant: it finds most mistakes, and may try nothing. */
enum depth { QUICK, USUAL, DEEP };
/* Prints what was tried. Returns false when something is wrong. */
bool exploration_holds(enum depth depth);
