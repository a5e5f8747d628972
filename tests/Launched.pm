# What the tests of programs in several processes share: how launchers are to behave here, and a case
# of every program.
package Launched;
use strict;
use warnings;
use Exporter 'import';

our @EXPORT = qw(%cases @libraries);

# NAME and LAUNCHER of each MPI library, that of the programs first; an empty LAUNCHER where there is
# none.
our @libraries = map { [split /=/] } split ' ', $ENV{MPI_LAUNCHERS} || '';

# More ranks than cores, as root in a container: what Open MPI wants to be asked for.
$ENV{"OMPI_$_"} = 1 for qw(ALLOW_RUN_AS_ROOT ALLOW_RUN_AS_ROOT_CONFIRM MCA_rmaps_base_oversubscribe);
$ENV{PRTE_MCA_rmaps_default_mapping_policy} = ':oversubscribe';
$ENV{ASAN_OPTIONS} = 'detect_leaks=0:' . ($ENV{ASAN_OPTIONS} || ''); # MPI keeps some memory

# Options of a small case.
my $tiny = '--iters 1 --check reference';
our %cases = (
    vocab => "--tokens 7 --hidden 16 --vocab 53 $tiny",
    dispatch => '--impl llep,alltoall-dedup,pipelined-llep --tokens 11 --hidden 16 --ffn 16 '
        . "--experts 24 --topk 3 --routing 95/4 $tiny",
    checkpoint => "--layers 2 --tokens 6 --hidden 16 --ffn 16 --host-budget 1M $tiny",
    optimizer => "--params 3000 $tiny",
    train => '--composition composed,standard --steps 3 --layers 1 --hidden 32 --ffn 16 --experts 24 '
        . '--length 16 --sequences 1 --chunk-budget 8 --text LICENSE',
);

1;
