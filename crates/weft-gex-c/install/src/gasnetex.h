/* UPC++ looks for this file. */
#include "../../../include/gasnetex.h"
