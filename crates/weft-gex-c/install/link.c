/* The archive of one mode, libgasnet-<conduit>-<mode>.a: the symbol that objects of this mode name, and the strings by
 * which launchers and test harnesses tell what an executable is.
 *
 * The archive is linked into the executable, also when the library is shared, so that the strings stand there. */
#include <gasnetex.h>

const char GEX_WEFT_LINK[] = "$GASNetConfig: (libgasnet) " GASNET_CONFIG_STRING " $\0"
                             "$GASNetThreadModel: GASNET_" GEX_WEFT_MODE_STR " $\0"
                             "$GASNetConduitName: " GASNET_CONDUIT_NAME_STR " $\0"
                             "$GASNetCoreLibraryName: WEFT $";

gex_weft_world_t gex_weft_world;
