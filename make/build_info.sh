#!/bin/sh
# Prints build_info.h: VERSION and FLAGS from the environment, and the state of the tree. A file that
# git does not know and does not ignore makes the tree dirty, since the build may compile it.
quoted() {
    printf '"%s"' "$(printf '%s' "$1" | tr '\n' ' ' | sed 's/[\\"]/\\&/g')"
}

commit=unknown dirty=-1 tree=
if [ -e .git ] && found=$(git rev-parse HEAD 2>/dev/null) &&
    changes=$(git --no-optional-locks status --porcelain 2>/dev/null); then
    commit=$found dirty=0
    [ -z "$changes" ] || { dirty=1; tree=', dirty'; }
fi

# printf, since some shells' echo reads backslashes.
printf '#define %s %s\n' BUILD_VERSION "$(quoted "$VERSION")" BUILD_FLAGS "$(quoted "$FLAGS")" \
    BUILD_COMMIT "$(quoted "$commit")" BUILD_TREE "$(quoted "$tree")" BUILD_DIRTY "$dirty"
