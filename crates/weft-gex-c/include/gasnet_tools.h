/* Tools that need no job. */
#ifndef GASNET_TOOLS_H
#define GASNET_TOOLS_H

#endif
