#!/usr/bin/env perl
# What a trace of the emulated device shows, and where it comes from: CUPTI's records of kernels, copies and
# the pool's memory; pairs of events where another profiler holds CUPTI, and then the live sets alone, which
# is said; and no overlap and no exposed copies where records were dropped.
use strict;
use warnings;
use File::Temp qw(tempdir);
use FindBin;
use lib $FindBin::Bin;
use Tap;

my $build = $ENV{BUILDDIR} || 'build';
my $dir = tempdir(CLEANUP => 1);

skip_all('the emulator is not built here (make showconfig)') unless -x "$build/emu/bin/checkpoint";

my %commands = (
    checkpoint => '--impl sco --layers 3 --tokens 9 --hidden 16 --ffn 24 --host-budget 100000',
    optimizer => '--impl offload-stream --params 3000 --bucket 1000 --slots 2',
);

# The trace, the record and the text of a program where CUPTI behaves so.
sub run {
    my ($program, $cupti) = @_;
    local $ENV{CUDA_EMU_CUPTI} = $cupti;
    my ($trace, $record) = ("$dir/$program.$cupti.json", "$dir/$program.$cupti.jsonl");
    my $text = `$build/emu/bin/$program --device cuda --iters 1 --warmup 0 $commands{$program} --trace $trace --json $record 2>&1`;
    $text .= sprintf "exit %d\n", $? >> 8 if $?;
    return (slurp($trace), slurp($record), $text);
}

# Values of a counter's series, in order.
sub series {
    my ($trace, $name) = @_;
    return $trace =~ /"ph":"C","name":"device memory"[^\n]*"$name":(\d+)/g;
}

for my $program (sort keys %commands) {
    my ($trace, $record, $text) = run($program, 'on');
    my @used = series($trace, 'in use');
    my @kept = series($trace, 'kept');
    my ($most) = sort { $b <=> $a } @used;
    my ($peak) = $record =~ /"tracked_peak_bytes":(\d+)/;
    ok(@used > 2 && @used == @kept && $most > 0 && $trace =~ /"name":"memory"/,
        "$program: a curve of the pool beside the live sets", $text . substr($trace, 0, 3000));
    ok($most >= $peak, "$program: the pool had at least the tracked peak in use", "$most, $peak\n$text");
    ok($trace =~ /"device memory":"[^"]*CUPTI's records/, "$program: the trace says where it comes from");
    ok($trace =~ /"cat":"copy"/ && $trace =~ /"cat":"kernel"/
            && $record =~ /"overlap":\d/ && $record =~ /"exposed_copy_s":\d/,
        "$program: overlap and exposed copies are recorded", $record);

    ($trace, $record, $text) = run($program, 'busy');
    ok($trace !~ /"name":"device memory"/ && $trace =~ /"device memory":"live sets alone/ && $trace =~ /"name":"memory"/,
        "$program: without CUPTI the live sets alone, and it is said", $text);
    ok($trace =~ /"cat":"copy"/ && $trace =~ /"cat":"kernel"/ && $record =~ /"exposed_copy_s":\d/,
        "$program: times are those of events then", $record);

    ($trace, $record, $text) = run($program, 'drops');
    ok($record =~ /"status":"ok"/ && $record !~ /"overlap":\d/ && $record !~ /exposed_copy/,
        "$program: records were dropped: neither overlap nor exposed copies", $record);
    ok($trace =~ /"cat":"kernel"/, "$program: what was seen is shown all the same");
}

done();
