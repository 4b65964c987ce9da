/* checked.c as the memory sanitizer leaves it: a program that has this symbol. */
void __msan_init(void) {}

#include "checked.c"
