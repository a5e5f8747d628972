#!/bin/sh
# Figure 2 plots Table 6: peaks and latencies over the routings. With --csv this is what a plot reads.
#
# Usage: bench/tables/figure_02.sh [OPTION]...     (those of table_06.sh)
exec "$(dirname "$0")/table_06.sh" "$@"
