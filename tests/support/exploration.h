/* A program that tries all orders of events, or all states, of code of the library, and reports the mistakes it finds.
   Mutants of that code (tutti_mutant in tests/CMakeLists.txt) prove that it finds mistakes.
     PROGRAM               runs for some seconds: the ordinary test
     PROGRAM --deep        has larger bounds: it takes minutes and some GiB
     PROGRAM --must-fail   exits with 0 if it finds a mistake: for mutants */
#pragma once
#include <stdbool.h>

/* QUICK is tried first in a mutant: it finds most mistakes, and may try nothing. */
enum depth { QUICK, USUAL, DEEP };
/* Tries the orders or states within the bounds of that depth, and prints what it tried. Returns false if it found a
   mistake. */
bool exploration_holds(enum depth depth);
