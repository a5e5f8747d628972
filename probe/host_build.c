/* What this build is: the one file that sees build_info.h, which the Makefile writes anew whenever
 * the version, the flags or the state of the tree change. */
#include "probe/host_build.h"
#include "build_info.h"
#include "probe/host.h"

#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#elif defined(__GNUC__)
#define COMPILER "gcc " __VERSION__
#else
#define COMPILER "unknown compiler"
#endif

const char *host_version(void)
{
    return BUILD_VERSION;
}

const char *host_build(void)
{
    return BUILD_VERSION " (commit " BUILD_COMMIT BUILD_TREE ", " COMPILER ", " BUILD_FLAGS ")";
}

struct host_build_facts host_build_facts(void)
{
    return (struct host_build_facts){
        .commit = BUILD_COMMIT,
        .dirty = BUILD_DIRTY,
        .compiler = COMPILER,
        .flags = BUILD_FLAGS,
    };
}
