/* A program that has the memory sanitizer's symbol, as if checked.c were built with the sanitizer. */
void __msan_init(void) {}

#include "checked.c"
